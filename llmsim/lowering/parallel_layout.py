"""How a group's devices share the model: its layout, its pipeline stages, and the domain that it
runs in.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from llmsim import _native
from llmsim.config import Deployment, EngineArgs, Group
from llmsim.config.deployment import Offloading
from llmsim.config.engine.profile import load_profile
from llmsim.config.errors import InputError, NotYetError
from llmsim.core import Note
from llmsim.costs.experts.load_sampling import Placement
from llmsim.lowering.afd.layout import afd_layout, afd_members
from llmsim.lowering.overlap import overlaps
from llmsim.model import Dtypes, Layout, MemoryLedger, ModelConfig, Operator, operators
from llmsim.model.parallel.transforms import split_layers


class LoweredLockstep(Struct, frozen=True, eq=False):
    """Groups that run in lock-step."""

    groups: tuple[int, ...]
    sync_interval: int
    """Rounds between two agreements on whether the wave has ended; 0: nobody agrees, and no round
    runs without work.
    """
    syncs_first: bool
    """There is one behind the first round, too."""
    expanded: "_native.ExpandedConfig | None"
    afd: "_native.AfdConfig | None" = None
    """Attention and FFN groups that run every layer together; None: members run whole layers."""
    exact: bool = False
    """Under `afd`: every node runs in the engine."""
    attention_members: int = 0
    """Under `afd`: the first ones; the others compute FFNs."""
    ports: "tuple[_native.SharedPort, ...]" = ()
    """Under `afd`: those that other transfers use, too."""


def members_of(group: Group, model: ModelConfig) -> int:
    """Groups that move in lock-step with this one, itself included: the data-parallel ranks of a
    mixture of experts, which share the experts. Dense ranks are engines of their own unless
    `lockstep_dense_dp` says otherwise.
    """
    if group.afd is not None:
        return afd_members(group, model)
    if group.ffn_tp is not None and not model.num_experts:
        return _replicas_of_a_dense_ffn(group, model)
    return group.dp if model.num_experts or group.engine.lockstep_dense_dp else 1


def untimed_layout(group: Group, layout: Layout) -> str:
    """What of a layout has no times for adapters and encoders, whose operators run beside the
    decoder's layers; "": nothing.
    """
    if group.afd is not None:
        return "attention and FFN on devices of their own"
    if group.offloading != Offloading():
        return "weights or attention outside of the devices"
    if layout.dp > 1:
        return "experts that data-parallel ranks share"
    if layout.context_ranks > 1:
        return "context parallelism"
    return "sequence parallelism" if layout.sequence_parallel else ""


def _replicas_of_a_dense_ffn(group: Group, model: ModelConfig) -> int:
    """Attention's data-parallel ranks that share one FFN; InputError where the FFN is cut in fewer
    than attention.
    """
    assert group.ffn_tp is not None, "the caller looked"
    if group.ffn_tp % group.tp:
        raise InputError(
            f"ffn_tp_size is {group.ffn_tp}; {model.name} is dense, and a token passes the FFN of "
            f"its own ranks, so it must be a multiple of attn_tp_size, which is {group.tp}"
        )
    return group.ffn_tp // group.tp


def layout_of(group: Group, model: ModelConfig) -> Layout:
    """Experts are spread over all ranks that hold them unless the file says otherwise.

    Raises InputError where the layers do not fit the stages.
    """
    engine = group.engine
    stages: tuple[int, ...] = ()
    if group.pp > 1:
        stages = group.pp_layers or split_layers(model.num_layers, group.pp, model.sublayers)
        if sum(stages) != model.num_layers:
            raise InputError(
                f"pp_layers adds up to {sum(stages)} layers, but {model.name} has "
                f"{model.num_layers}"
            )
        if min(stages) < 1:
            raise InputError(
                f"pp_size is {group.pp}, more than the {model.num_layers} layers of {model.name}"
            )
    if group.afd is not None:
        return afd_layout(group, model, stages)
    shares = bool(model.num_experts) or group.ffn_tp is not None
    dp = members_of(group, model) if shares else 1
    ranks = group.tp * group.pcp * dp if model.num_experts else 1
    given = (
        group.ep if model.num_experts or group.ffn_tp is None else None
    )  # of a dense FFN: copies
    redundant = engine.num_redundant_experts if model.num_experts else 0
    if redundant and not engine.enable_eplb:
        raise InputError(
            f"num_redundant_experts is {redundant}, but enable_eplb is false, which places them; "
            "set it true"
        )
    layout = Layout(
        group.tp,
        ranks if given is None else given,
        dp,
        stages,
        redundant_experts=redundant,
        sequence_parallel=engine.enable_sequence_parallelism,
        prefill_context=group.pcp,
        decode_context=engine.decode_context_parallel_size,
        exchange=engine.all2all_backend,
        shared_ffn=dp > 1 and group.ffn_tp is not None and (not model.num_experts or group.ep == 1),
    )
    _refuse_what_does_not_run_yet(group, layout)
    return layout


def spread_notes(group: Group, model: ModelConfig, layout: Layout) -> list[str]:
    """Says what `ep_size` means where it is not given and vLLM's users would expect the other
    layout.
    """
    said = group.ep is not None or group.ffn_tp is not None or group.whole_experts_asked
    if said or layout.dp > 1 or layout.ep == 1:
        return []
    if group.afd is not None:
        return []
    return [
        Note(
            f"{model.name}: whole experts are spread over the {layout.ep} ranks of an instance, "
            "since no ep_size is given; vLLM without --enable-expert-parallel cuts every expert "
            'over them, which is "ep_size": 1'
        )
    ]


def with_even_graphs(group: Group, layout: Layout) -> Group:
    """The group without graphs whose tokens sequence parallelism cannot share out evenly, as in
    vLLM.
    """
    if not layout.sequence_parallel:
        return group
    sizes = tuple(size for size in group.engine.cuda_graph_sizes if size % layout.tp == 0)
    return replace(group, engine=replace(group.engine, cuda_graph_sizes=sizes))


def _refuse_what_does_not_run_yet(group: Group, layout: Layout) -> None:
    """Combinations of context parallelism with what knows nothing of it."""
    if layout.context_ranks == 1:
        return
    name = "prefill" if layout.prefill_context > 1 else "decode"
    what = ""
    if group.offloading != Offloading():
        what = "weights or attention outside of the devices"
    elif layout.dp > 1 and layout.prefill_context > 1:
        what = "experts that data-parallel ranks share"
    if what:
        size = layout.prefill_context if name == "prefill" else layout.decode_context
        raise NotYetError(
            f"{name}_context_parallel_size is {size}; together with {what} it does not run in "
            "this version; set it to 1"
        )


def expert_placement(layout: Layout, engine: EngineArgs) -> Placement:
    """Which expert is where."""
    return Placement(
        layout.ep, layout.redundant_experts, engine.enable_eplb, engine.expert_placement_strategy
    )


def stages_of(layout: Layout) -> tuple[Layout, ...]:
    """The layout of each stage."""
    return tuple(replace(layout, stage=stage) for stage in range(layout.pp))


def stage_operators(
    model: ModelConfig, layout: Layout, dtypes: Dtypes
) -> tuple[tuple[Operator, ...], ...]:
    """What one rank of each stage executes."""
    return tuple(operators(model, stage, dtypes) for stage in stages_of(layout))


def distinct_operators(
    stages: Sequence[Sequence[Operator]], model: ModelConfig, layout: Layout, dtypes: Dtypes
) -> tuple[Operator, ...]:
    """What must be priced: the operators of a replica in one stage, and what stages add."""
    if layout.pp == 1:
        return tuple(stages[0])
    whole = operators(model, replace(layout, stage_layers=(), stage=0), dtypes)
    known = {op.name for op in whole}
    added = {op.name: op for stage in stages for op in stage if op.name not in known}
    return (*whole, *added.values())


def tightest(layout: Layout, ledger: Callable[[Layout], MemoryLedger]) -> MemoryLedger:
    """The ledger of the stage with the fewest KV blocks; all stages use that number, as in vLLM."""
    return min((ledger(stage) for stage in stages_of(layout)), key=lambda one: one.num_blocks)


def batches_in_flight(group: Group) -> int:
    """1 synchronous, 2 asynchronous; one for each pipeline stage, one more by Model Runner V2, and
    what is added.

    Source: vLLM 0.24, `VllmConfig.max_concurrent_batches`.
    """
    engine = group.engine
    if group.pp > 1:
        return (
            group.pp
            + engine.pipeline_extra_batches
            + (engine.async_scheduling and bool(engine.use_v2_model_runner))
        )
    return 2 if engine.async_scheduling or overlaps(group) else 1


def lockstep_groups_of(
    deployment: Deployment, groups: Sequence[tuple[ModelConfig, "_native.ExpandedConfig | None"]]
) -> tuple[LoweredLockstep, ...]:
    """The lock-step groups of a deployment. `groups` gives each group's model, and how its nodes
    run in the engine.

    Raises InputError where members differ: one program describes them all.
    """
    in_step = [
        members_of(group, model)
        for group, (model, _) in zip(deployment.groups, groups, strict=True)
    ]
    return tuple(
        _lockstep_of(members, deployment.groups[members[0]].engine, groups[members[0]][1])
        for members in _lockstep_members(deployment, in_step)
    )


def _lockstep_of(
    members: tuple[int, ...], engine: EngineArgs, expanded: "_native.ExpandedConfig | None"
) -> LoweredLockstep:
    return LoweredLockstep(members, engine.dp_sync_interval, syncs_first(engine), expanded)


def syncs_first(engine: EngineArgs) -> bool:
    """Whether ranks agree behind the first round of a wave."""
    return load_profile(engine.engine_profile).schedules_by("agrees_first")


def _lockstep_members(
    deployment: Deployment, in_step: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Indices of the members of each lock-step group; `in_step` says how many groups move with each
    group.
    """
    lockstep_groups: dict[tuple[str, int], list[int]] = {}
    seen: dict[str, int] = {}
    for group, count in zip(deployment.groups, in_step, strict=True):
        if count > 1 and group.dp_group is not None:
            before = seen[group.dp_group] = seen.get(group.dp_group, -1) + 1
            lockstep_groups.setdefault((group.dp_group, before // count), []).append(group.index)
    for (name, _), members in lockstep_groups.items():
        first = deployment.groups[members[0]]
        for index in members[1:]:
            other = deployment.groups[index]
            for what in ("model_name", "hardware", "memory", "offloading"):
                if getattr(first, what) != getattr(other, what):
                    raise InputError(
                        f"{deployment.cluster_path}: {other.field_path}: another {what} than "
                        f"{first.field_path}, with "
                        f'which it runs in lock-step in the dp_group "{name}"; members must be '
                        "alike"
                    )
            if _options(first) != _options(other):
                raise InputError(
                    f"{deployment.cluster_path}: {other.field_path}: other engine options than "
                    f"{first.field_path}, "
                    f'with which it runs in lock-step in the dp_group "{name}"; members must be '
                    "alike"
                )
    return tuple(tuple(members) for members in lockstep_groups.values())


def _options(group: Group) -> tuple[object, ...]:
    return tuple(value for name, value in asdict(group.engine).items() if name != "origin")
