"""Builds the native step program from compiled cost tables."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.core import Int32, Int64
from llmsim.costs import AttentionCost, CompiledCosts, MixedAttention, OpCost, SplitAttention
from llmsim.model import Attention, Collective, Operator, StateSpace

FEATURES = {
    "tokens": _native.Feature.TOKENS,
    "sequences": _native.Feature.SEQUENCES,
    "gathered": _native.Feature.GATHERED,
    "decodes": _native.Feature.DECODES,
    "prefills": _native.Feature.PREFILLS,
    "adapter_tokens": _native.Feature.ADAPTER_TOKENS,
    "adapter_rows": _native.Feature.ADAPTER_ROWS,
    "adapters": _native.Feature.ADAPTERS,
    "adapter_experts": _native.Feature.ADAPTER_EXPERTS,
    "adapter_loads": _native.Feature.ADAPTER_LOADS,
    "adapter_reads": _native.Feature.ADAPTER_READS,
    "encoder_tokens": _native.Feature.ENCODER_TOKENS,
    "encoder_pairs": _native.Feature.ENCODER_PAIRS,
}
TIMES_BESIDE = 2
"""Busy times behind those of a program's operators: launches and the power limit (kTimesBeside)."""
PARTS = {"prologue": 0, "layer": 1, "head": 2}
TILE_ROWS = 64
"""Queries that read a cached row together (native/program/attention_cost.cpp)."""


def padded_counts(graph_sizes: Sequence[int], max_tokens: int, multiple: int = 1) -> Int32:
    """For each token count 0..max_tokens, what the step runs at: the next captured graph size, or
    the exact count, rounded up to a multiple (sequence parallelism).

    Shape (max_tokens + 1,). Source: vLLM's CUDA-graph dispatch (spec of fidelity terms, padding).
    """
    counts = -(-np.arange(max_tokens + 1, dtype=np.int32) // multiple) * multiple
    sizes = np.array(sorted(graph_sizes), dtype=np.int32)
    captured = (counts > 0) & (counts <= sizes.max(initial=0))
    counts[captured] = sizes[np.searchsorted(sizes, counts[captured])]
    return counts


class Placed(Struct, frozen=True, eq=False):
    """An operator of the program: its cost, how often its stage runs it, and where."""

    cost: OpCost | AttentionCost
    part: str
    repeat: int
    stage: int
    first_layer: int = 0
    """How often earlier stages run it."""
    operator: Operator | None = None
    """None: a cost of the source as a whole."""
    layers: tuple[int, ...] = ()
    """Numbers of the model's layers that run it; none: it is in front of them or behind them."""

    @property
    def kind(self) -> "_native.NodeKind":
        """What the core does with it."""
        if self.operator is None or not isinstance(self.operator, Collective):
            return _native.NodeKind.COMPUTE
        sends = self.operator.collective == "send"
        return _native.NodeKind.STAGE_SEND if sends else _native.NodeKind.COLLECTIVE


def build_program(
    stages: Sequence[Sequence[Operator]],
    costs: CompiledCosts,
    linked: Sequence[Sequence[OpCost]],
    padded: Int32,
    host_gap_ps: int,
    graphs: "_native.GraphRules",
    context_ranks: int = 1,
    host_sequence_ps: int = 0,
) -> tuple["_native.Program", tuple[Placed, ...]]:
    """The program and its operators, in order.

    `stages` are the operators of each pipeline stage, `linked` its collectives priced on links.
    Costs that no operator of the model stands for (the launch gap of a source) come last in the
    first stage.
    """
    known = {op.name for operators in stages for op in operators}
    extra = [cost for cost in costs.ops if cost.name not in known]
    placed: list[Placed] = []
    for stage, operators in enumerate(stages):
        placed += _in_execution_order(
            operators, [*costs.ops, *linked[stage]], costs.attentions, stage
        )
        placed += [Placed(cost, cost.part, cost.repeat, stage) for cost in extra if stage == 0]
    placed.sort(key=lambda one: (one.stage, PARTS[one.part]))
    placed = _with_layers(_with_first_layers(placed))
    queries = {
        op.name: queries_per_kv_head(op)
        for ops in stages
        for op in ops
        if isinstance(op, Attention)
    }
    first, *others = (_attention(cost, queries.get(cost.name, 1)) for cost in costs.attentions)
    program = _native.Program(
        [_operator(one, costs.attentions) for one in placed],
        first,
        padded,
        _lower_bound(costs),
        host_gap_ps,
        other_attentions=others,
        context_ranks=context_ranks,
    )
    program.set_graphs(graphs)
    program.set_host_sequence(host_sequence_ps)
    program.give_drafts_rows()
    return program, tuple(placed)


def _with_first_layers(placed: Sequence[Placed]) -> list[Placed]:
    run: dict[int, int] = {}
    counted = []
    for one in placed:
        counted.append(replace(one, first_layer=run.get(id(one.cost), 0)))
        run[id(one.cost)] = run.get(id(one.cost), 0) + one.repeat
    return counted


def _with_layers(placed: Sequence[Placed]) -> list[Placed]:
    """Each operator with the numbers of the layers that run it; those of a stage follow the layers
    of the stages before.
    """
    in_stage = [_layers_in_stage(one) for one in placed]
    counts = [0] * (max((one.stage for one in placed), default=-1) + 1)
    for one, numbers in zip(placed, in_stage, strict=True):
        counts[one.stage] = max(counts[one.stage], *(number + 1 for number in numbers), 0)
    firsts = list(accumulate(counts, initial=0))
    return [
        replace(one, layers=tuple(firsts[one.stage] + number for number in numbers))
        for one, numbers in zip(placed, in_stage, strict=True)
    ]


def _layers_in_stage(one: Placed) -> Sequence[int]:
    """Counted from the stage's first."""
    if one.part != "layer":
        return ()
    of_operator = () if one.operator is None else one.operator.in_layers
    return of_operator or range(one.repeat)


def _in_execution_order(
    operators: Sequence[Operator],
    costs: Sequence[OpCost],
    attentions: Sequence[AttentionCost],
    stage: int,
) -> list[Placed]:
    """Costs in the order of the stage's operators; operators of one name take their
    costs in turn.
    """
    by_name: dict[str, list[OpCost]] = {}
    for cost in costs:
        by_name.setdefault(cost.name, []).append(cost)
    of_layers = {cost.name: cost for cost in attentions}
    return [
        Placed(_cost_of(op, by_name, of_layers), op.part, op.repeat, stage, operator=op)
        for op in operators
    ]


def _cost_of(
    op: Operator, by_name: dict[str, list[OpCost]], of_layers: dict[str, AttentionCost]
) -> OpCost | AttentionCost:
    return of_layers[op.name] if isinstance(op, Attention) else by_name[op.name].pop(0)


def _lower_bound(costs: CompiledCosts) -> "_native.LowerBound":
    floor = _native.LowerBound()
    floor.weight_bytes = costs.floor.weight_bytes_read
    floor.kv_bytes_per_token = costs.floor.kv_bytes_per_token
    floor.cached_kv_bytes = costs.floor.last_level_cache_bytes * max(
        1, sum(cost.repeat for cost in costs.attentions)
    )
    floor.bytes_per_s = costs.floor.memory_bandwidth_bytes_per_s
    floor.flops_per_token = costs.floor.flops_per_token
    floor.flops_per_s = costs.floor.peak_flops_per_s
    return floor


def _operator(placed: Placed, attentions: Sequence[AttentionCost]) -> "_native.Operator":
    cost, part = placed.cost, PARTS[placed.part]
    if isinstance(cost, AttentionCost):
        nothing = (np.empty(0, np.int64), np.empty(0, np.uint8))
        kind, which = _native.NodeKind.ATTENTION, attentions.index(cost)
        return _native.Operator(
            cost.name,
            kind,
            FEATURES["tokens"],
            part,
            placed.repeat,
            *nothing,
            placed.stage,
            attention=which,
            layers=placed.layers,
            caches=True,
        )
    sampled = None
    if cost.sampled is not None:
        table = cost.sampled
        layers, draws, _ = table.ps.shape
        ps = np.ascontiguousarray(table.ps).ravel()
        sampled = _native.SampledCostTable(
            table.tokens,
            layers,
            draws,
            ps,
            table.seed,
            table.provenance,
            placed.first_layer,
            table.in_order,
        )
    return _native.Operator(
        *(
            cost.name,
            placed.kind,
            FEATURES[cost.feature],
            part,
            placed.repeat,
            cost.ps,
            cost.provenance,
            placed.stage,
        ),
        sampled=sampled,
        layers=placed.layers,
        caches=isinstance(placed.operator, StateSpace),
    )


def queries_per_kv_head(op: Attention) -> int:
    """Query heads that read the same cached rows: all of them with latent attention, which decodes
    on its cache. With sparse attention whole tiles, so that every token counts: each reads what was
    chosen for it.
    """
    if op.sparse:
        return -(-op.heads // TILE_ROWS) * TILE_ROWS
    latent = op.decode_flops_per_context_token != op.flops_per_context_token
    return op.heads if latent else max(1, op.heads // max(1, op.kv_heads))


def _attention(cost: AttentionCost, queries: int) -> "_native.Attention":
    if isinstance(cost, MixedAttention):
        grid = cost.grid
        axes = [grid.chunk_axis, grid.kv_prefill_axis, grid.n_axis, grid.kv_axis]
        return _native.Attention.mixed(
            axes,
            grid.ps.ravel(),
            cost.skew_ps_per_token_q20,
            grid.provenance.ravel(),
            cost.window,
            cost.chunked,
            queries,
            cost.prompts_apart,
        )
    assert isinstance(cost, SplitAttention), "attention has one of two shapes"
    split = cost.grid
    latents = split.on_latents
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
        queries,
        _flat(split.shared_ps),
        None if latents is None else latents.ps.ravel(),
        None if latents is None else latents.provenance.ravel(),
        None if latents is None else _flat(latents.shared_ps),
        (0, 0, 0) if latents is None else latents.rule.limits,
    )


def _flat(cells: Int64 | None) -> Int64 | None:
    return None if cells is None else cells.ravel()
