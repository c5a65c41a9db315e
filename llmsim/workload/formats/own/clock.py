"""Times of a log whose unit nobody has declared: dates, or numbers whose unit the column's name
ends with.

Where it names none, numbers beyond the year 5000 as seconds are taken as ms, us or ns since 1970,
all others as seconds.
"""

from collections.abc import Sequence

import numpy as np

from llmsim.config.files.reading import quoted, shown
from llmsim.core import Int64
from llmsim.workload.formats.own.names import UNITS, unit_of
from llmsim.workload.formats.rows import all_scaled_ns
from llmsim.workload.formats.table import LATEST_NS, Table
from llmsim.workload.formats.times import all_timestamps_ns, timestamp_ns

Moment = int | float | str
LATEST_S = 1e11
"""The year 5138: what is more cannot be seconds since 1970."""


class Clock:
    """Turns the values of one column into ns; the first one says whether they are dates, or numbers
    of which unit.
    """

    def __init__(self, table: Table, name: str) -> None:
        self._table, self._name = table, name
        self._minutes: dict[str, int] | None = None
        self._ns_per_unit = 0

    def ns(self, value: Moment) -> int | None:
        """The time that one value says; None where it says none."""
        value = value.strip() if isinstance(value, str) else value
        self._look(value)
        try:
            if self._minutes is not None:
                return self._within(timestamp_ns(str(value), self._minutes))
            if isinstance(value, str):
                value = int(value) if value.isdecimal() else float(value)
            return self._within(value * self._ns_per_unit)
        except ValueError:
            return None

    def all_ns(self, values: Sequence[Moment]) -> Int64 | None:
        """`ns` of many; None where each must be looked at."""
        self._look(values[0])
        kinds = set(map(type, values))
        if kinds == {str}:
            # Texts of numbers are rare enough.
            return all_timestamps_ns(values) if self._minutes is not None else None  # type: ignore[arg-type]
        if self._minutes is not None or str in kinds:
            return None
        whole = np.fromiter((type(value) is int for value in values), np.bool_, len(values))
        try:
            times_ns = all_scaled_ns(values, self._ns_per_unit)  # type: ignore[arg-type]
        except OverflowError:  # an integer of hundreds of digits
            return None
        if times_ns is not None and whole.any():
            counts = [value for value in values if type(value) is int]
            times_ns[whole] = np.array(counts, dtype=np.int64) * self._ns_per_unit
        return times_ns

    def wanted(self) -> str:
        """What a time must be."""
        if self._minutes is not None:
            return "a date and time such as 2023-11-16 18:15:46.68"
        most = LATEST_NS // self._ns_per_unit
        unit = next(name for name, ns in UNITS.items() if ns == self._ns_per_unit)
        return (
            f"a time of at most {most} {unit}; 'trace:FILE,unit=ns', in quotes, names another unit"
        )

    @staticmethod
    def _within(time_ns: float) -> int | None:
        return round(time_ns) if abs(time_ns) < LATEST_NS else None

    def _look(self, first: Moment) -> None:
        """Decides what the values are, unless one has been looked at."""
        if self._ns_per_unit or self._minutes is not None:
            return
        unit = self._table.source.options.unit or unit_of(self._name)
        try:
            value = abs(float(first))
        except ValueError:
            self._minutes = {}
            return
        except OverflowError:
            value = float("inf")
        if unit is None:
            unit = "s"
            for coarser, finer in (("s", "ms"), ("ms", "us"), ("us", "ns")):
                if value * UNITS[coarser] / UNITS["s"] > LATEST_S:
                    unit = finer
            self._table.notes.append(
                f'{self._table.source.path}: "{self._name}" is taken to be in {unit}; unit= says '
                "otherwise"
            )
        self._ns_per_unit = UNITS[unit]


def arrival_ns(table: Table, clock: Clock, name: str, number: int, at: Moment | None) -> int:
    """The time under the key `name` of a row of JSON; refuses what is none."""
    if at is None:
        raise table.refusal(number, f'"{name}" is missing, which the arrival is read from')
    at_ns = clock.ns(at)
    if at_ns is None:
        value = quoted(at) if isinstance(at, str) else shown(at)
        problem = f'"{name}" is {value}, but must be {clock.wanted()}'
        raise table.refusal(number, problem, field=name, value=at)
    return at_ns
