"""Builds the native step program from compiled cost tables."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from llmsim import _native
from llmsim.core import Int32
from llmsim.costs import AttentionCost, CompiledCosts, CostRequest, OpCost
from llmsim.model import Operator

FEATURES = {"tokens": _native.Feature.TOKENS, "sequences": _native.Feature.SEQUENCES}
PARTS = {"prologue": 0, "layer": 1, "head": 2}
COLLECTIVES = ("all_reduce", "logits_gather")


def padded_tokens(request: CostRequest) -> Int32:
    """For each token count 0..max_tokens, what the step runs at: the next captured graph size, or the exact count.

    Shape (max_tokens + 1,). Source: vLLM's CUDA-graph dispatch (spec of fidelity terms, padding).
    """
    sizes = sorted(request.cuda_graph_sizes)
    counts = range(request.max_tokens + 1)
    padded = [
        count if count == 0 or (place := bisect_left(sizes, count)) == len(sizes) else sizes[place] for count in counts
    ]
    return np.array(padded, dtype=np.int32)


def build_program(
    operators: Sequence[Operator], costs: CompiledCosts, linked: Sequence[OpCost], padded: Int32, host_gap_ps: int
) -> tuple["_native.Program", tuple[OpCost | None, ...]]:
    """The program and the cost of each of its operators, in order (None: an attention, in the order of the costs).

    `linked` are the collectives priced on links. Costs that no operator of the model stands for (the launch gap of a
    source) come last.
    """
    ordered = _in_execution_order(operators, [*costs.ops, *linked])
    nodes = iter(_attention_node(index, cost) for index, cost in enumerate(costs.attentions))
    first, *others = (_attention(cost) for cost in costs.attentions)
    program = _native.Program(
        [next(nodes) if cost is None else _operator(cost) for cost in ordered],
        first,
        padded,
        _light_floor(costs),
        host_gap_ps,
        other_attentions=others,
    )
    return program, tuple(ordered)


def _in_execution_order(operators: Sequence[Operator], costs: Sequence[OpCost]) -> list[OpCost | None]:
    """Costs in the order of the model's operators; operators of one name take their costs in turn."""
    by_name: dict[str, list[OpCost]] = {}
    for cost in costs:
        by_name.setdefault(cost.name, []).append(cost)
    ordered: list[OpCost | None] = []
    for op in operators:
        ordered.append(None if op.kind == "attention" else by_name[op.name].pop(0))
    extra = [cost for rest in by_name.values() for cost in rest]
    return sorted([*ordered, *extra], key=lambda cost: PARTS["layer" if cost is None else cost.part])


def _attention_node(index: int, cost: AttentionCost) -> "_native.Operator":
    return _native.Operator(
        cost.name,
        _native.NodeKind.ATTENTION,
        _native.Feature.TOKENS,
        PARTS["layer"],
        cost.repeat,
        np.empty(0, np.int64),
        np.empty(0, np.uint8),
        attention=index,
    )


def _light_floor(costs: CompiledCosts) -> "_native.LightFloor":
    floor = _native.LightFloor()
    floor.weight_bytes = costs.floor.weight_bytes_read
    floor.kv_bytes_per_token = costs.floor.kv_bytes_per_token
    floor.cached_kv_bytes = costs.floor.last_level_cache_bytes * max(1, sum(cost.repeat for cost in costs.attentions))
    floor.bytes_per_s = costs.floor.memory_bandwidth_bytes_per_s
    floor.flops_per_token = costs.floor.flops_per_token
    floor.flops_per_s = costs.floor.peak_flops_per_s
    return floor


def _operator(op: OpCost) -> "_native.Operator":
    kind = _native.NodeKind.COLLECTIVE if op.name in COLLECTIVES else _native.NodeKind.COMPUTE
    return _native.Operator(op.name, kind, FEATURES[op.feature], PARTS[op.part], op.repeat, op.ps, op.provenance)


def _attention(cost: AttentionCost) -> "_native.Attention":
    if cost.mixed is not None:
        grid = cost.mixed
        axes = [grid.chunk_axis, grid.kv_prefill_axis, grid.n_axis, grid.kv_axis]
        return _native.Attention.mixed(
            axes, grid.ps.ravel(), cost.skew_ps_per_token_q20, grid.provenance.ravel(), cost.window, cost.chunked
        )
    assert cost.split is not None, "attention has one of two shapes"
    split = cost.split
    return _native.Attention.split(
        [split.q_axis, split.k_axis],
        split.prefill_ps.ravel(),
        [split.n_axis, split.kv_axis],
        split.decode_ps.ravel(),
        split.mixed_decode_ps_per_kv_token_q20,
        cost.skew_ps_per_token_q20,
        split.prefill_provenance.ravel(),
        split.decode_provenance.ravel(),
        cost.window,
        cost.chunked,
    )
