"""What an import read, what it left out and why, and what the user should know."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """Counts of rows by file and what became of them; printed once, at the end."""

    format: str = ""
    read: Counter[str] = field(default_factory=Counter)
    """"<file> -> <table>" -> rows."""
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(file, reason) -> rows."""
    notes: list[str] = field(default_factory=list)

    def took(self, file: str, table: str, rows: int) -> None:
        """`rows` of `file` are in `table` of the bundle."""
        self.read[f"{file} -> {table}"] += rows

    def skip(self, file: str, reason: str, rows: int = 1) -> None:
        """`rows` of `file` are not used."""
        if rows:
            self.skipped[file, reason] += rows

    def note(self, sentence: str) -> None:
        """Something that is assumed or missing."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def lines(self) -> list[str]:
        """The report as text."""
        found = [f"format: {self.format}"]
        found += [f"read:    {rows:>8} rows  {where}" for where, rows in sorted(self.read.items())]
        found += [
            f"skipped: {rows:>8} rows  {file}: {why}"
            for (file, why), rows in sorted(self.skipped.items())
        ]
        found += [f"note:    {sentence}" for sentence in self.notes]
        return found
