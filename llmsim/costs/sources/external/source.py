"""Cost source: tables of external simulators, interpolated in utilisation
(docs/how-to/external_simulators.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import Provenance, UInt8
from llmsim.costs.hardware_limits import PeakRates, own_peak_rates_of
from llmsim.costs.interpolation_grid import geometric_axis
from llmsim.costs.source import (
    AttentionCost,
    CostRequest,
    CostSource,
    Curve,
    SplitAttention,
    SplitGrid,
    to_ps,
)
from llmsim.costs.sources.external.checks import (
    faster_than_light,
    feature_of,
    once,
    same_heads,
    same_matrix,
    unused_rows,
)
from llmsim.costs.sources.external.interpolation import interpolate
from llmsim.costs.sources.external.table import ATTENTION, LEAST_US, ExternalTable, Point
from llmsim.costs.sources.roofline import RooflineSource
from llmsim.model import Embedding, Gemm
from llmsim.model.hardware import same_device
from llmsim.plurals import counted

if TYPE_CHECKING:
    from llmsim.model import Attention, Operator

Floats = NDArray[np.float64]

UNKNOWN = PeakRates(10**12, 0, {"bf16": 10**14})
"""Peaks of a device without data sheet: utilisation is then relative to them, which cancels at
equal shapes.
"""


class ExternalSource(CostSource):
    """Times from the rows that are for this device, layout and head shape."""

    name = "external"
    kind = "external"
    prices_collectives = True

    def __init__(self, request: CostRequest, tables: Sequence[ExternalTable]) -> None:
        self._request = request
        self._peak_rates = own_peak_rates_of(request) or UNKNOWN
        self._notes: list[str] = []
        self._points = [point for table in tables for point in table.points if self._is_ours(point)]
        self._label = " and ".join(f"cost table {table.path}" for table in tables)
        if not self._points:
            raise self._none_is_ours(tables)
        for table in tables:
            if table.ignored:
                self._notes.append(
                    f"{table.path}: columns that the contract does not know: "
                    f"{', '.join(table.ignored)}"
                )
            self._notes += unused_rows(table, filter(self._is_ours, table.points), request)
        self._notes += faster_than_light(self._label, self._points, request)

    def _none_is_ours(self, tables: Sequence[ExternalTable]) -> InputError:
        """Whose the rows are, where none is for this device and layout."""
        points = [point for table in tables for point in table.points]
        known = sorted({point.device for point in points if point.device})
        return InputError(
            f"{self._label}: none of the {counted(len(points), 'row')} is for the device "
            f'"{self._request.hardware_name}" with tp {self._request.layout.tp}; '
            f"they are for {', '.join(known) or 'other layouts'}"
        )

    def _is_ours(self, point: Point) -> bool:
        if point.device and not same_device(point.device, self._request.hardware_name):
            return False
        return point.get("tp", self._request.layout.tp) == self._request.layout.tp

    def operator(self, op: Operator, last: int) -> Curve | None:
        """Rows of its name, else of matrices of any shape; None when there are neither."""
        feature = feature_of(op)
        named = self._rows_of(op, feature)
        counts = np.arange(last + 1, dtype=np.float64)
        if named:
            at = [[p.get(feature)] for p in named]
            return self._curve(op, named, counts, at, counts[:, None])
        if not isinstance(op, Gemm):
            return None
        gemms = [p for p in self._points if p.operator == "gemm"]
        return self._of_matrices(op, gemms, counts) if gemms else None

    def _rows_of(self, op: Operator, feature: str) -> list[Point]:
        of_name = [p for p in self._points if p.operator == op.name]
        return [p for p in of_name if feature in p.shape and same_matrix(p, op)]

    def _of_matrices(self, op: Gemm, gemms: list[Point], counts: Floats) -> Curve:
        """Rows of the operator's own shape, else all, of which it is a point between."""
        own = [p for p in gemms if (p.get("n"), p.get("k")) == (op.gemm_n, op.gemm_k)]
        if own:
            return self._curve(op, own, counts, [[p.get("tokens")] for p in own], counts[:, None])
        shapes = [[p.get("tokens"), p.get("n"), p.get("k")] for p in gemms]
        at = np.stack(
            [counts, np.full_like(counts, op.gemm_n), np.full_like(counts, op.gemm_k)], axis=1
        )
        return self._curve(
            op, gemms, counts, shapes, at, f", n={op.gemm_n} k={op.gemm_k} from other shapes"
        )

    def _curve(
        self,
        op: Operator,
        points: list[Point],
        counts: Floats,
        shapes: list[list[int]],
        at: Floats,
        how: str = "",
    ) -> Curve:
        points, shapes = once(points, shapes)
        peak_rates = np.array(
            [
                self._gemm_us(point)
                if point.operator == "gemm"
                else self._lower_bound_us(op, shape[0])
                for point, shape in zip(points, shapes, strict=True)
            ]
        )
        measured = np.array([max(p.latency_us, 1e-6) for p in points])
        used, marks = interpolate(np.array(shapes, dtype=np.float64), peak_rates / measured, at)
        ps = to_ps(np.array([self._lower_bound_us(op, count) for count in counts]) / used)
        ps[0] = 0
        return Curve(
            ps,
            self._marks(points, marks),
            self._source(points) + how,
            _power_uw(points, shapes, at),
        )

    def _lower_bound_us(self, op: Operator, count: float) -> float:
        """What the data sheet allows at a count; never 0, so that utilisation has a meaning."""
        moved = count * (op.read_bytes_per_token + op.write_bytes_per_token) + op.weight_bytes * (
            not isinstance(op, Embedding)
        )
        peak = self._peak_rates.peak(op.weight_dtype or self._request.dtypes.activation)
        compute = count * op.flops_per_token / peak if peak else 0.0
        return (
            float(max(moved / self._peak_rates.memory_bandwidth_bytes_per_s, compute, 1e-9)) * 1e6
        )

    def _gemm_us(self, point: Point) -> float:
        m, n, k = (point.get(name) for name in ("tokens", "n", "k"))
        peak = self._peak_rates.peak(self._request.dtypes.weight)
        compute = 2.0 * m * n * k / peak if peak else 0.0
        return (
            float(
                max(
                    2.0 * (n * k + m * (n + k)) / self._peak_rates.memory_bandwidth_bytes_per_s,
                    compute,
                    1e-9,
                )
            )
            * 1e6
        )

    def attention(self, op: Attention) -> AttentionCost | None:
        """From "prefill" and "decode" rows; where one phase has none (a decode-only device), the
        roofline has it.
        """
        rows = {
            phase: [p for p in self._points if p.operator == phase and same_heads(p, op)]
            for phase in ATTENTION
        }
        if not rows["prefill"] and not rows["decode"]:
            return None
        q_axis = geometric_axis(1, self._request.table_tokens, 8)
        k_axis = np.insert(geometric_axis(1, self._request.max_model_len, 4), 0, 0)
        n_axis = geometric_axis(1, self._request.table_sequences, 4)
        kv_axis = geometric_axis(1, self._request.max_model_len, 4)
        shared_ppm, on_latents = None, None  # the cost table does not say
        spare = self._spare(op) if not (rows["prefill"] and rows["decode"]) else None
        if rows["prefill"]:
            prefill_ps, prefill_marks = self._grid(
                op, rows["prefill"], q_axis, k_axis, ("new_tokens", "cached_tokens")
            )
        else:
            assert spare is not None
            q_axis, k_axis = spare.q_axis, spare.k_axis
            prefill_ps, prefill_marks = spare.prefill_ps, spare.prefill_provenance
            shared_ppm, on_latents = spare.shared_ppm, spare.on_latents
        if rows["decode"]:
            decode_ps, decode_marks = self._grid(
                op, rows["decode"], n_axis, kv_axis, ("sequences", "cached_tokens")
            )
        else:
            assert spare is not None
            n_axis, kv_axis = spare.n_axis, spare.kv_axis
            decode_ps, decode_marks = spare.decode_ps, spare.decode_provenance
        split = SplitGrid(
            q_axis, k_axis, prefill_ps, prefill_marks,
            n_axis, kv_axis, decode_ps, decode_marks, 0, shared_ppm, on_latents,
        )  # fmt: skip
        source = self._source([*rows["prefill"], *rows["decode"]])
        cost = SplitAttention(
            repeat=op.repeat,
            grid=split,
            skew_ps_per_token_q20=0,
            source=source,
            skew_source="none: the cost table does not say",
        )
        return replace(cost, power_uw=_mean_power_uw([*rows["prefill"], *rows["decode"]]))

    def _grid(
        self,
        op: Attention,
        points: list[Point],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        names: tuple[str, str],
    ) -> tuple[NDArray[np.int64], UInt8]:
        decode = names[0] == "sequences"
        points, rows_of = once(points, [[p.get(name) for name in names] for p in points])
        shapes = np.array(rows_of, dtype=np.float64)
        a, b = np.meshgrid(rows.astype(np.float64), columns.astype(np.float64), indexing="ij")
        at = np.stack([a.ravel(), b.ravel()], axis=1)
        peak_rates = self._attention_us(op, shapes, decode=decode)
        measured = np.array([max(p.latency_us, 1e-6) for p in points])
        used, marks = interpolate(shapes, peak_rates / measured, at)
        us = self._attention_us(op, at, decode=decode) / used
        return to_ps(us.reshape(a.shape)), self._marks(points, marks).reshape(a.shape)

    def _attention_us(self, op: Attention, shapes: Floats, *, decode: bool) -> Floats:
        first, cached = shapes[:, 0], shapes[:, 1]
        pairs = first * (cached + 1) if decode else first * cached + first * (first + 1) / 2
        tokens = first * (cached + 1) if decode else cached + first
        flops = (op.decode_flops_per_context_token if decode else 0) or op.flops_per_context_token
        peak = self._peak_rates.peak(self._request.dtypes.activation)
        compute = pairs * flops / peak if peak else np.zeros_like(pairs)
        memory = (
            tokens * op.kv_bytes_per_context_token / self._peak_rates.memory_bandwidth_bytes_per_s
        )
        return np.asarray(np.maximum(np.maximum(memory, compute), 1e-9) * 1e6)

    def _spare(self, op: Attention) -> SplitGrid:
        if own_peak_rates_of(self._request) is None:
            raise InputError(
                f"{self._label}: attention needs rows of both phases, prefill and decode, or a "
                "data sheet of"
                f' "{self._request.hardware_name}" for the one that is missing'
            )
        self._notes.append(
            f"{self._label}: only one phase of {op.name} is in the table; the data sheet has the "
            "other"
        )
        return RooflineSource(self._request).attention(op).grid

    def _marks(self, points: list[Point], marks: UInt8) -> UInt8:
        """A simulator's point is computed, not measured."""
        computed = any(point.kind != "measured" for point in points)
        return np.full_like(marks, Provenance.ANALYTIC) if computed else marks

    def _source(self, points: list[Point]) -> str:
        kinds = "/".join(sorted({point.kind for point in points}))
        least = min(point.confidence for point in points)
        return f"{self._label} ({kinds}" + (f", confidence {least:g})" if least < 1 else ")")

    def notes(self) -> list[str]:
        """What was left out or filled in."""
        return self._notes


UW_PER_W = 1_000_000


def _power_uw(points: list[Point], shapes: list[list[int]], at: Floats) -> NDArray[np.int64] | None:
    """Microwatts at each count, between the rows as their times are; None unless all rows have an
    energy.
    """
    if any(point.energy_uj is None for point in points):
        return None
    watts = np.array([_watts(point) for point in points])
    between, _ = interpolate(np.array(shapes, dtype=np.float64), watts, at)
    return np.floor(between * UW_PER_W + 0.5).astype(np.int64)


def _mean_power_uw(points: list[Point]) -> int:
    """Of all rows, by their time; 0 unless all have an energy."""
    if any(point.energy_uj is None for point in points):
        return 0
    energy_uj = sum(point.energy_uj or 0.0 for point in points)
    return round(energy_uj / max(sum(point.latency_us for point in points), LEAST_US) * UW_PER_W)


def _watts(point: Point) -> float:
    """Mean power of a row: microjoules over microseconds. Never 0, which could not be
    interpolated.
    """
    return max((point.energy_uj or 0.0) / max(point.latency_us, LEAST_US), 1e-6)
