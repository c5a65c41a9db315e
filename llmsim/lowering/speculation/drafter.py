"""The drafter of speculative decoding: its model or head, what it costs, and what it takes of the
memory.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import EngineArgs, Group
from llmsim.config.engine.speculative import Speculation
from llmsim.config.errors import InputError, NotYetError
from llmsim.costs import AttentionCost, CompiledCosts, CostRequest, OpCost
from llmsim.lowering.adjust.sustained_clock import Limited
from llmsim.lowering.host.cuda_graphs import graph_rules, padded_mixed
from llmsim.lowering.network.base import NetworkView
from llmsim.lowering.network.collective_costs import LinkedCosts, expanded_config
from llmsim.lowering.program import Placed, build_program
from llmsim.model import (
    Dtypes,
    Gemm,
    Hardware,
    Layout,
    ModelConfig,
    Operator,
    load_model,
    operators,
)
from llmsim.model.families.presets import config_path, read_object
from llmsim.model.memory.requirements import DraftShare
from llmsim.model.memory.sizes import kv_bytes_per_token, weight_bytes
from llmsim.model.operators.factory import OperatorFactory

FC = "draft_fc"
FC_INPUTS = {"eagle": 2, "mtp": 2, "eagle3": 3}
"""Hidden widths that the head's first projection reads: embedding and hidden state, or those of
three layers.
"""
UNSHARED_VOCABULARY = "draft_vocab_size"
"""Key of EAGLE-3 configs whose head has a smaller vocabulary, and an lm_head, of its own."""

LinkWith = Callable[
    [tuple[Operator, ...], CostRequest, CompiledCosts, Layout], tuple[LinkedCosts, NetworkView]
]
"""Prices the collectives that no table prices, on the links that they take."""
Compile = Callable[[CostRequest], CompiledCosts]


class DraftPlan(Struct, frozen=True, eq=False):
    """A drafter ready for the core."""

    native: "_native.Drafter"
    passes: tuple[tuple[OpCost | AttentionCost, ...], ...]
    """The costs of the operators of its first pass, and of those of the others."""
    placed: tuple[tuple[Placed, ...], ...]
    """The same with how often each runs."""
    operators: tuple[tuple[Operator, ...], ...]
    """Of one rank, in those passes."""
    share: DraftShare
    model: ModelConfig
    layout: Layout
    """Of its ranks; those of tensor parallelism 1 are as many as the model's, each drafting for
    itself.
    """
    notes: tuple[str, ...]
    linked: tuple[str, ...] = ()
    """Collectives of its passes that links price."""


class Head(Struct, frozen=True):
    """A drafter's operators."""

    model: ModelConfig
    first: tuple[Operator, ...]
    """Of the first pass."""
    later: tuple[Operator, ...]
    weight_bytes: int
    """Of one rank, without what it shares with the model."""


EXPERTS = "moe"
"""The name of the operator of experts."""


def refuse_what_does_not_run_yet(group: Group, *, offloads: bool) -> None:
    """Combinations of speculation that no part of this version prices."""
    speculation = group.engine.speculation
    if speculation is None:
        return
    for is_so, what in (
        (offloads, "weights or attention outside of the device"),
        (group.pcp * group.engine.decode_context_parallel_size > 1, "context parallelism"),
        (group.engine.enable_sequence_parallelism and group.tp > 1, "sequence parallelism"),
    ):
        if is_so:
            raise NotYetError(
                f"speculative_config with the method {speculation.method} together with {what} "
                "does not run in this version; remove one of them"
            )


def draft_plan(
    group: Group,
    request: CostRequest,
    located: Callable[[str], str],
    compile_with: Compile,
    linked: LinkWith,
    *,
    members: int,
    exact: bool,
) -> DraftPlan | None:
    """The drafter of a group, or None where nobody drafts on its devices; `request` is the model's
    own.

    With `exact` the engine runs every rank's nodes of its passes. Raises InputError where the
    drafter does not fit the model, NotYetError for one whose experts the group's `members` would
    share.
    """
    speculation = group.engine.speculation
    if speculation is None or speculation.method == "ngram":
        return None
    layout = _layout(speculation, request)
    head = _head(speculation, request, layout, located)
    _check_fits(head.model, request.max_model_len, members, apart=group.afd is not None)
    own = replace(request, model=head.model, layout=layout, operators=head.first)
    costs = compile_with(own)
    prices, links = linked(head.first, own, costs, layout)
    parts = (head.first, head.later)
    programs = [
        _program(part, costs, prices.of_stage, own, _proposing(group.engine)) for part in parts
    ]
    placed = tuple(each for _, each in programs)
    native = _native.Drafter(
        programs[0][0],
        programs[1][0],
        int(speculation.method == "draft_model"),
        speculation.parallel,
        speculation.branches,
    )
    passes = tuple(tuple(one.cost for one in each) for each in placed)
    if exact:
        expanded = [
            expanded_config(part, each, prices.as_messages, links)
            for part, each in zip(parts, passes, strict=True)
        ]
        native.expand(*expanded)
    return DraftPlan(
        native,
        passes,
        placed,
        parts,
        DraftShare(head.weight_bytes, kv_bytes_per_token(head.model, layout, request.dtypes)),
        head.model,
        layout,
        (_note(speculation, head.model), *costs.notes),
        tuple(name for name in costs.link_collectives if name not in prices.planned),
    )


def _note(speculation: Speculation, drafter: ModelConfig) -> str:
    return (
        f"speculative decoding: {speculation.tokens} drafts by {speculation.method} "
        f"({drafter.name}); the end of a step, and with it its tokens, comes when they have been "
        "proposed"
    )


def _check_fits(drafter: ModelConfig, max_model_len: int, members: int, *, apart: bool) -> None:
    if apart and drafter.num_moe_layers:
        raise NotYetError(
            f"speculative_config: the drafter {drafter.name} has experts, which would lie on the "
            "devices of the FFN; that does not run in this version: choose a dense drafter, or "
            "ngram"
        )
    if members > 1 and drafter.num_moe_layers:
        raise NotYetError(
            f"speculative_config: the drafter {drafter.name} has experts, which {members} "
            "data-parallel ranks in lock-step would share; that does not run in this version: "
            "choose a dense drafter, or ngram"
        )
    if drafter.max_position_embeddings < max_model_len:
        raise InputError(
            f"speculative_config.model: {drafter.name} reads at most "
            f"{drafter.max_position_embeddings} tokens, "
            f"but max_model_len is {max_model_len}; lower max_model_len"
        )


def _proposing(engine: EngineArgs) -> EngineArgs:
    """The engine as it runs the drafter: vLLM's proposers replay piecewise graphs, or none."""
    return (
        engine if engine.cudagraph_mode == "NONE" else replace(engine, cudagraph_mode="PIECEWISE")
    )


def _program(
    part: tuple[Operator, ...],
    costs: CompiledCosts,
    linked: tuple[tuple[OpCost, ...], ...],
    own: CostRequest,
    engine: EngineArgs,
) -> tuple["_native.Program", tuple[Placed, ...]]:
    """Of one pass; a projection that only the first one runs does not belong to the others."""
    if not any(op.name == FC for op in part):
        costs = replace(costs, ops=tuple(cost for cost in costs.ops if cost.name != FC))
    rules = graph_rules(engine, (part,), own)
    program, placed = build_program(
        (part,), costs, linked, padded_mixed(engine, own.max_tokens), 0, rules
    )
    return program, placed


def _layout(speculation: Speculation, request: CostRequest) -> Layout:
    tp = speculation.draft_tp or request.layout.tp
    if tp not in (1, request.layout.tp):
        raise InputError(
            f"speculative_config.draft_tensor_parallel_size is {tp}; it may be 1 or "
            f"{request.layout.tp}, which is the model's"
        )
    if tp != request.layout.tp:
        return Layout()
    # Beside an FFN on other devices, too, it runs whole on those of the attention.
    whole = replace(request.layout, stage_layers=(), stage=0, domain="", routed_rows=False)
    # Data-parallel ranks draft apart, so that none can hold a part of another one's drafter.
    return replace(whole, dp=1, shared_ffn=False) if whole.shared_ffn else whole


def _head(
    speculation: Speculation, request: CostRequest, layout: Layout, located: Callable[[str], str]
) -> Head:
    target, dtypes = request.model, request.dtypes
    given = None if speculation.model is None else load_model(located(speculation.model))
    if speculation.method == "draft_model":
        assert given is not None, "checked by the section"
        return _draft_model(given, request, layout)
    if given is not None and given.hidden_size != target.hidden_size:
        raise InputError(
            f"speculative_config.model: {given.name} has a hidden size of {given.hidden_size}, "
            f"{target.name} one of {target.hidden_size}; its head reads the model's hidden states"
        )
    model = given if given is not None else one_layer(target, speculation)
    own_vocabulary = _own_vocabulary(speculation, located)
    if own_vocabulary:
        model = replace(model, vocab_size=own_vocabulary)
    later = _with_wide_input(operators(model, layout, dtypes), model, speculation)
    fc = replace(_projection(model, layout, dtypes, FC_INPUTS[speculation.method]), part="prologue")
    before = tuple(op for op in later if op.part == "prologue")
    behind = tuple(op for op in later if op.part != "prologue")
    first = (*before, fc, *behind)
    weights = _own_weight_bytes(fc, behind, own_head=bool(own_vocabulary))
    # EAGLE-3 reads the states of the model's layers once; the others join embedding and state in
    # every pass.
    return Head(model, first, later if speculation.method == "eagle3" else first, weights)


def _own_weight_bytes(fc: Operator, behind: Sequence[Operator], *, own_head: bool) -> int:
    """Of one rank: the projection and the layers, and a head where the model's does not fit."""
    weights = fc.weight_bytes * fc.repeat
    weights += sum(op.weight_bytes * op.repeat for op in behind if op.part == "layer")
    if own_head:
        weights += sum(op.weight_bytes for op in behind if op.part == "head")
    return weights


def _draft_model(given: ModelConfig, request: CostRequest, layout: Layout) -> Head:
    target, dtypes = request.model, request.dtypes
    if given.vocab_size != target.vocab_size:
        raise InputError(
            f"speculative_config.model: {given.name} has a vocabulary of {given.vocab_size}, "
            f"{target.name} one of {target.vocab_size}; a draft model shares the model's"
        )
    layout = replace(layout, ep=layout.ep if given.num_experts else 1)
    ops = operators(given, layout, dtypes)
    return Head(given, ops, ops, weight_bytes(given, layout, dtypes))


def one_layer(target: ModelConfig, speculation: Speculation) -> ModelConfig:
    """A head like the model's own last layer (mtp), or like a dense one (eagle); InputError without
    the latter.
    """
    kinds = ("full",) if "full" in target.layer_kinds else target.layer_kinds[-1:]
    if target.compressed is not None:  # without a compressed context (vLLM)
        kinds = ("sliding",)
        target = replace(target, hashed_layers=(), indexer=None)
    name = f"one layer of {target.name}"
    if target.layers_with_ffn:  # one for attention, one behind it
        target = replace(target, layers_with_ffn=(), moe_layers=(target.num_moe_layers > 0,))
    if speculation.method == "mtp":
        moe = target.moe_layers[-1:]
        return replace(target, name=name, num_layers=1, moe_layers=moe, layer_kinds=kinds)
    if not target.intermediate_size:
        raise InputError(
            f"speculative_config: {target.name} has no dense layer that an {speculation.method} "
            "head could be made like; give the head's config.json as speculative_config.model"
        )
    return replace(target, name=name, num_layers=1, moe_layers=(False,), layer_kinds=kinds)


def _own_vocabulary(speculation: Speculation, located: Callable[[str], str]) -> int:
    if speculation.model is None:
        return 0
    size = read_object(config_path(located(speculation.model))).get(UNSHARED_VOCABULARY)
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else 0


def _projection(model: ModelConfig, layout: Layout, dtypes: Dtypes, inputs: int) -> Operator:
    """Not split over ranks, and never quantised."""
    hidden = model.hidden_size
    factory = OperatorFactory(model, layout, dtypes)
    return factory.gemm(FC, hidden, inputs * hidden, part="wide", repeat=1)


def _with_wide_input(
    program: tuple[Operator, ...], model: ModelConfig, speculation: Speculation
) -> tuple[Operator, ...]:
    """The first layer of an EAGLE-3 head reads the embedding beside the hidden state."""
    if speculation.method != "eagle3" or model.latent is not None:
        return program
    return tuple(
        replace(
            op,
            gemm_k=2 * op.gemm_k,
            weight_bytes=2 * op.weight_bytes,
            read_bytes_per_token=2 * op.read_bytes_per_token,
            flops_per_token=2 * op.flops_per_token,
        )
        if isinstance(op, Gemm) and op.name == "qkv_proj"
        else op
        for op in program
    )


def busy_names(
    costs: Sequence[OpCost | AttentionCost],
    engine: EngineArgs,
    draft: DraftPlan | None,
    hardware: Hardware | None,
) -> tuple[tuple[str, str], ...]:
    """The program's operators, what waiting for the host's launches and the power limit added, and
    the same of the drafter's passes.
    """
    names = [(cost.name, cost.source) for cost in costs]
    launches = ("launches", _source_of_launches(engine, experts=EXPERTS in dict(names)))
    card = Limited.of(hardware)
    beside = (launches, ("power limit", "" if card is None else card.source))
    passes = (
        []
        if draft is None
        else [[(f"draft {cost.name}", cost.source) for cost in one] for one in draft.passes]
    )
    return (*names, *beside, *(name for one in passes for name in (*one, *beside)))


def _source_of_launches(engine: EngineArgs, *, experts: bool) -> str:
    """The host's times in words, with the origin that they share in a profile."""
    each = f"{engine.launch_ps / 1e3:g} ns of the host for each"
    origins = [engine.origin["launch_ps"]]
    if experts and engine.fused_moe_ps > 0:
        each += f", {engine.fused_moe_ps / 1e3:g} for a layer of experts without a graph"
        origins.append(engine.origin["fused_moe_ps"])
    return f"{each} ({', '.join(dict.fromkeys(origins))})"
