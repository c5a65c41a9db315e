"""Turns the outputs of external simulators into the table of docs/how-to/external_simulators.md."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsim.config.errors import InputError, nearest
from llmsim.config.files.reading import shown
from llmsim.costs.sources.csv_tables import read_text
from llmsim.costs.sources.external.table import ExternalTable, parse_point, read_external

FIELDS = (
    "operator",
    "device",
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
    "latency_us",
    "energy_uj",
    "confidence",
    "kind",
)
CYCLES = "latency_cycles"
MAX_LAYERS = 1 << 31


def by_columns(
    path: Path, columns: Mapping[str, str], constants: Mapping[str, str], clock_hz: float
) -> ExternalTable:
    """A CSV with columns of its own: `columns` says contract name -> theirs, `constants` what every
    row shares.

    `latency_cycles` is a latency over `clock_hz`. Raises InputError for a column that is not there.
    """
    rows = []
    for line, row in _rows(path):
        place = f"{path}:{line}"
        out: dict[str, Any] = dict(constants)
        for ours, theirs in columns.items():
            if theirs not in row:
                raise InputError(f'{place}: there is no column "{theirs}"{nearest(theirs, row)}')
            out[ours] = row[theirs]
        rows.append(parse_point(_in_time(out, clock_hz, place), place))
    return ExternalTable(path, tuple(rows), ())


def from_scale_sim(
    report: Path, topology: Path, device: str, clock_hz: float, constants: Mapping[str, str]
) -> ExternalTable:
    """SCALE-Sim's COMPUTE_REPORT.csv with the GEMM topology it ran (Layer, M, N, K), joined by
    layer.

    M are the tokens, N the output and K the input width. A layer whose name is followed by "@" and
    anything keeps the name in front as its operator; names may also be "gemm".
    """
    layers = [
        (row["Layer"], row["M"], row["N"], row["K"])
        for _, row in _rows(topology, ("Layer", "M", "N", "K"))
    ]
    points = []
    for line, row in _rows(report, ("LayerID", "Total Cycles")):
        place = f"{report}:{line}"
        index = _index(row["LayerID"])
        if not 0 <= index < len(layers):
            raise InputError(
                f"{place}: LayerID is {shown(row['LayerID'])}, but {topology} has {len(layers)} "
                "layers"
            )
        name, m, n, k = layers[index]
        out = {
            **constants,
            "operator": name.split("@")[0],
            "device": device,
            "tokens": m,
            "n": n,
            "k": k,
        }
        points.append(
            parse_point(_in_time({**out, CYCLES: row["Total Cycles"]}, clock_hz, place), place)
        )
    return ExternalTable(report, tuple(points), ())


def _index(cell: str) -> int:
    """A layer's number, as "3" or "3.0"; -1 for anything else."""
    try:
        number = float(cell)
    except ValueError:
        return -1
    return int(number) if number.is_integer() and abs(number) < MAX_LAYERS else -1


def write_table(tables: Sequence[ExternalTable], path: Path) -> int:
    """Writes the rows as one CSV of the contract; returns how many."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    points = [point for table in tables for point in table.points]
    shape = [name for name in FIELDS[2:12] if any(name in point.shape for point in points)]
    writer.writerow(["operator", "device", *shape, "latency_us", "energy_uj", "confidence", "kind"])
    for point in points:
        counts = [point.shape.get(name, "") for name in shape]
        energy = "" if point.energy_uj is None else f"{point.energy_uj:.9g}"
        end = [f"{point.latency_us:.9g}", energy, f"{point.confidence:g}", point.kind]
        writer.writerow([point.operator, point.device, *counts, *end])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})", file=str(path)) from None
    return len(read_external(path).points)


def _in_time(row: dict[str, Any], clock_hz: float, place: str) -> dict[str, Any]:
    if CYCLES not in row:
        return row
    if clock_hz <= 0:
        raise InputError(f"{place}: latencies are cycles; give the clock (--clock-ghz)")
    cycles = row.pop(CYCLES)
    try:
        return {**row, "latency_us": float(cycles) / clock_hz * 1e6}
    except ValueError:
        raise InputError(f'{place}: {CYCLES} is "{cycles}", not a number') from None


def _rows(path: Path, needed: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True)
    rows = []
    while (row := _next_row(reader, path)) is not None:
        clean = {
            (name or "").strip(): (cell or "").strip()
            for name, cell in row.items()
            if not isinstance(cell, list)
        }
        for name in needed:
            if not clean.get(name):
                raise InputError(
                    f'{path}:{reader.line_num}: there is no "{name}"{nearest(name, clean)}',
                    file=str(path),
                )
        if any(clean.values()):
            rows.append((reader.line_num, clean))
    return rows


def _next_row(reader: csv.DictReader[str], path: Path) -> dict[str, Any] | None:
    """The next row, None at the end; InputError for what is not CSV."""
    try:
        return next(reader, None)
    except csv.Error as error:
        place = f"{path}:{reader.reader.line_num}"
        raise InputError(f"{place}: not CSV ({error}); write comma-separated values") from None
