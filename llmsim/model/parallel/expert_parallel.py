"""What replicas that share an FFN exchange around it: tokens to where the weights are, results
back.

Experts (vLLM's `all2all_backend`); T tokens of all `dp` replicas, R ranks that hold experts, h the
hidden size:

    backend                  dispatch                                      combine
    allgather_reducescatter  all-gather of T rows and router logits        reduce-scatter of T rows
    naive                    each rank broadcasts its rows, in turn        all-reduce of T rows pplx
    a row for each (token, expert)                the same back, to all tensor-parallel ranks
    deepep_high_throughput   a row for each (token, rank), over nodes one  the same back
                             for each (token, node), then on inside it
    deepep_low_latency       a row for each (token, expert), in rounds     the same back
                             of SLOTS tokens per rank

Rows of the last three are fp8 with a scale for each 128 elements where the experts' weights are
fp8, else h elements; what comes back is not quantised. Where every rank holds whole experts (ep =
tp x dp), the tokens of a replica are shared out over its tensor-parallel ranks before the router,
and gathered behind the experts, as in vLLM (use_sequence_parallel_moe; pplx does without).
Otherwise each tensor-parallel rank does the exchange with its peers in the other replicas, and the
partial results are summed by the all-reduce.

A dense FFN cut over the ranks of several replicas (`shared_ffn`): tokens are gathered from the
peers before it, and its partial results reduce-scattered behind it.
"""

from collections.abc import Iterable
from functools import partial
from math import comb

from msgspec.structs import replace

from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Among, Layout
from llmsim.model.operator import (
    AllToAll,
    Collective,
    Gemm,
    Moe,
    Operator,
    ResidualNorm,
    Routed,
    Rows,
    collective,
)
from llmsim.model.types import Dtypes, ModelConfig

BACKENDS = (
    "allgather_reducescatter",
    "naive",
    "pplx",
    "deepep_high_throughput",
    "deepep_low_latency",
)
SLOTS = 256
"""Tokens of one rank in one round of the batched backends: vLLM's VLLM_MOE_DP_CHUNK_SIZE."""
BATCHED = ("pplx", "deepep_low_latency")
"""Backends that hand each expert a padded batch with SLOTS places for every rank."""
HEADER_BYTES = 16
"""Of a low-latency message: index of the token (DeepEP's int4)."""
CHOICE_BYTES = 12
"""Of a high-throughput message, per chosen expert: int64 index and fp32 weight."""
SCALED = 128
"""fp8 elements that share an fp32 scale."""


def with_exchange(
    program: Iterable[Operator], model: ModelConfig, layout: Layout, dtypes: Dtypes
) -> tuple[Operator, ...]:
    """The program of a rank whose replica shares its FFN with others."""
    out: list[Operator] = []
    behind_experts: list[Operator] = []
    """The combine, where shared experts run on the gathered tokens as well."""
    mine = (1, layout.tp) if layout.shares_tokens_out else (1, 1)
    experts = False
    for op in program:
        match op:
            case Moe():
                dispatch, combine = _traffic(op, model, layout, dtypes)
                out += [*dispatch, replace(op, feature="gathered")]
                behind_experts, experts = combine, True
                if not layout.shared_ffn:
                    out += behind_experts
            case Collective(sums_hidden=True) if experts:
                out += behind_experts if layout.shared_ffn else []
                out += _behind(op, model, layout)
                experts = False
            case Operator(block="router" | "latent_in"):
                out.append(replace(op, units=mine))
            case Operator(block="latent_out"):
                out.append(_on_tokens(op, mine, layout))
            case Operator(block="shared_experts") if experts:
                out.append(_on_tokens(op, mine, layout))
            case Operator(block="mlp") if layout.shared_ffn:
                out += _dense(op, model, dtypes)
            case ResidualNorm(feeds_projection=False):
                out.append(op)
                experts = False
            case _:
                out.append(op)
    return tuple(out)


def without_exchange(program: Iterable[Operator]) -> tuple[Operator, ...]:
    """The FFNs of ranks whose rows come from, and return to, ranks that have routed them."""
    kept: list[Operator] = []
    experts = False
    for op in program:
        experts |= isinstance(op, Moe)
        exchanges = isinstance(op, Collective) and (experts or op.name == "dispatch")
        if not exchanges:
            kept.append(op)
    return tuple(kept)


def _on_tokens(op: Operator, mine: tuple[int, int], layout: Layout) -> Operator:
    """Of all replicas' tokens, where they share FFNs; else of those that the rank sends."""
    return replace(op, feature="gathered") if layout.shared_ffn else replace(op, units=mine)


def _behind(all_reduce: Collective, model: ModelConfig, layout: Layout) -> list[Operator]:
    """What makes the experts' results whole on every tensor-parallel rank."""
    if layout.shares_tokens_out:
        gather = replace(all_reduce, name="tokens_gather", collective="all_gather")
        return [replace(gather, sums_hidden=False)]
    whole = layout.exchange == "pplx" and layout.ep == layout.expert_ranks
    return [] if whole and not model.shared_expert_intermediate_size else [all_reduce]


def _dense(op: Operator, model: ModelConfig, dtypes: Dtypes) -> list[Operator]:
    size = model.hidden_size * int(dtype_bytes(dtypes.activation))
    move = partial(
        collective,
        among="members",
        size=size,
        part=op.part,
        repeat=op.repeat,
        feature="gathered",
        in_layers=op.in_layers,
    )
    together = replace(op, feature="gathered")
    match op:
        case Gemm(cut="columns"):
            return [move("ffn_gather", "all_gather"), together]
        case Gemm(cut="rows"):
            return [together, move("ffn_scatter", "reduce_scatter")]
        case _:
            return [together]


def _traffic(
    moe: Moe, model: ModelConfig, layout: Layout, dtypes: Dtypes
) -> tuple[list[Operator], list[Operator]]:
    size, backend = int(dtype_bytes(dtypes.activation)), layout.exchange
    whole = moe.hidden * size
    among: Among = "everyone" if layout.ep == layout.expert_ranks and layout.tp > 1 else "members"
    move = partial(
        collective,
        among=among,
        part=moe.part,
        repeat=moe.repeat,
        feature="gathered",
        in_layers=moe.in_layers,
    )
    if backend in ("allgather_reducescatter", "naive"):
        sent = whole + model.num_experts * size
        if backend == "naive":
            return [move("dispatch", "broadcast", size=sent)], [
                move("combine", "all_reduce", size=whole)
            ]
        return [move("dispatch", "all_gather", size=sent)], [
            move("combine", "reduce_scatter", size=whole)
        ]
    there = _all_to_all("dispatch", moe, layout, dispatched(moe, layout, size), among)
    back = _all_to_all("combine", moe, layout, combined(moe, layout, size), among)
    return [there], [back]


def _all_to_all(name: str, moe: Moe, layout: Layout, rows: Rows, among: Among) -> AllToAll:
    return AllToAll(
        name=name,
        feature="gathered",
        part=moe.part,
        repeat=moe.repeat,
        in_layers=moe.in_layers,
        collective="all_to_all",
        among=among,
        collective_bytes_per_token=round(copies(moe, layout, rows) * rows.row_bytes),
        rows=rows,
        experts_total=moe.experts_total,
        topk=moe.topk,
        expert_groups=moe.expert_groups,
    )


def dispatched(moe: Moe, layout: Layout, size: int) -> Rows:
    """How tokens travel to the experts; `size` is that of an activation."""
    fp8 = moe.weight_dtype == "fp8"
    row = moe.hidden + -(-moe.hidden // SCALED) * 4 if fp8 else moe.hidden * size
    if layout.exchange == "deepep_high_throughput":
        return Rows("rank", row + moe.topk * CHOICE_BYTES)
    header = HEADER_BYTES * (layout.exchange == "deepep_low_latency")
    return Rows("expert", row + header, slots=SLOTS)


def combined(moe: Moe, layout: Layout, size: int) -> Rows:
    """How results travel back."""
    row = moe.hidden * size
    if layout.exchange == "deepep_high_throughput":
        return Rows("rank", row, back=True)
    copies_of_a_row = layout.tp if layout.exchange == "pplx" else 1
    return Rows("expert", row * copies_of_a_row, slots=SLOTS, back=True)


def copies(moe: Routed, layout: Layout, rows: Rows) -> float:
    """Rows that leave their rank for one token, under an even router."""
    ranks = layout.expert_ranks if layout.ep == layout.expert_ranks else layout.dp
    if rows.per == "expert":
        return moe.topk * (1 - 1 / ranks)
    return (ranks - 1) * hit(moe, moe.experts_total // ranks)


def hit(moe: Routed, experts: int) -> float:
    """Probability that a uniformly routed token selects at least one of `experts` consecutive
    experts.

    Of n groups it chooses g, and topk of the experts in them; `experts` lie in c of the groups, as
    many in each.
    """
    groups, chosen = moe.expert_groups
    each = moe.experts_total // groups
    spread = max(1, -(-experts // each))
    missed = 0.0
    for inside in range(min(spread, chosen) + 1):
        if chosen - inside > groups - spread:
            continue
        likely = (
            comb(spread, inside) * comb(groups - spread, chosen - inside) / comb(groups, chosen)
        )
        reached = chosen * each - round(inside * experts / spread)
        missed += likely * comb(reached, moe.topk) / comb(chosen * each, moe.topk)
    return 1.0 - missed


def buffer_bytes(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Memory of one rank for the exchange besides what the allocator's peak counts.

    DeepEP: 1 GiB for NVLink and as much for the network (vLLM's VLLM_DEEPEP_BUFFER_SIZE_MB), or two
    sets of send and receive buffers of low-latency messages (DeepEP's low_latency_rdma_size_hint).
    Batched backends also hold the experts' padded batches, with SLOTS places for every rank and
    expert.
    """
    if (
        layout.dp == 1
        or not model.num_experts
        or layout.exchange not in (*BATCHED, "deepep_high_throughput")
    ):
        return 0
    if layout.exchange == "deepep_high_throughput":
        return 2 << 30
    size = int(dtype_bytes(dtypes.activation))
    row, slots = model.expert_hidden * size, model.num_experts * SLOTS
    message = row + HEADER_BYTES
    buffers = (
        2 * (slots * row + slots * message)
        if layout.exchange == "deepep_low_latency"
        else 2 * slots * row
    )
    held = (
        model.num_experts // layout.ep * layout.ep * SLOTS
    )  # every rank may fill the places of its experts
    width = model.moe_intermediate_size * layout.ep // layout.expert_ranks
    return buffers + held * (max(2 * width, model.expert_hidden) + width) * size


def exchange_problem(model: ModelConfig, layout: Layout) -> str:
    """The rule that a layout of several replicas breaks; "" if it is fine."""
    if layout.exchange not in BACKENDS:
        return f'all2all_backend is "{layout.exchange}"; it may be {", ".join(BACKENDS)}'
    if layout.dp == 1:
        return ""
    if layout.sequence_parallel and layout.tp > 1:
        return (
            "enable_sequence_parallelism does not go with replicas that share an FFN, whose "
            "exchange shares tokens out"
        )
    rows = layout.exchange in (*BATCHED, "deepep_high_throughput")
    if model.num_experts and rows and layout.ep != layout.expert_ranks:
        return (
            f"all2all_backend {layout.exchange} sends tokens to whole experts, so ep must be tp x "
            f"dp = {layout.expert_ranks}"
        )
    return ""
