"""Grouped-expert times from the silicon database: the model's own shape where measured, else the
nearest one scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.source import CostRequest, Curve, to_ps
from llmsim.costs.sources.silicon.database import TablePath, distinct_rows, read_columns

if TYPE_CHECKING:
    from llmsim.model import Moe, Operator

Floats = NDArray[np.float64]
Columns = dict[str, NDArray[np.generic]]

COLUMNS = [
    "moe_dtype",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "distribution",
    "kernel_source",
    "latency",
]
SHAPE = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
IN_TURN = "balanced"
"""The distribution of rows whose tokens chose all experts in turn: sixteen tokens with eight
experts each touch all of 128, where random choices touch 82.
"""
DISTRIBUTIONS = {
    "balanced": (IN_TURN, "power_law_1.01", "power_law_1.2"),
    "power_law": ("power_law_1.2", "power_law_1.01", IN_TURN),
}
"""Expert routing asked for -> the tables' distributions, nearest first. Real routers load experts
unevenly.
"""
MOE_DTYPES = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8_block", "fp8"),
    "int8": (),
    "fp32": (),
    "fp4": ("w4a16_mxfp4", "nvfp4"),
    "int4": ("int4_wo",),
}


FIXED_SCALES = "modelopt"
"""What names of kernels hold that were measured with scales of inputs from a checkpoint. On Hopper
they are a kernel of FlashInfer's that takes up to four times as long as that of wide experts; vLLM
0.24 runs Triton's where steps find the scales (recorded in `evaluation/recorded`).
"""
WEIGHT_ONLY = {"fp4": "int4_wo"}
"""Weights of 4 bits that a card without such units widens in the kernel, by the measured kernel of
the same kind: vLLM runs MXFP4 experts on it with Marlin (log in its issue 23278), which is also the
kernel of the int4 rows.
"""


CERTAIN_DEVIATIONS = 6.0
"""Standard deviations beyond which a tile is full, or not begun, for certain."""
LEAST_TILE_ROWS = 16
MOST_TILE_ROWS = {"fp8_block": 64, "int4_wo": 64}
MOST_TILE_ROWS_ELSE = 128
"""Rows of one expert that a thread block multiplies at most, by the tables' dtype, and for others.
vLLM 0.24's tuned files of at least 64 experts on Hopper have 128 rows from 1,536 tokens on in bf16
(18 of 30 files, 27 of 30 at 4,096) and with one scale of fp8 (11 of 13), 64 with blocks of scales
(10 of 11). Marlin, the kernel of 4-bit weights, has 64 at most. Fewer rows for each expert take smaller tiles, of 16 at least.
"""
GATED, PLAIN = 3, 2
"""Matrices of one expert: gate, up and down, or up and down alone."""
MEASURED_PLAIN = {(1856, 6, 128), (2688, 22, 512), (5120, 22, 512)}
"""(width, top-k, experts) of the rows that were measured without a gate: the Nemotron 3 models'.
The tables do not say so, but with a third matrix the first would have read its weights at 4.5 TB/s
from an H100's memory of 3.35.
"""


@dataclass(frozen=True)
class MoeShape:
    """Shape of one measured series: whole-model sizes, and how they were split."""

    hidden: int
    inter: int
    topk: int
    experts: int
    tp: int
    ep: int
    matrices: int = GATED

    def touched(self, tokens: Floats) -> Floats:
        """Experts of one rank that tokens which choose at random touch, by expectation."""
        return self.experts / self.ep * (1.0 - (1.0 - self.topk / self.experts) ** tokens)

    def touched_in_turn(self, tokens: Floats) -> Floats:
        """Those that tokens touch whose choices take all experts in turn, as "balanced" rows were
        measured.
        """
        return np.minimum(self.experts, tokens * self.topk) / self.ep

    def padded_rows(self, tokens: Floats, most_tile_rows: int) -> Floats:
        """Rows that one rank multiplies for tokens which choose at random, by expectation: the rows
        of each expert fill whole tiles. With R rows of T an expert needs as many tiles as there are
        j >= 0 with R > j T. R is binomial; beyond the first tile it is taken as normal.
        """
        share = self.topk / self.experts
        mean, tile = tokens * share, self._tile(tokens, most_tile_rows)
        deviation = np.sqrt(np.maximum(mean * (1.0 - share), 1e-12))
        certain = np.maximum(np.floor((mean - CERTAIN_DEVIATIONS * deviation) / tile), 0.0)
        uncertain = np.ceil(2 * CERTAIN_DEVIATIONS * deviation / tile).max(initial=0.0)
        first = 1.0 - (1.0 - share) ** tokens
        tiles = np.maximum(certain, first)
        for beyond in range(1, int(uncertain) + 2):
            full = np.maximum(certain, 1.0) + beyond - 1.0
            tiles = tiles + normal_share_below((mean - full * tile - 0.5) / deviation)
        return self.experts / self.ep * tiles * tile

    def padded_rows_in_turn(self, tokens: Floats, most_tile_rows: int) -> Floats:
        """Those of tokens whose choices take all experts in turn."""
        pairs, tile = tokens * self.topk, self._tile(tokens, most_tile_rows)
        touched = np.minimum(self.experts, pairs)
        rows = pairs / np.maximum(touched, 1.0)
        return touched / self.ep * np.ceil(rows / tile) * tile

    def _tile(self, tokens: Floats, most: int) -> Floats:
        """Rows of a tile: the power of two that holds the mean rows of an expert, within limits."""
        mean = np.maximum(tokens * self.topk / self.experts, 1.0)
        return np.clip(2.0 ** np.ceil(np.log2(mean)), LEAST_TILE_ROWS, most)

    def work(
        self,
        rows: Floats,
        touched: Floats,
        element_bytes: float,
        peak: float,
        bandwidth: float,
    ) -> Floats:
        """Roofline microseconds on one rank: weights of the touched experts, flops of the rows that
        they multiply.
        """
        inter = self.inter / self.tp
        weight_bytes = touched * self.matrices * self.hidden * inter * element_bytes
        flops = rows * 2 * self.matrices * self.hidden * inter
        return np.asarray(np.maximum(weight_bytes / bandwidth, flops / peak if peak else 0.0) * 1e6)


def moe_curve(
    tables: list[TablePath],
    op: Moe,
    request: CostRequest,
    peak_rates: PeakRates,
    element_bytes: float,
    last: int,
) -> Curve | None:
    """Times for 1..last tokens; None when no table has experts of the weight dtype.

    The model's own shape is interpolated linearly over tokens. Otherwise the nearest measured shape
    (fewest doublings over all six sizes) is scaled by the ratio of the two rooflines, token count
    by token count.
    """
    wanted = wanted_shape(op, request)
    for dtype in _dtypes_in_order(op, request):
        for table in tables:
            rows = read_columns(table.path, COLUMNS)
            keep = rows["moe_dtype"] == dtype
            if _finds_scales(op, request) and "kernel_source" in rows:
                keep &= _without_fixed_scales(rows)
            if bool(keep.any()):
                rows = {name: column[keep] for name, column in rows.items()}
                rows = _by_routing(rows, _measured_routing(op, request))
                label = f"{table.label} {dtype}"
                return _from_rows(rows, wanted, op, request, peak_rates, element_bytes, last, label)
    return None


def _finds_scales(op: Moe, request: CostRequest) -> bool:
    """Whether steps find the scales of the experts' inputs, which the checkpoint does not state."""
    return op.weight_dtype == "fp8" and not request.model.fixed_input_scales


def _without_fixed_scales(rows: Columns) -> NDArray[np.bool_]:
    """Which rows are of kernels that a model runs whose steps find the scales."""
    kernels = rows["kernel_source"].tolist()
    others = {kernel for kernel in set(kernels) if FIXED_SCALES not in str(kernel)}
    return np.array([kernel in others for kernel in kernels])


def _dtypes_in_order(op: Moe, request: CostRequest) -> list[str]:
    """The tables' names of a dtype, the likeliest first, and what stands in for it last.

    Kernels of blocks of fp8 find the scales of each token's inputs, as those of experts with a
    scale for each token do.
    """
    names = MOE_DTYPES.get(op.weight_dtype, ())
    blocks = request.model.weight_block is not None or _finds_scales(op, request)
    ordered = list(names if blocks else reversed(names))
    stand_in = WEIGHT_ONLY.get(op.weight_dtype) if request.weight_only_experts else None
    return ordered if stand_in is None else [*ordered, stand_in]


def _measured_routing(op: Moe, request: CostRequest) -> str:
    """Uneven loads that were measured are used where one rank has all experts; across ranks loads
    are drawn.
    """
    alone = op.experts_local == op.experts_total
    return "power_law" if alone and request.expert_routing.name == "POWER_LAW" else "balanced"


def _by_routing(rows: Columns, routing: str) -> Columns:
    """The rows of the nearest distribution that each shape was measured with."""
    shapes = np.stack([rows[name].astype(np.int64) for name in SHAPE], axis=1)
    _, owner = distinct_rows(shapes)
    order = {name: rank for rank, name in enumerate(DISTRIBUTIONS[routing])}
    rank = np.array([order.get(str(name), len(order)) for name in rows["distribution"]])
    best = np.full(owner.max(initial=0) + 1, len(order))
    np.minimum.at(best, owner, rank)
    keep = rank == best[owner]
    return {name: column[keep] for name, column in rows.items()}


def wanted_shape(op: Moe, request: CostRequest) -> MoeShape:
    """The operator's shape in the table's terms."""
    ep = max(1, op.experts_total // max(op.experts_local, 1))
    tp = max(1, request.layout.expert_ranks // ep)
    matrices = GATED if request.model.mlp_gated else PLAIN
    return MoeShape(op.hidden, op.moe_inter * tp, op.topk, op.experts_total, tp, ep, matrices)


def _measured(hidden: int, inter: int, topk: int, experts: int, tp: int, ep: int) -> MoeShape:
    plain = (inter, topk, experts) in MEASURED_PLAIN
    return MoeShape(hidden, inter, topk, experts, tp, ep, PLAIN if plain else GATED)


def _from_rows(
    rows: Columns,
    wanted: MoeShape,
    op: Operator,
    request: CostRequest,
    peak_rates: PeakRates,
    element_bytes: float,
    last: int,
    label: str,
) -> Curve:
    table = np.stack([rows[name].astype(np.int64) for name in SHAPE], axis=1)
    shapes = [_measured(*(int(value) for value in row)) for row in distinct_rows(table)[0]]
    shape = min(shapes, key=lambda candidate: (_distance(candidate, wanted), str(candidate)))
    keep = np.all(
        table
        == np.array([shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep]),
        axis=1,
    )
    distribution = str(rows["distribution"][keep][0])
    keep &= rows["distribution"] == distribution
    points, owner = np.unique(rows["num_tokens"][keep].astype(np.float64), return_inverse=True)
    measured = np.full(len(points), np.inf)
    np.minimum.at(measured, owner, rows["latency"][keep].astype(np.float64) * 1e3)
    counts = np.arange(last + 1, dtype=np.float64)
    times = _along(points, measured, counts)
    marks = np.where(np.isin(counts, points), Provenance.MEASURED, Provenance.INTERPOLATED)
    marks = np.where(counts > points[-1], Provenance.EXTRAPOLATED, marks)
    label += f", {distribution} routing"
    peak, bandwidth = peak_rates.peak(op.weight_dtype), peak_rates.memory_bandwidth_bytes_per_s

    tile_rows = MOST_TILE_ROWS.get(str(rows["moe_dtype"][0]), MOST_TILE_ROWS_ELSE)

    def work(of: MoeShape, rows: Floats, touched: Floats) -> Floats:
        return of.work(rows, touched, element_bytes, peak, bandwidth)

    def at_random(of: MoeShape) -> Floats:
        return work(of, of.padded_rows(counts, tile_rows), of.touched(counts))

    if distribution == IN_TURN and request.touched_experts:
        touched = shape.touched_in_turn(points)
        in_turn = work(shape, shape.padded_rows_in_turn(points, tile_rows), touched)
        times = times * _ratio(at_random(shape), _along(points, in_turn, counts))
        label += ", of the experts that random choices touch"
    if shape != wanted:
        times = times * _ratio(at_random(wanted), at_random(shape))
        marks = np.full_like(marks, Provenance.SCALED)
        label += f", scaled from {shape}"
    ps = to_ps(times)
    ps[0] = 0
    return Curve(ps, marks.astype(np.uint8), label)


def _along(points: Floats, values: Floats, counts: Floats) -> Floats:
    """Values between points by lines, and beyond the last one at the slope of the last two."""
    along = np.interp(counts, points, values)
    if len(points) < 2:
        return along
    slope = max(0.0, (values[-1] - values[-2]) / (points[-1] - points[-2]))
    return np.asarray(along + slope * np.maximum(counts - points[-1], 0.0))


def _ratio(own: Floats, other: Floats) -> Floats:
    return np.divide(own, other, out=np.ones_like(own), where=other > 0)


def normal_share_below(deviations: Floats) -> Floats:
    """The standard normal distribution function, within 1e-7 (Abramowitz and Stegun 26.2.17)."""
    away = np.abs(deviations)
    t = 1.0 / (1.0 + 0.2316419 * away)
    series = t * (
        0.319381530
        + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    above = np.exp(-0.5 * away * away) / np.sqrt(2.0 * np.pi) * series
    return np.asarray(np.where(deviations < 0.0, above, 1.0 - above))


def _distance(shape: MoeShape, wanted: MoeShape) -> float:
    """Doublings between two shapes, per-rank sizes; the expert count and the split weigh as much as
    the widths.
    """
    pairs = (
        (shape.hidden, wanted.hidden),
        (shape.inter / shape.tp, wanted.inter / wanted.tp),
        (shape.topk, wanted.topk),
        (shape.experts, wanted.experts),
        (shape.ep, wanted.ep),
    )
    away = sum(abs(float(np.log2(a / b))) for a, b in pairs)
    return away + (0.01 if shape.tp != wanted.tp else 0.0)
