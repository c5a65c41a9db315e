"""Texts of files and arguments as they are printed: they cannot move a cursor, forge a line, or
fail to be encoded.
"""

import re

LONGEST_SENTENCE = 4000
"""Characters of an error; what is longer quotes a value that nobody reads to its end."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, marks that reorder or break lines, and halves of
surrogate pairs.
"""


def printable(text: str) -> str:
    r"""The text with control characters as \u001b, which JSON reads as the same character."""
    return _UNPRINTABLE.sub(_escaped, text)


def one_line(sentence: str) -> str:
    r"""An error as one printable line: line feeds of quoted values as \n, the middle of a long
    value left out.
    """
    line = printable(sentence).replace("\n", "\\n").replace("\t", "\\t")
    if len(line) <= LONGEST_SENTENCE:
        return line
    head, tail = LONGEST_SENTENCE * 3 // 4, LONGEST_SENTENCE // 4
    return f"{line[:head]} ... ({len(line) - head - tail} characters more) ... {line[-tail:]}"


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
