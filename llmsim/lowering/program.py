"""Builds the native step program from compiled cost tables."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from llmsim import _native
from llmsim.core import Int32
from llmsim.costs import AttentionCost, CompiledCosts, CostRequest, OpCost

FEATURES = {"tokens": _native.Feature.TOKENS, "sequences": _native.Feature.SEQUENCES}
PARTS = {"prologue": 0, "layer": 1, "head": 2}


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
    costs: CompiledCosts, linked: Sequence[OpCost], padded: Int32, host_gap_ps: int
) -> tuple["_native.Program", tuple[tuple[str, str], ...]]:
    """The program and the (name, source) of its operators; `linked` are the collectives priced on links."""
    ops = [*costs.ops, *linked]
    native = [_operator(op) for op in ops]
    none = np.empty(0, np.int64), np.empty(0, np.uint8)
    native.append(
        _native.Operator(
            "attention",
            _native.NodeKind.ATTENTION,
            _native.Feature.TOKENS,
            PARTS["layer"],
            costs.attention.repeat,
            *none,
        )
    )
    names = [(op.name, op.source) for op in ops] + [("attention", costs.attention.source)]
    floor = costs.floor
    program = _native.Program(
        native,
        _attention(costs.attention),
        padded,
        floor.weight_bytes_read,
        floor.kv_bytes_per_token,
        floor.memory_bandwidth_bytes_per_s,
        host_gap_ps,
    )
    return program, tuple(names)




def _operator(op: OpCost) -> "_native.Operator":
    kind = _native.NodeKind.COLLECTIVE if op.name in ("all_reduce", "logits_gather") else _native.NodeKind.COMPUTE
    return _native.Operator(op.name, kind, FEATURES[op.feature], PARTS[op.part], op.repeat, op.ps, op.provenance)


def _attention(cost: AttentionCost) -> "_native.Attention":
    if cost.mixed is not None:
        grid = cost.mixed
        axes = [grid.chunk_axis, grid.kv_prefill_axis, grid.n_axis, grid.kv_axis]
        return _native.Attention.mixed(axes, grid.ps.ravel(), cost.skew_ps_per_token_q20)
    assert cost.split is not None, "attention has one of two shapes"
    split = cost.split
    return _native.Attention.split(
        [split.q_axis, split.k_axis],
        split.prefill_ps.ravel(),
        [split.n_axis, split.kv_axis],
        split.decode_ps.ravel(),
        split.mixed_decode_ps_per_kv_token_q20,
        cost.skew_ps_per_token_q20,
    )
