"""Values of logs, checked where they are read: numbers, token counts, lines."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite, shown

Rows = Sequence[tuple[int, dict[str, Any]]]
"""Line number and object of each line of a JSONL file."""
Row = TypeVar("Row")
LARGEST_COUNT = 2**31 - 1
LARGEST_STAMP = 1e20
"""Of any clock, in any unit: nanoseconds since 1970 are below it."""


def number_at(path: Path, line: int, row: dict[str, Any], name: str) -> float:
    """A number of a line; raises InputError for anything else."""
    if name not in row:
        raise InputError(f"{path}:{line}: {name} is missing; it must be a number", file=str(path))
    return finite_number(f"{path}:{line}: {name}", row.get(name))


def finite_number(where: str, value: Any) -> float:
    """The number of a log at `where`; raises InputError for anything else."""
    number = finite(value)
    if number is None or abs(number) > LARGEST_STAMP:
        raise InputError(
            f"{where} is {shown(value)}; it must be a number from {-LARGEST_STAMP:g} to "
            f"{LARGEST_STAMP:g}"
        )
    return number


def count_of(where: str, value: Any) -> int:
    """The token count of a log at `where`; raises InputError for anything else."""
    number = finite(value)
    if number is None or not 0 <= number <= LARGEST_COUNT or not number.is_integer():
        raise InputError(
            f"{where} is {shown(value)}; it must be a whole number of tokens up to {LARGEST_COUNT}"
        )
    return int(number)


def partitioned(
    rows: Iterable[Row], succeeded: Callable[[Row], bool]
) -> tuple[list[Row], list[Row]]:
    """The rows of requests that succeeded, and the others."""
    good: list[Row] = []
    failed: list[Row] = []
    for row in rows:
        (good if succeeded(row) else failed).append(row)
    return good, failed
