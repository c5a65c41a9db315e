"""What a mutant is, and how the two languages say where they can be mutated."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the text between two offsets is replaced."""

    path: str
    """Relative to the root of the tree."""
    line: int
    start: int
    end: int
    replacement: str
    operator: str
    """The kind of change, for instance "comparison"."""

    def applied(self, source: str) -> str:
        return source[: self.start] + self.replacement + source[self.end :]

    def changed_lines(self, source: str) -> tuple[str, str]:
        """The lines that the change touches before and after it, without indentation
        and line ends.
        """
        mutated = self.applied(source)
        first = source.rfind("\n", 0, self.start) + 1
        last = source.find("\n", self.end)
        last = len(source) if last < 0 else last
        after = mutated[first : last + len(mutated) - len(source)]
        return _joined(source[first:last]), _joined(after)

    def diff(self, source: str) -> str:
        """A unified diff without context, its file names left out."""
        lines = difflib.unified_diff(
            source.splitlines(), self.applied(source).splitlines(), lineterm="", n=0
        )
        return "\n".join(list(lines)[2:])


def _joined(text: str) -> str:
    return " ".join(text.split())
