"""The streams that commands print to: what they print cannot move a terminal's cursor or fail to be
encoded.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from llmsim.config.printing import printable


class Printable:
    """A text stream that escapes control characters; everything else is the stream's that it wraps,
    `raw`.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Writes the text with its control characters escaped; returns how many characters were
        given.
        """
        self.raw.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes every line as `write` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw(stream: TextIO) -> TextIO:
    """The stream without the escaping, for what draws on a terminal by itself."""
    return stream.raw if isinstance(stream, Printable) else stream


@contextmanager
def printable_streams() -> Iterator[None]:
    """Escapes control characters of all that is printed inside."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Printable(raw(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
