"""Tables of external hardware simulators: the contract of docs/how-to/external_simulators.md, from
CSV, JSON, Parquet.

One row is one execution of one operator: what, on which device, of which shape, how long. Columns:

    operator     name of an operator (docs/how-to/external_simulators.md lists them); "gemm";
    "prefill", "decode" device       name of the hardware in the cluster file; empty: any latency_us
    or latency_ns, latency_ms, latency_s tokens, sequences                       the count that the
    operator depends on n, k                                    output and input width, where the
    row is of a matrix and not of a name new_tokens, cached_tokens, sequences    of attention;
    heads, kv_heads, head_dim where several models are in a table tp           degree that the row
    holds for; empty: any energy_uj    optional confidence   optional, from 0 to 1: how sure the
    simulator is of the point kind         optional: measured, simulated (default) or analytic
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.config.files.reading import json_value, shown
from llmsim.costs.sources.csv_tables import read_content, read_text

LATENCY_UNITS = {"latency_us": 1.0, "latency_ns": 1e-3, "latency_ms": 1e3, "latency_s": 1e6}
ENERGY_UNITS = {
    "energy_uj": 1.0,
    "energy_nj": 1e-3,
    "energy_mj": 1e3,
    "energy_j": 1e6,
    "energy_pj": 1e-6,
}
COUNTS = (
    "tokens",
    "sequences",
    "n",
    "k",
    "new_tokens",
    "cached_tokens",
    "heads",
    "kv_heads",
    "head_dim",
    "tp",
)
KINDS = ("measured", "simulated", "analytic")
KNOWN = ("operator", "device", *COUNTS, "confidence", "kind", *LATENCY_UNITS, *ENERGY_UNITS)
ATTENTION = ("prefill", "decode")
MAX_US = 1e8
MAX_COUNT = 1 << 40
LEAST_US = 1e-6
"""What a shorter latency counts as, where an energy is divided by it."""
MAX_WATTS = 1e9


class Point(Struct, frozen=True):
    """One row: `shape` holds the counts that the row states, energy is None where it
    says nothing.
    """

    operator: str
    device: str
    shape: Mapping[str, int]
    latency_us: float
    energy_uj: float | None
    confidence: float
    kind: str
    place: str
    """file:line, for messages."""

    def get(self, name: str, default: int = 0) -> int:
        """One count of the shape."""
        return self.shape.get(name, default)


class ExternalTable(Struct, frozen=True):
    """The rows of one file; columns that the contract does not know are named in `ignored`."""

    path: Path
    points: tuple[Point, ...]
    ignored: tuple[str, ...]


def read_external(path: Path) -> ExternalTable:
    """Reads a table by its ending: .csv, .json (a list of rows, or {"rows": [...]}), .parquet.

    Raises InputError naming file, row and column of the first thing that is wrong.
    """
    if path.suffix == ".parquet":
        rows = _parquet_rows(path)
    elif path.suffix == ".json":
        rows = _json_rows(path)
    elif path.suffix == ".csv":
        rows = _csv_rows(path)
    else:
        raise InputError(f'the cost table "{path}" must end in .csv, .json or .parquet')
    points: list[Point] = []
    ignored: dict[str, None] = {}
    for place, row in rows:
        points.append(parse_point(row, place))
        ignored.update((name, None) for name in row if name not in KNOWN)
    if not points:
        raise InputError(
            f"{path}: the table has no rows; write at least one operator", file=str(path)
        )
    return ExternalTable(path, tuple(points), tuple(ignored))


def parse_point(row: Mapping[str, Any], place: str) -> Point:
    """A checked row; empty cells count as absent."""
    given = {name: value for name, value in row.items() if value not in (None, "")}
    operator = given.get("operator")
    if not isinstance(operator, str):
        close = nearest("operator", given)
        raise InputError(
            f'{place}: the column "operator" is missing{close}; it names what was timed'
        )
    kind = str(given.get("kind", "simulated"))
    if kind not in KINDS:
        raise InputError(f'{place}: kind is "{kind}"; it may be {", ".join(KINDS)}')
    latency = _one_of(given, LATENCY_UNITS, place)
    if latency is None:
        raise InputError(f"{place}: no latency; give one of {', '.join(LATENCY_UNITS)}")
    if not 0 <= latency <= MAX_US:
        raise InputError(
            f"{place}: a latency of {latency:g} us; it must be from 0 to {MAX_US:g} us"
        )
    shape = {name: _count(given[name], name, place) for name in COUNTS if name in given}
    _check_shape(operator, shape, place)
    confidence = _number(given.get("confidence", 1.0), "confidence", place)
    if not 0 <= confidence <= 1:
        raise InputError(f"{place}: confidence is {confidence:g}; it must be from 0 to 1")
    energy = _one_of(given, ENERGY_UNITS, place)
    watts = 0.0 if energy is None else energy / max(latency, LEAST_US)
    if watts > MAX_WATTS:
        raise InputError(
            f"{place}: an energy of {energy:g} uJ in {latency:g} us, {watts:g} W; at most "
            f"{MAX_WATTS:g} W"
        )
    return Point(
        operator, str(given.get("device", "")), shape, latency, energy, confidence, kind, place
    )


def _check_shape(operator: str, shape: Mapping[str, int], place: str) -> None:
    if operator == "prefill":
        needed: tuple[str, ...] = ("new_tokens",)
    elif operator == "decode":
        needed = ("sequences", "cached_tokens")
    elif operator == "gemm":
        needed = ("tokens", "n", "k")
    elif "tokens" not in shape and "sequences" not in shape:
        raise InputError(
            f'{place}: "{operator}" states neither tokens nor sequences; give the one it depends on'
        )
    else:
        return
    for name in needed:
        if name not in shape:
            raise InputError(f'{place}: a row of "{operator}" needs the column "{name}"')


def _one_of(row: Mapping[str, Any], units: Mapping[str, float], place: str) -> float | None:
    found = [name for name in units if name in row]
    if len(found) > 1:
        raise InputError(
            f"{place}: {' and '.join(found)} say the same thing twice; give one of them"
        )
    return _number(row[found[0]], found[0], place) * units[found[0]] if found else None


def _number(value: object, name: str, place: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(
            f"{place}: {name} is {shown(value)}; it must be a finite number, not negative"
        )
    return number


def _count(value: object, name: str, place: str) -> int:
    number = _number(value, name, place)
    if number != int(number) or number > MAX_COUNT:
        raise InputError(
            f"{place}: {name} is {shown(value)}; it must be a whole number up to {MAX_COUNT}"
        )
    return int(number)


def _csv_rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True)
    try:
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{place}: the row has another number of fields than the header")
            yield place, {name.strip(): cell.strip() for name, cell in row.items()}
    except csv.Error as error:
        raise InputError(
            f"{path}:{reader.line_num}: not CSV ({error}); write comma-separated values",
            file=str(path),
        ) from None


def _json_rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    document = json_value(read_text(path), path, "a list of rows")
    rows = document.get("rows") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise InputError(
            f'{path}: must be a list of rows, or an object with the list "rows"', file=str(path)
        )
    common = {k: v for k, v in document.items() if k in KNOWN} if isinstance(document, dict) else {}
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: row {index}: must be an object with the columns of the contract",
                file=str(path),
            )
        yield f"{path}: row {index}", {**common, **row}


def _parquet_rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    _, rows = parquet_rows(path)
    for index, row in enumerate(rows):
        yield f"{path}: row {index}", row


def parquet_rows(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Names of the columns, and the rows. Raises InputError where the file cannot be read as
    Parquet.
    """
    import pyarrow as pa

    data = read_content(path)
    try:
        table = input_files.parquet_table(pa.BufferReader(data))
        table.validate(
            full=True
        )  # a damaged table would end the process where its values are taken
        return table.schema.names, table.to_pylist()  # texts that are not UTF-8 are found only here
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise InputError(
            f"{path}: not Parquet ({' '.join(str(error).split())})", file=str(path)
        ) from None
