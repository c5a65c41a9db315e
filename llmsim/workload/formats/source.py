"""What a format reads from, and the columns that it hands over many rows at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.workload.models import ModelNames
from llmsim.workload.options import TraceOptions


@dataclass
class Source:
    """What a format reads from and reports to."""

    path: str
    options: TraceOptions
    models: ModelNames
    granularity: int
    """Tokens per key for content that has no block size of its own; 0: content is not wanted."""
    max_keys: int = 0
    """Where such content would take more keys than this, its blocks are doubled until it does not; 0: never."""


@dataclass(frozen=True)
class Rows:
    """Requests in the order of a file, column by column; what they mean is said at `Table.add`."""

    numbers: Callable[[], Sequence[int]]
    """The line of each, asked for only where something must be said about one."""
    at_ns: Int64
    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    after_ns: Sequence[int] | None = None
    """None: every row begins a line."""
    aside: Sequence[bool] | None = None
    """None: all of them are, where `after_ns` is None, else none is."""
    sessions: Sequence[str | None] | None = None
    ids: Sequence[Sequence[int | str] | None] | None = None
    models: Sequence[str | None] | None = None
    repeats: tuple[list[int], list[int]] | None = None
    """Earlier rows (-1: none) and how many tokens of each are repeated; where `after_ns` is given."""

    def only(self, kept: NDArray[np.bool_]) -> "Rows":
        """The rows that are kept."""
        chosen = np.flatnonzero(kept).tolist()
        numbers = self.numbers
        columns: dict[str, Any] = {
            name: [values[index] for index in chosen]
            for name in ("input_tokens", "output_tokens", "after_ns", "aside", "sessions", "ids", "models")
            if (values := getattr(self, name)) is not None
        }
        return replace(self, numbers=lambda: [numbers()[index] for index in chosen], at_ns=self.at_ns[kept], **columns)
