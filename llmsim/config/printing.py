"""Texts of files and arguments as they are printed: they cannot move a cursor, forge a line, or
fail to be encoded.
"""

import re

LONGEST_SENTENCE, LONGEST_WORD = 4000, 400
"""Characters of an error, and of a word in it; what is longer quotes a value that nobody reads to
its end.
"""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
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
    return _shortened(_LONG_WORD.sub(lambda word: _shortened(word[0], LONGEST_WORD), line))


def _shortened(text: str, longest: int = LONGEST_SENTENCE) -> str:
    """The text without its middle, where it is longer."""
    if len(text) <= longest:
        return text
    head, tail = longest * 3 // 4, longest // 4
    return f"{text[:head]} ... ({len(text) - head - tail} characters more) ... {text[-tail:]}"


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
