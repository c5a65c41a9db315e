"""The series of a run on their way to its folder, written while it runs: those of a long run do not
fit the memory.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from llmsim.columns import Column, KvTierSeriesColumns, LinkSeriesColumns, SeriesColumns
from llmsim.results.series_sink import Columns, KeptSeries, Table

SCHEMAS: dict[Table, Sequence[Column]] = {
    "series": SeriesColumns.COLUMNS,
    "kv_tiers": KvTierSeriesColumns.COLUMNS,
    "links": LinkSeriesColumns.COLUMNS,
}
ROWS_AT_ONCE = 1 << 20
"""Rows per row group, and in memory: a file's bytes do not depend on how the rows came."""


class SeriesFiles:
    """Writes a run's series below `folder` (None: nowhere) and keeps up to `keep` rows of each in
    memory.

    A context: what was written and not finished when it ends is removed.
    """

    def __init__(self, folder: Path | None, keep: int) -> None:
        self._folder, self.kept = folder, KeptSeries(keep)
        self._files: dict[Table, _GrowingFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.discard()

    def add(self, table: Table, rows: Columns) -> None:
        """The next rows. Raises InputError where the file cannot be written."""
        self.kept.add(table, rows)
        if self._folder is not None:
            self._file(table).add(rows)

    def columns(self, table: Table) -> Columns:
        """What is kept in memory."""
        return self.kept.columns(table)

    def finish(self, table: Table) -> None:
        """Puts a table's file in its place; one without rows is empty. Raises InputError where it
        cannot be written.
        """
        self._file(table).finish()
        del self._files[table]

    def _file(self, table: Table) -> "_GrowingFile":
        assert self._folder is not None
        if table not in self._files:
            self._files[table] = _GrowingFile(self._folder / f"{table}.parquet", SCHEMAS[table])
        return self._files[table]


class _Discarded(Exception):
    """Thrown into a writer whose file is not wanted."""


class _GrowingFile:
    """One Parquet file, begun when there is a row group to write."""

    def __init__(self, path: Path, schema: Sequence[Column]) -> None:
        self._path, self._schema = path, schema
        self._parts: list[Columns] = []
        self._rows = 0
        self._open = ExitStack()
        self._writer: Any = None

    def add(self, rows: Columns) -> None:
        if self._parts and not len(rows["time_ps"]):
            return
        self._parts.append(rows)
        self._rows += len(rows["time_ps"])
        if self._rows >= ROWS_AT_ONCE:
            self._write_groups()

    def finish(self) -> None:
        if self._rows or self._writer is None:
            self._write(self._waiting())
        self._open.close()

    def discard(self) -> None:
        self._open.__exit__(_Discarded, _Discarded(), None)

    def _write_groups(self) -> None:
        """Writes what fills row groups; the rest waits."""
        waiting, full = self._waiting(), self._rows - self._rows % ROWS_AT_ONCE
        for start in range(0, full, ROWS_AT_ONCE):
            self._write(
                {name: column[start : start + ROWS_AT_ONCE] for name, column in waiting.items()}
            )
        self._parts = [{name: column[full:] for name, column in waiting.items()}]
        self._rows -= full

    def _waiting(self) -> Columns:
        names = [column.name for column in self._schema]
        return (
            {name: np.concatenate([part[name] for part in self._parts]) for name in names}
            if self._parts
            else {}
        )

    def _write(self, rows: Columns) -> None:
        from llmsim.export.parquet import (
            parquet_writer,
            record_batch,
        )  # runs without a folder need neither

        if self._writer is None:
            self._writer = self._open.enter_context(parquet_writer(self._path, self._schema))
        self._writer.write_batch(record_batch(rows, self._schema))
