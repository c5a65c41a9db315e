"""Collects the time series of a run; the default SeriesSink keeps them in memory."""

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Table = Literal["series", "kv_tiers", "links"]
Columns = Mapping[str, NDArray[np.generic]]


class SeriesSink(Protocol):
    """Takes the rows of a run's series a few at a time, in order."""

    def add(self, table: Table, rows: Columns) -> None:
        """The next rows, possibly none, as columns of equal length; all calls for a table have the
        same columns.
        """

    def columns(self, table: Table) -> Columns:
        """All rows that are kept in memory; no columns where none are."""


class KeptSeries:
    """Keeps up to `most_rows` of a table (None: any number); beyond, it keeps none and counts."""

    def __init__(self, most_rows: int | None = None) -> None:
        self._most = most_rows
        self._parts: dict[Table, list[Columns]] = {}
        self.num_rows: dict[Table, int] = {}
        """Rows so far by table, kept or not."""

    def add(self, table: Table, rows: Columns) -> None:
        count = self.num_rows.get(table, 0) + len(next(iter(rows.values())))
        parts = self._parts.setdefault(table, [])
        if self._most is not None and count > self._most:
            parts.clear()
        elif count > self.num_rows.get(table, -1):
            parts.append(rows)
        self.num_rows[table] = count

    def too_long(self, table: Table) -> bool:
        """Whether rows were given up."""
        return self._most is not None and self.num_rows.get(table, 0) > self._most

    def columns(self, table: Table) -> Columns:
        parts = self._parts.get(table, [])
        if not parts:
            return {}
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
