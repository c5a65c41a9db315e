"""What a format reads from, and the columns that it hands over many rows at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.workload.models import ModelNames
from llmsim.workload.options import TraceOptions


class Source(Struct):
    """What a format reads from and reports to."""

    path: str
    options: TraceOptions
    models: ModelNames
    granularity: int
    """Tokens per key for content that has no block size of its own; 0: content is not wanted."""
    max_keys: int = 0
    """Where such content would take more keys than this, its blocks are doubled until it does not;
    0: never.
    """


class Texts(Struct, frozen=True):
    """A text, or none, for each of many rows: `names[index[row]]`, and none where the
    index is -1.
    """

    index: Int64
    names: Sequence[str]

    @classmethod
    def of(cls, values: Sequence[str | None]) -> "Texts | None":
        """The texts of rows one by one; None where no row has one."""
        names = [name for name in dict.fromkeys(values) if name is not None]
        if not names:
            return None
        index_of: dict[str | None, int] = {name: index for index, name in enumerate(names)}
        index_of[None] = -1
        return cls(
            np.fromiter(map(index_of.__getitem__, values), dtype=np.int64, count=len(values)), names
        )

    def used(self) -> tuple[list[str], Int64]:
        """The names that rows have, in order of appearance, and which of them each row has (-1:
        none).
        """
        found, first, index = np.unique(self.index, return_index=True, return_inverse=True)
        order = np.argsort(np.where(found < 0, -1, first))
        none = int(len(found) > 0 and found[0] < 0)
        rank = np.empty(len(found), dtype=np.int64)
        rank[order] = np.arange(len(found)) - none
        return [self.names[name] for name in found[order[none:]].tolist()], rank[index]

    def listed(self) -> list[str | None]:
        """The text of each row."""
        return [self.names[name] if name >= 0 else None for name in self.index.tolist()]


class Rows(Struct, frozen=True):
    """Requests in the order of a file, column by column; what they mean is said at `Table.add`."""

    numbers: Callable[[], Sequence[int]]
    """The line of each, asked for only where something must be said about one."""
    at_ns: Int64
    input_tokens: Sequence[int] | Int64
    output_tokens: Sequence[int] | Int64
    after_ns: Int64 | None = None
    """None: every row begins a line."""
    aside: NDArray[np.bool_] | None = None
    """None: all of them are, where `after_ns` is None, else none is."""
    sessions: Texts | None = None
    labels: Sequence[str | None] | None = None
    """What stands for `sessions` in a table of labels."""
    ids: Sequence[Sequence[int | str] | None] | None = None
    models: Texts | None = None
    request_ids: Sequence[str | None] | None = None
    repeats: tuple[Int64, Int64] | None = None
    """Earlier rows (-1: none) and how many tokens of each are repeated; where `after_ns` is given.
    """

    def only(self, kept: NDArray[np.bool_]) -> "Rows":
        """The rows that are kept, of those that all begin a line."""
        chosen = np.flatnonzero(kept).tolist()
        numbers = self.numbers
        columns: dict[str, Any] = {
            name: [values[index] for index in chosen]
            for name in ("input_tokens", "output_tokens", "labels", "ids", "request_ids")
            if (values := getattr(self, name)) is not None
        }
        for name in ("sessions", "models"):
            texts: Texts | None = getattr(self, name)
            columns[name] = None if texts is None else Texts(texts.index[kept], texts.names)
        return replace(
            self,
            numbers=lambda: [numbers()[index] for index in chosen],
            at_ns=self.at_ns[kept],
            **columns,
        )
