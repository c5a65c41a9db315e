"""Attention of an older-generation bundle: published predictions or measured rows, completed to two
regular grids.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.config.files import input_files
from llmsim.core import Int64, Provenance, UInt8
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.interpolation_grid import geometric_axis
from llmsim.costs.source import CostRequest, SplitGrid, to_ps
from llmsim.costs.sources.bundle.files import BundleFiles
from llmsim.costs.sources.bundle.grid_completion import fill_line_axis
from llmsim.costs.sources.csv_tables import Table, read_table, read_text, refuse_duplicates

if TYPE_CHECKING:
    from llmsim.model import Attention

Floats = NDArray[np.float64]
NS_PER_US = 1000.0
US_PER_MS = 1000.0
PREFILL_PREDICTIONS = "predictions/attn_prefill_predictions.csv"
DECODE_PREDICTIONS = "predictions/attn_decode_predictions.csv"
SIZES = ("batch_size", "prefill_chunk_size", "kv_cache_size")
PHASE_MS = {phase: f"time_stats.attn_{phase}.median" for phase in ("prefill", "decode")}
MEDIAN_NS = "p50_ns"
"""attention.csv has a column per phase, or this one for both."""
DISAGREE = 1.5
"""Predictions further than this from the measured rows of the same folder are worth a note."""


class Points(Struct, frozen=True, eq=False):
    """Scattered times over two axes: (new tokens, cached tokens) or (sequences, cached tokens);
    microseconds.
    """

    first: Floats
    second: Floats
    us: Floats
    provenance: Provenance


class OlderAttention(Struct, frozen=True, eq=False):
    """Complete grids, microseconds, and what the user should know."""

    path: Path
    decodes: Points
    """The decode rows as published, before anything was completed."""
    q: Int64
    k: Int64
    prefill_us: Floats
    prefill_marks: UInt8
    n: Int64
    kv: Int64
    decode_us: Floats
    decode_marks: UInt8
    notes: list[str] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        """Whether the decode rows are measurements."""
        return self.decodes.provenance == Provenance.MEASURED

    def grid(self, mixed_decode_ps_per_kv_token_q20: int) -> SplitGrid:
        """The form that the core reads."""
        prefill, decode = to_ps(self.prefill_us), to_ps(self.decode_us)
        marks = (self.prefill_marks, self.decode_marks)
        return SplitGrid(
            self.q,
            self.k,
            prefill,
            marks[0],
            self.n,
            self.kv,
            decode,
            marks[1],
            mixed_decode_ps_per_kv_token_q20,
        )


def read_older_attention(
    files: BundleFiles, request: CostRequest, op: Attention, fresh: tuple[Floats, Floats] | None
) -> OlderAttention:
    """The best of what the folder has; `fresh` are the `attn` rows of layers.csv (tokens, us of an
    empty cache).

    Predictions come first: they are what the profile's own simulator charges. They stem from a
    regressor that is constant outside its training data, so an unchanging tail is cut off and
    continued by the attended area instead.
    """
    measured_path = files.folder / "attention.csv"
    measured = _measured(measured_path, request) if input_files.is_file(measured_path) else None
    predicted = _predicted(files.folder)
    notes: list[str] = []
    if predicted is not None:
        path = files.folder / PREFILL_PREDICTIONS
        prefill, decode = predicted
        if measured is not None:
            notes += _disagreements(path.parent, predicted, measured)
    elif measured is not None:
        path, (prefill, decode) = measured_path, measured
        prefill, counted = _without_own_tokens(prefill)
        if counted:
            notes.append(
                f"{path}: kv_cache_size of its prefills counts the chunk itself (no row has "
                "less); taken off"
            )
    elif fresh is not None:
        path = files.folder / "layers.csv"
        prefill, decode = _from_fresh(fresh)
        notes.append(
            f"{path.parent} has neither predictions nor attention.csv: decodes cost as the attn "
            "rows scaled"
        )
    else:
        raise InputError(
            f"{files.folder}: no predictions, no attention.csv and no attn rows in layers.csv; "
            "add one"
        )
    q, k, prefill_us, prefill_marks = complete_points(
        prefill, request.table_tokens, request.max_model_len, causal=True
    )
    n, kv, decode_us, decode_marks = complete_points(
        decode, request.table_sequences, request.max_model_len, causal=False
    )
    if predicted is not None:
        context = np.multiply.outer(n, kv).astype(np.float64)
        notes += _raise_to_lower_bound(path.parent, request, op, context, decode_us, decode_marks)
    return OlderAttention(
        path, decode, q, k, prefill_us, prefill_marks, n, kv, decode_us, decode_marks, notes
    )


def _predicted(folder: Path) -> tuple[Points, Points] | None:
    paths = (folder / PREFILL_PREDICTIONS, folder / DECODE_PREDICTIONS)
    there = [path for path in paths if input_files.is_file(path)]
    if not there:
        return None
    if len(there) == 1:
        lacking = next(path for path in paths if path not in there)
        raise InputError(
            f"{lacking} is missing beside {there[0].name}; add it, or remove the folder predictions"
        )
    points = []
    for path, first in zip(paths, ("prefill_chunk_size", "batch_size"), strict=True):
        table = read_table(path, text=(), numbers=(first, "kv_cache_size", "prediction"))
        column = table.number
        refuse_duplicates(table, [column[first].tolist(), column["kv_cache_size"].tolist()])
        _refuse_none(table, first, np.arange(len(table)))
        points.append(
            Points(
                column[first],
                column["kv_cache_size"],
                column["prediction"] / NS_PER_US,
                Provenance.INTERPOLATED,
            )
        )
    return points[0], points[1]


def _refuse_none(table: Table, name: str, rows: Int64) -> None:
    """Raises InputError for a row that counts no sequence or no token, whose time says nothing."""
    empty = rows[table.number[name][rows] < 1]
    if len(empty):
        line, value = int(table.line[empty[0]]), table.number[name][empty[0]]
        raise InputError(f"{table.path}:{line}: {name} is {value:g}; it must be at least 1")


def _measured(path: Path, request: CostRequest) -> tuple[Points, Points]:
    """Medians of the rows of this shape, in either form of the file."""
    first_line = read_text(path).partition("\n")[0]
    in_ns = MEDIAN_NS in [name.strip() for name in first_line.split(",")]
    table, mine = _rows_in_ns(path) if in_ns else _rows_of_shape(path, request)
    column = table.number
    is_prefill = np.array(
        [cell.strip().lower() in ("true", "1") for cell in table.text["is_prefill"]]
    )
    points = []
    for phase, first in (("prefill", "prefill_chunk_size"), ("decode", "batch_size")):
        rows = np.flatnonzero(mine & (is_prefill == (phase == "prefill")))
        if not len(rows):
            raise InputError(
                f"{path}: there is no {phase} row (is_prefill {phase == 'prefill'}); profile "
                "that phase",
                file=str(path),
            )
        _refuse_none(table, first, rows)
        us = column[MEDIAN_NS][rows] / NS_PER_US if in_ns else _us_of_phase(table, rows, phase)
        first_of, second_of = column[first][rows], column["kv_cache_size"][rows]
        if phase == "prefill":
            single = column["batch_size"][rows] == 1
            first_of, second_of, us = first_of[single], second_of[single], us[single]
        points.append(_medians(first_of, second_of, us))
    return points[0], points[1]


def _rows_in_ns(path: Path) -> tuple[Table, NDArray[np.bool_]]:
    """A file with one time per row, nanoseconds, of the model and the degree that its
    folder names.
    """
    table = read_table(path, text=("is_prefill",), numbers=(*SIZES, MEDIAN_NS))
    return table, np.ones(len(table.line), dtype=np.bool_)


def _rows_of_shape(path: Path, request: CostRequest) -> tuple[Table, NDArray[np.bool_]]:
    """A file with a column per phase, milliseconds, blank where a row is of the other one; rows of
    this shape.
    """
    shape = ("n_q_head", "n_kv_head", "num_tensor_parallel_workers")
    table = read_table(path, text=("is_prefill", *PHASE_MS.values()), numbers=(*shape, *SIZES))
    column = table.number
    mine = column["num_tensor_parallel_workers"] == request.layout.tp
    model = request.model
    mine &= (column["n_q_head"] == model.num_attention_heads) & (
        column["n_kv_head"] == model.num_key_value_heads
    )
    if not bool(mine.any()):
        raise InputError(
            f"{path}: no row is of {model.num_attention_heads} query and "
            f"{model.num_key_value_heads} KV heads at {request.layout.tp} tensor-parallel workers, "
            f"the shape of {model.name}; give the profile of that model",
            file=str(path),
        )
    return table, mine


def _us_of_phase(table: Table, rows: Int64, phase: str) -> Floats:
    cells = table.text[PHASE_MS[phase]]
    ms = [_milliseconds(table.path, int(table.line[row]), cells[row]) for row in rows]
    return np.array(ms) * US_PER_MS


def _milliseconds(path: Path, line: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise InputError(
            f'{path}:{line}: the time is "{cell}", not a number of milliseconds', file=str(path)
        ) from None
    if not 0 <= value < float("inf"):
        raise InputError(
            f"{path}:{line}: the time is {cell} ms; it must be finite and not negative",
            file=str(path),
        )
    return value


def _medians(first: Floats, second: Floats, us: Floats) -> Points:
    """That profiler repeats points (its grids overlap): their median."""
    keys, group = np.unique(np.stack([first, second], axis=1), axis=0, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    cuts = np.cumsum(np.bincount(group.reshape(-1)))[:-1]
    times = np.array([float(np.median(part)) for part in np.split(us[order], cuts)])
    return Points(keys[:, 0], keys[:, 1], times, Provenance.MEASURED)


def _without_own_tokens(prefill: Points) -> tuple[Points, bool]:
    """Cached tokens before the chunk; a profile in which no cache is shorter than its chunk counts
    both together.
    """
    if not bool(np.all(prefill.second >= prefill.first)):
        return prefill, False
    return Points(
        prefill.first, prefill.second - prefill.first, prefill.us, prefill.provenance
    ), True


def _from_fresh(fresh: tuple[Floats, Floats]) -> tuple[Points, Points]:
    """Prefills of an empty cache as they are; one decode row as the same number of attended tokens
    of a prefill.
    """
    tokens, us = fresh
    area = tokens * (tokens + 1) / 2
    per_token = float(np.median(us[-max(1, len(us) // 4) :] / area[-max(1, len(us) // 4) :]))
    contexts = np.maximum(tokens, 1.0)
    base = float(us.min())
    decode = Points(np.ones(len(tokens)), contexts, base + contexts * per_token, Provenance.SCALED)
    return Points(tokens, np.zeros(len(tokens)), us, Provenance.MEASURED), decode


def _disagreements(
    folder: Path, predicted: tuple[Points, Points], measured: tuple[Points, Points]
) -> list[str]:
    """A note for each phase whose predictions are not the measured rows: published profiles carry
    scale factors.
    """
    notes = []
    for phase, ours, theirs in zip(("prefill", "decode"), predicted, measured, strict=True):
        known = {(a, b): t for a, b, t in zip(theirs.first, theirs.second, theirs.us, strict=True)}
        pairs = (
            (t, known.get((a, b), 0.0))
            for a, b, t in zip(ours.first, ours.second, ours.us, strict=True)
        )
        ratios = [t / other for t, other in pairs if other > 0]
        ratio = float(np.median(ratios)) if ratios else 1.0
        if not 1 / DISAGREE < ratio < DISAGREE:
            notes.append(
                f"{folder}: its {phase} predictions are {ratio:.1f} times the rows of "
                f"attention.csv (median over {len(ratios)} common points); the predictions are "
                "used, remove the folder to use the rows"
            )
    return notes


def _raise_to_lower_bound(
    folder: Path,
    request: CostRequest,
    op: Attention,
    context: Floats,
    decode_us: Floats,
    marks: UInt8,
) -> list[str]:
    """Raises decode cells, in place, that could not even read their KV: there the regressor had
    nothing to go by.
    """
    peak_rates = peak_rates_of(request)
    if peak_rates is None:
        return []
    least = peak_rates.kv_us(context * op.kv_bytes_per_context_token)
    fast = decode_us < least
    if not bool(fast.any()):
        return []
    worst = float((least[fast] / np.maximum(decode_us[fast], 1e-9)).max())
    decode_us[fast], marks[fast] = least[fast], Provenance.ANALYTIC
    return [
        f"{folder}: {int(fast.sum())} of {fast.size} cells of the decode predictions are faster "
        f"than the KV can be read (at worst {worst:.0f} times): they are raised to that"
    ]


def complete_points(
    points: Points, last_first: int, last_second: int, *, causal: bool
) -> tuple[Int64, Int64, Floats, UInt8]:
    """A regular grid without holes that reaches `last_first` and `last_second`.

    Holes: linear along the cache, then along the other axis. Beyond the data: in proportion to the
    attended area, q (2 k + q + 1) / 2 for a prefill of q on k, n * kv for decodes, which both bytes
    and operations follow.
    """
    first, second = (
        np.unique(points.first).astype(np.int64),
        np.unique(points.second).astype(np.int64),
    )
    values = np.full((len(first), len(second)), np.nan)
    marks = np.full(values.shape, Provenance.EXTRAPOLATED, dtype=np.uint8)
    cell = (np.searchsorted(first, points.first), np.searchsorted(second, points.second))
    values[cell], marks[cell] = points.us, points.provenance
    fill_line_axis(values, marks, 1, second, outside=False)
    _grow_rows(values, _area(first, second, causal))
    fill_line_axis(values, marks, 0, first, outside=True)
    first, values, marks = _cut_tail(first, values, marks)
    wide_first, wide_second = _reach(first, last_first), _reach(second, last_second)
    area = _area(wide_first, wide_second, causal)
    rows = np.minimum(np.arange(len(wide_first)), len(first) - 1)
    columns = np.minimum(np.arange(len(wide_second)), len(second) - 1)
    at = np.ix_(rows, columns)
    grown = np.maximum(area / area[at], 1.0)
    wide_marks = np.where(grown > 1.0, np.uint8(Provenance.EXTRAPOLATED), marks[at])
    return wide_first, wide_second, values[at] * grown, np.asarray(wide_marks, dtype=np.uint8)


def _grow_rows(values: Floats, area: Floats) -> None:
    """Fills unknown ends of rows in place: before the first known cell as that one, after the last
    by attended area.
    """
    for row, work in zip(values, area, strict=True):
        known = np.flatnonzero(~np.isnan(row))
        if len(known):
            row[: known[0]] = row[known[0]]
            row[known[-1] + 1 :] = row[known[-1]] * work[known[-1] + 1 :] / work[known[-1]]


def _area(first: Int64, second: Int64, causal: bool) -> Floats:
    a, b = np.meshgrid(first.astype(np.float64), second.astype(np.float64), indexing="ij")
    return a * (2 * b + a + 1) / 2 if causal else a * np.maximum(b, 1.0)


def _cut_tail(first: Int64, values: Floats, marks: UInt8) -> tuple[Int64, Floats, UInt8]:
    """Drops trailing rows that repeat the one before: there the regressor had no data. At least one
    row remains.
    """
    end = len(first)
    while end > 1 and np.array_equal(values[end - 1], values[end - 2]):
        end -= 1
    return first[:end], values[:end], marks[:end]


def _reach(axis: Int64, last: int) -> Int64:
    """The axis with points beyond its end up to `last`, and at least two points."""
    end = int(axis[-1])
    if last <= end and len(axis) > 1:
        return axis
    return np.concatenate([axis, geometric_axis(max(end, 1), max(last, end + 1), 4)[1:]])
