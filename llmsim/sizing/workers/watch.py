"""Who is told how far a command with many simulations has come."""

from typing import Protocol


class Watch(Protocol):
    """Counts what is done."""

    def begin(self, what: str, total: int | None = None) -> None:
        """From here on `total` things of one kind are counted; None: nobody knows how many."""
        ...

    def done(self, last: str = "") -> None:
        """One more is done; `last` says what came of it."""
        ...


class Nobody:
    """Is told and says nothing."""

    def begin(self, what: str, total: int | None = None) -> None:
        """Counts nothing."""

    def done(self, last: str = "") -> None:
        """Counts nothing."""


NOBODY = Nobody()
