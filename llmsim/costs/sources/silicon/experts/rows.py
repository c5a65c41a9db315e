"""Which rows of the silicon database price experts: those of the engine's kernel, and of them only
rows that the memory's bandwidth allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.costs.experts.grouped_work import (
    GATED,
    PLAIN,
    MoeShape,
    tile_rows_of,
)
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.source import CostRequest
from llmsim.costs.sources.silicon.database import TablePath, distinct_rows, read_columns
from llmsim.costs.sources.silicon.experts.tuned import (
    FIRST_TILE_ROWS,
    has_first_tiles,
    timed_with_first_tiles,
    untuned_rows,
)
from llmsim.model import padded_experts

if TYPE_CHECKING:
    from llmsim.model import Moe

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
MODEL_SHAPE = ("hidden_size", "inter_size", "topk", "num_experts")
SHAPE = (*MODEL_SHAPE, "moe_tp_size", "moe_ep_size")
IN_TURN = "balanced"
"""The distribution of rows whose tokens chose all experts in turn: sixteen tokens with eight
experts each touch all of 128, where random choices touch 82.
"""
MILD_POWER_LAW = "power_law_1.01"
POWER_LAWS = {MILD_POWER_LAW: 1.01, "power_law_1.2": 1.2}
"""Distributions of rows whose tokens chose experts of uneven popularity -> the law's exponent."""
MXFP4 = "mxfp4"
"""Experts with a scale for 32 elements of 4 bits, of which the tables have two names."""
MXFP4_INPUTS = {
    "vllm": ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"),
    "sglang": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
}
"""Inputs of 16 bits, or of 8: on Blackwell SGLang narrows them by default, vLLM those of
DeepSeek-V4 alone. Where an engine has both, this order decides between equally near shapes.
"""
MOE_DTYPES = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8_block", "fp8"),
    "int8": (),
    "fp32": (),
    "fp4": (MXFP4, "nvfp4"),
    "int4": ("int4_wo",),
}
"""A type of weights -> the tables' names of it; with blocks of scales the first is the likeliest,
without them the last. Of 4 bits the last has inputs of 4 bits, too.
"""

FIXED_SCALES = "modelopt"
"""What names of kernels hold that were measured with scales of inputs from a checkpoint. On Hopper
they are a kernel of FlashInfer's that takes up to four times as long as that of wide experts; vLLM
0.24 runs Triton's where steps find the scales (recorded in `evaluation/recorded`).
"""
MARLIN = "marlin"
"""What names of kernels hold that widen weights of 4 bits: vLLM runs MXFP4 experts with it on cards
without such units (log in its issue 23278).
"""
MARLIN_MXFP4 = "w4a16_mxfp4"
"""The table's name of MXFP4 experts of which rows on Marlin exist, beside those on other kernels.
"""
WEIGHT_ONLY = {"fp4": "int4_wo"}
"""Weights of 4 bits that are widened in the kernel -> rows of the same kernel with other weights of
4 bits, which stand in where a card's tables have none on Marlin.
"""

WIDE_DTYPES = ("bf16", "fp16")
FIRST_TILES_OF, TRITON = "sglang", "triton"
"""Who measured the first default tiles, and what its kernel is called."""

MEASURED_PLAIN = {(1856, 6, 128), (2688, 22, 512), (5120, 22, 512)}
"""(width, top-k, experts) of the rows that were measured without a gate: the Nemotron 3 models'.
The tables do not say so, but with a third matrix the first would have read its weights at 4.5 TB/s
from an H100's memory of 3.35.
"""

ALL_TOUCHED = (64, 256)
"""Tokens from, and up to which, choices in turn touch every expert and wait for its weights."""
FASTEST_READ = 1.1
"""Share of the memory's bandwidth that rows cannot exceed, with a tenth for its data sheet."""
OF_A_PROMPT = 4096
"""Tokens from which on products decide the time of experts, not the weights that they read."""
SLOWEST_HALF = 2.0**-0.5
"""Share of one rank's time from which on two ranks did not halve the pairs: in the database's
tables those that halved them take at most 0.69 of it, and the others 0.92 to 1.
"""


class ExpertRows(Struct, frozen=True, eq=False):
    """The rows that price an operator, and what they say of themselves."""

    rows: Columns
    wanted: MoeShape
    """The operator's shape, as its kernel multiplies it."""
    nearest: MoeShape
    """The measured shape with the fewest doublings to the wanted one."""
    label: str
    most_tile_rows: int
    """Rows of one expert that a thread block multiplies at most."""
    uneven: Columns
    """Rows of the same kernels whose tokens chose by the mild power law, where measured."""

    def uneven_of(self, shape: MoeShape) -> Columns | None:
        """Uneven rows of a shape whose one rank has all experts: a rank of several has other loads
        than even ones have on it.
        """
        rows = of_shape(self.uneven, shape)
        return rows if shape.ep == 1 and len(rows["latency"]) else None


def expert_rows(
    tables: list[TablePath],
    op: Moe,
    request: CostRequest,
    peak_rates: PeakRates,
    element_bytes: float,
) -> ExpertRows | None:
    """Rows of the engine's kernel, likeliest first; None when no table has experts of the weight
    dtype.
    """
    bytes_per_s = peak_rates.memory_bandwidth_bytes_per_s
    found = chain(
        _with_first_tiles(tables, op, request),
        _of_dtypes(tables, op, request, element_bytes, bytes_per_s),
    )
    return next(found, None)


def _with_first_tiles(
    tables: list[TablePath], op: Moe, request: CostRequest
) -> Iterator[ExpertRows]:
    """SGLang's rows of shapes that it has no tuned file for: the same kernel with the tiles that
    earlier releases of vLLM take by default.
    """
    sheet = request.hardware
    wanted = wanted_shape(op, request)
    if sheet is None or not sheet.silicon_system or not request.default_tiles:
        return
    system, wide = sheet.silicon_system, op.weight_dtype in WIDE_DTYPES
    if not wide or not has_first_tiles(request.engine, system, wanted):
        return
    if any(timed_with_first_tiles(table) for table in tables):  # the engine's own comes first
        return
    for table in (one for one in tables if one.framework == FIRST_TILES_OF):
        rows = read_columns(table.path, COLUMNS)
        kernels = np.array([TRITON in str(kernel) for kernel in rows.get("kernel_source", [])])
        if not len(kernels):
            continue
        rows = _kept(rows, kernels & (rows["moe_dtype"] == MOE_DTYPES[op.weight_dtype][0]))
        rows = _kept(rows, untuned_rows(system, sizes_of(rows)))
        rows = _kept(rows, split_pairs(rows))
        if len(rows["latency"]):
            uneven = _of_mild_power_law(rows)
            rows = _by_routing(rows, _distributions(op, request))
            label = f"{table.label}, default tiles of vLLM {request.engine.vllm}"
            shape = nearest_shape(rows, wanted)
            yield ExpertRows(rows, wanted, shape, label, FIRST_TILE_ROWS, uneven)


def _of_dtypes(
    tables: list[TablePath],
    op: Moe,
    request: CostRequest,
    element_bytes: float,
    bytes_per_s: float,
) -> Iterator[ExpertRows]:
    for name in _dtypes_in_order(op, request):
        on_marlin = op.weight_dtype in WEIGHT_ONLY and name in (
            MARLIN_MXFP4,
            WEIGHT_ONLY[op.weight_dtype],
        )
        wanted = padded_shape(op, request) if on_marlin else wanted_shape(op, request)
        for table in tables:
            rows = read_columns(table.path, COLUMNS)
            dtype = _nearest_inputs(rows, wanted, request) if name == MXFP4 else name
            keep = rows["moe_dtype"] == dtype
            if name == MARLIN_MXFP4:
                keep &= _by_kernel(rows, lambda kernel: MARLIN in kernel)
            if _finds_scales(op, request) and "kernel_source" in rows:
                keep &= _without_fixed_scales(rows)
            if not bool(keep.any()):
                continue
            rows = _kept(rows, keep)
            rows = _kept(rows, split_pairs(rows))
            plausible = touches_all(rows, element_bytes, bytes_per_s)
            label = f"{table.label} {dtype}"
            if bool(plausible.any()):
                rows = _kept(rows, plausible)
            else:
                label += ", whose rows read weights faster than the memory"
            uneven = _of_mild_power_law(rows)
            rows = _by_routing(rows, _distributions(op, request))
            if name == MARLIN_MXFP4:
                label += " on Marlin"
            shape = nearest_shape(rows, wanted)
            kernel = MARLIN if on_marlin else _usual_kernel(rows, shape)
            yield ExpertRows(rows, wanted, shape, label, tile_rows_of(dtype, kernel), uneven)


def _nearest_inputs(rows: Columns, wanted: MoeShape, request: CostRequest) -> str:
    """The table's name of MXFP4 experts with the inputs of the nearest measured shape."""

    def doublings(name: str) -> float:
        shapes = shapes_of(_kept(rows, rows["moe_dtype"] == name))
        return min((distance(shape, wanted) for shape in shapes), default=np.inf)

    return min(MXFP4_INPUTS[request.engine.framework], key=doublings)


def nearest_shape(rows: Columns, wanted: MoeShape) -> MoeShape:
    """The measured shape with the fewest doublings to the wanted one."""
    return min(shapes_of(rows), key=lambda candidate: (distance(candidate, wanted), str(candidate)))


def of_shape(rows: Columns, shape: MoeShape) -> Columns:
    """The rows of one measured shape."""
    sizes = [shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep]
    return _kept(rows, np.all(sizes_of(rows) == np.array(sizes), axis=1))


def _usual_kernel(rows: Columns, shape: MoeShape) -> str:
    """The kernel of most rows of a shape; nothing where a table names no kernels."""
    kernels = of_shape(rows, shape).get("kernel_source")
    if kernels is None:
        return ""
    names, counts = np.unique(kernels.astype(str), return_counts=True)
    return str(names[counts.argmax()])


def _of_mild_power_law(rows: Columns) -> Columns:
    return _kept(rows, rows["distribution"] == MILD_POWER_LAW)


def _kept(rows: Columns, keep: NDArray[np.bool_]) -> Columns:
    return {name: column[keep] for name, column in rows.items()}


def sizes_of(rows: Columns) -> NDArray[np.int64]:
    """The shape of each row, as the tables name it."""
    return np.stack([rows[name].astype(np.int64) for name in SHAPE], axis=1)


def shapes_of(rows: Columns) -> list[MoeShape]:
    """The shapes that rows were measured with, each once."""
    sizes = sizes_of(rows)
    distinct = distinct_rows(sizes)[0] if len(sizes) else sizes
    return [_measured(*(int(value) for value in row)) for row in distinct]


def _finds_scales(op: Moe, request: CostRequest) -> bool:
    """Whether steps find the scales of the experts' inputs, which the checkpoint does not state."""
    return op.weight_dtype == "fp8" and not request.model.fixed_input_scales


def _without_fixed_scales(rows: Columns) -> NDArray[np.bool_]:
    """Which rows are of kernels that a model runs whose steps find the scales."""
    return _by_kernel(rows, lambda kernel: FIXED_SCALES not in kernel)


def _by_kernel(rows: Columns, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Which rows are of a wanted kernel, by its name; none where a table names no kernels."""
    kernels = rows.get("kernel_source")
    if kernels is None:
        return np.zeros(len(rows["latency"]), dtype=np.bool_)
    names = [str(kernel) for kernel in kernels.tolist()]
    found = {name for name in set(names) if wanted(name)}
    return np.array([name in found for name in names])


def _dtypes_in_order(op: Moe, request: CostRequest) -> list[str]:
    """The tables' names of a dtype, the likeliest first, and what stands in for it last.

    Kernels of blocks of fp8 find the scales of each token's inputs, as those of experts with a
    scale for each token do.
    """
    names = MOE_DTYPES.get(op.weight_dtype, ())
    stored = request.model.format_of("experts")
    if op.weight_dtype == "fp4":
        first = not stored.narrow_inputs
    else:
        first = stored.block is not None or _finds_scales(op, request)
    ordered = list(names if first else reversed(names))
    stand_in = WEIGHT_ONLY.get(op.weight_dtype) if request.weight_only_experts else None
    if stand_in is None:
        return ordered
    on_marlin = [MARLIN_MXFP4, stand_in]
    return [*on_marlin, *ordered] if _runs_marlin(op, request) else [*ordered, stand_in]


def _runs_marlin(op: Moe, request: CostRequest) -> bool:
    """Whether the engine's version runs Marlin on a card whose own kernel was measured."""
    sheet, stored = request.hardware, request.model.format_of("experts")
    if op.weight_dtype != "fp4" or stored.narrow_inputs or sheet is None:
        return False
    return 0.0 < (sheet.compute_capability or 0.0) < request.engine.marlin_below


def _distributions(op: Moe, request: CostRequest) -> tuple[str, ...]:
    """The tables' distributions, nearest to the routing first.

    Uneven loads that were measured are used where one rank has all experts; across ranks loads are
    drawn.
    """
    routing = request.expert_routing
    alone = op.experts_local == op.experts_total
    if not alone or routing.name != "POWER_LAW":
        return (IN_TURN, *POWER_LAWS)
    nearest = sorted(POWER_LAWS, key=lambda name: abs(POWER_LAWS[name] - routing.value))
    return (*nearest, IN_TURN)


def _by_routing(rows: Columns, distributions: Sequence[str]) -> Columns:
    """The rows of the nearest distribution that each shape was measured with."""
    _, owner = distinct_rows(sizes_of(rows))
    order = {name: rank for rank, name in enumerate(distributions)}
    rank = np.array([order.get(str(name), len(order)) for name in rows["distribution"]])
    best = np.full(owner.max(initial=0) + 1, len(order))
    np.minimum.at(best, owner, rank)
    return _kept(rows, rank == best[owner])


def touches_all(rows: Columns, element_bytes: float, bytes_per_s: float) -> NDArray[np.bool_]:
    """Which rows are of models whose tokens may have touched all experts that they choose.

    Others would have read the weights of all faster than the memory can. vLLM 0.24 and SGLang
    0.5.14 measured experts of DeepSeek-V3's shape behind its own router, which keeps half of the
    groups of experts: 128 of 256 are touched, and the first four by every token, so ranks with a
    share of the experts have other loads than real ones, too. vLLM 0.19 did not.
    """
    sizes = sizes_of(rows)
    kinds, kind_of = distinct_rows(sizes)
    shapes = [_measured(*(int(size) for size in kind)) for kind in kinds]
    held = np.array([shape.expert_weights * shape.experts / shape.ep for shape in shapes])
    weight_bytes = held[kind_of] * element_bytes
    read_per_s = weight_bytes / (rows["latency"].astype(np.float64) * 1e-3)
    tokens = rows["num_tokens"].astype(np.int64)
    splits = np.array([shape.tp * shape.ep for shape in shapes])[kind_of]
    in_turn = rows["distribution"] == IN_TURN
    waits = in_turn & (tokens >= ALL_TOUCHED[0]) & (tokens <= ALL_TOUCHED[1])
    _, model_of = distinct_rows(sizes[:, : len(MODEL_SHAPE)])
    keep = np.ones(len(tokens), dtype=np.bool_)
    for model in np.unique(model_of[waits]):
        of_model = model_of == model
        timed = of_model & waits
        whole = timed & (splits == splits[timed].min())
        if float(np.median(read_per_s[whole])) > FASTEST_READ * bytes_per_s:
            keep &= ~of_model
    return keep


def split_pairs(rows: Columns) -> NDArray[np.bool_]:
    """Which rows' ranks multiplied their own share of the pairs of tokens and experts.

    In SGLang 0.5.10's tables, and in vLLM 0.19's of MXFP4, ranks with a share of the experts
    multiplied the pairs of all: two, four and eight ranks take almost as long as one.
    """
    kernels = rows.get("kernel_source", np.full(len(rows["latency"]), "")).astype(str)
    keep = np.ones(len(kernels), dtype=np.bool_)
    for kernel in np.unique(kernels):
        own = kernels == kernel
        halves = _shares_of_two_ranks(_kept(rows, own))
        if len(halves) and float(np.median(halves)) > SLOWEST_HALF:
            keep &= ~own | (rows["moe_ep_size"] == 1)
    return keep


def _shares_of_two_ranks(rows: Columns) -> NDArray[np.float64]:
    """Times of prompts on two expert-parallel ranks as shares of those on one, for each shape and
    count of tokens that was measured on both with whole experts and choices in turn.
    """
    tokens, ranks = (rows[name].astype(np.int64) for name in ("num_tokens", "moe_ep_size"))
    of_prompts = (tokens >= OF_A_PROMPT) & (rows["distribution"] == IN_TURN)
    rows = _kept(rows, of_prompts & (rows["moe_tp_size"] == 1) & (ranks <= 2))
    columns = [rows[name] for name in (*MODEL_SHAPE, "num_tokens")]
    keys = zip(*(column.tolist() for column in columns), strict=True)
    times: dict[tuple[object, ...], dict[int, float]] = {}
    for key, rank, latency in zip(keys, rows["moe_ep_size"], rows["latency"], strict=True):
        times.setdefault(key, {})[int(rank)] = float(latency)
    return np.array([one[2] / one[1] for one in times.values() if len(one) == 2])


def wanted_shape(op: Moe, request: CostRequest) -> MoeShape:
    """The operator's shape in the table's terms."""
    ep = max(1, op.experts_total // max(op.experts_local, 1))
    tp = max(1, request.layout.expert_ranks // ep)
    matrices = GATED if request.model.mlp_gated else PLAIN
    width = op.moe_inter * tp
    return MoeShape(op.hidden, width, op.topk, op.experts_total, tp, ep, matrices, op.always)


def padded_shape(op: Moe, request: CostRequest) -> MoeShape:
    """The operator's shape as Marlin multiplies it."""
    own = wanted_shape(op, request)
    hidden, width = padded_experts(request.model, op)
    return replace(own, hidden=hidden, inter=width * own.tp)


def _measured(hidden: int, inter: int, topk: int, experts: int, tp: int, ep: int) -> MoeShape:
    plain = (inter, topk, experts) in MEASURED_PLAIN
    return MoeShape(hidden, inter, topk, experts, tp, ep, PLAIN if plain else GATED)


def distance(shape: MoeShape, wanted: MoeShape) -> float:
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
