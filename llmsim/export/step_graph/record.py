"""What rows and nodes of a step's graph are made of."""

from __future__ import annotations

from typing import Any, Self

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False):
    """Values that do not change.

    A step has thousands of them: a struct is made in a sixteenth of a frozen dataclass's time, and
    none points back at itself, so the garbage collector need not look.
    """

    def changed(self, **values: Any) -> Self:
        """The record with other values."""
        return msgspec.structs.replace(self, **values)
