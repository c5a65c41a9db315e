"""Reads the CSV tables of a profile bundle and says file, line and column of the first thing that
is wrong.
"""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.config.errors import InputError, nearest
from llmsim.config.files.reading import decoded, file_bytes, quoted


class Table(Struct, frozen=True, eq=False):
    """Columns of one CSV file; `line[i]` is the file line of row i (first line is 1,
    the header).
    """

    path: Path
    text: dict[str, list[str]]
    number: dict[str, NDArray[np.float64]]
    line: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.line)


def read_content(path: Path) -> bytes:
    """The file's bytes; InputError when it cannot be read."""
    return file_bytes(path, "a readable table")


def read_text(path: Path) -> str:
    """The file as text; InputError when it cannot be read or is not UTF-8."""
    return decoded(read_content(path), path, "a table in UTF-8")


def read_table(path: Path, *, text: Sequence[str], numbers: Sequence[str]) -> Table:
    """Columns `text` and `numbers` of a CSV file with a header; other columns are ignored.

    Numbers must be finite and not negative. InputError says file:line:column (column counts fields
    from 1).
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    reader = csv.reader(io.StringIO(read_text(path)))
    try:
        header = [name.strip() for name in next(reader, [])]
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(
            f"{path}:{reader.line_num}:1: not CSV ({error}); write comma-separated values",
            file=str(path),
        ) from None
    index = _columns(path, header, [*text, *numbers])
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            place = f"{path}:{line}:{min(len(row), len(header)) + 1}"
            raise InputError(
                f"{place}: the row has {len(row)} fields where the header has {len(header)}"
            )
    if not rows:
        raise InputError(
            f"{path}:2:1: the table has no rows; profile the model again or remove the file",
            file=str(path),
        )
    columns = list(zip(*rows, strict=True))
    return Table(
        path,
        {name: [cell.strip() for cell in columns[index[name]]] for name in text},
        {name: _numbers(path, lines, name, index[name], columns[index[name]]) for name in numbers},
        np.array(lines, dtype=np.int64),
    )


def _columns(path: Path, header: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    if not header:
        raise InputError(
            f'{path}:1:1: the file is empty; its first line must be "{",".join(wanted)}"',
            file=str(path),
        )
    for position, name in enumerate(header):
        if name in header[:position]:
            raise InputError(
                f'{path}:1:{position + 1}: the column "{name}" appears twice', file=str(path)
            )
    for name in wanted:
        if name not in header:
            hint = nearest(name, header).replace("did you mean", "is it")
            raise InputError(
                f'{path}:1:{len(header) + 1}: the column "{name}" is missing{hint}', file=str(path)
            )
    return {name: header.index(name) for name in wanted}


MAX_TIME_US = 1e8
"""No operator takes longer than 100 s; a thousand of them still fit the clock."""
MAX_COUNT = 2.0**31
"""Tokens and sequences."""


def _numbers(
    path: Path, lines: Sequence[int], name: str, column: int, cells: Sequence[str]
) -> NDArray[np.float64]:
    try:
        values = np.array([float(cell) for cell in cells])
    except ValueError:
        values = None
    largest = MAX_TIME_US if name.endswith("_us") else MAX_COUNT
    if values is not None and bool(
        np.all(np.isfinite(values) & (values >= 0) & (values <= largest))
    ):
        return values
    for line, cell in zip(lines, cells, strict=True):
        try:
            value = float(cell)
        except ValueError:
            raise InputError(
                f"{path}:{line}:{column + 1}: {name} is {quoted(cell)}, not a number",
                file=str(path),
            ) from None
        if not math.isfinite(value) or value < 0:
            raise InputError(
                f"{path}:{line}:{column + 1}: {name} is {quoted(cell)}; it must be finite and "
                "not negative",
                file=str(path),
            )
        if value > largest:
            raise InputError(
                f"{path}:{line}:{column + 1}: {name} is {quoted(cell)}; it must be at most "
                f"{largest:g}",
                file=str(path),
            )
    raise AssertionError("unreachable: some cell was bad")


def refuse_duplicates(table: Table, keys: Sequence[Sequence[object]]) -> None:
    """InputError when two rows have the same key (one sequence per key column); times would
    contradict each other.
    """
    seen: dict[tuple[object, ...], int] = {}
    for row, key in enumerate(zip(*keys, strict=True)):
        if key in seen:
            first = int(table.line[seen[key]])
            raise InputError(
                f"{table.path}:{int(table.line[row])}:1: the point {key} was already given in "
                f"line {first}; keep one"
            )
        seen[key] = row
