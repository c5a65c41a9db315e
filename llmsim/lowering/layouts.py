"""How a group's devices share the model: its layout, its pipeline stages, and the domain that it runs in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmsim import _native
from llmsim.config import Deployment, EngineArgs, Group
from llmsim.config.errors import InputError
from llmsim.costs.expert_loads import Placement
from llmsim.model import Dtypes, Layout, MemoryLedger, ModelConfig, Operator, operators
from llmsim.model.parallel import split_layers


@dataclass(frozen=True, eq=False)
class LoweredWave:
    """Groups that run in lock-step."""

    groups: tuple[int, ...]
    sync_interval: int
    """Rounds between two agreements on whether the wave has ended."""
    expanded: "_native.ExpandedConfig | None"


def members_of(group: Group, model: ModelConfig) -> int:
    """Groups that move in lock-step with this one, itself included: the data-parallel ranks of a mixture of experts,
    which share the experts. Dense ranks are engines of their own unless `lockstep_dense_dp` says otherwise."""
    return group.dp if model.num_experts or group.engine.lockstep_dense_dp else 1


def layout_of(group: Group, model: ModelConfig) -> Layout:
    """Experts are spread over all ranks that hold them unless the file says otherwise.

    Raises InputError where the layers do not fit the stages.
    """
    dp = group.dp if model.num_experts else 1
    ranks = group.tp * dp if model.num_experts else 1
    stages: tuple[int, ...] = ()
    if group.pp > 1:
        stages = group.pp_layers or split_layers(model.num_layers, group.pp)
        if sum(stages) != model.num_layers:
            raise InputError(f"pp_layers adds up to {sum(stages)} layers, but {model.name} has {model.num_layers}")
        if min(stages) < 1:
            raise InputError(f"pp_size is {group.pp}, more than the {model.num_layers} layers of {model.name}")
    redundant = group.engine.num_redundant_experts if model.num_experts else 0
    if redundant and not group.engine.enable_eplb:
        raise InputError(
            f"num_redundant_experts is {redundant}, but enable_eplb is false, which places them; set it true"
        )
    return Layout(group.tp, ranks if group.ep is None else group.ep, dp, stages, redundant_experts=redundant)


def expert_placement(layout: Layout, engine: EngineArgs) -> Placement:
    """Which expert is where."""
    return Placement(layout.ep, layout.redundant_experts, engine.enable_eplb, engine.expert_placement_strategy)


def stages_of(layout: Layout) -> tuple[Layout, ...]:
    """The layout of each stage."""
    return tuple(replace(layout, stage=stage) for stage in range(layout.pp))


def stage_operators(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[tuple[Operator, ...], ...]:
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
    """1 synchronous, 2 asynchronous; one for each pipeline stage, and what the engine adds."""
    if group.pp > 1:
        return group.pp + group.engine.pipeline_extra_batches
    return 2 if group.engine.async_scheduling else 1


def lockstep_waves(
    deployment: Deployment, groups: Sequence[tuple[ModelConfig, "_native.ExpandedConfig | None"]]
) -> tuple[LoweredWave, ...]:
    """The waves of a deployment; of every group its model, and how to run its domain's nodes in the engine.

    Raises InputError where members differ: one program describes them all.
    """
    in_step = [members_of(group, model) for group, (model, _) in zip(deployment.groups, groups, strict=True)]
    return tuple(
        LoweredWave(members, deployment.groups[members[0]].engine.dp_sync_interval, groups[members[0]][1])
        for members in _wave_members(deployment, in_step)
    )


def _wave_members(deployment: Deployment, in_step: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Indices of the groups of each wave; `in_step` says of every group how many move with it."""
    waves: dict[str, list[int]] = {}
    for group, count in zip(deployment.groups, in_step, strict=True):
        if count > 1 and group.dp_group is not None:
            waves.setdefault(group.dp_group, []).append(group.index)
    for name, members in waves.items():
        first = deployment.groups[members[0]]
        for index in members[1:]:
            other = deployment.groups[index]
            for what in ("model_name", "hardware", "memory"):
                if getattr(first, what) != getattr(other, what):
                    raise InputError(
                        f"{deployment.cluster_path}: {other.field_path}: another {what} than {first.field_path}, with "
                        f'which it runs in lock-step in the dp_group "{name}"; members must be alike'
                    )
            if _options(first) != _options(other):
                raise InputError(
                    f"{deployment.cluster_path}: {other.field_path}: other engine options than {first.field_path}, "
                    f'with which it runs in lock-step in the dp_group "{name}"; members must be alike'
                )
    return tuple(tuple(members) for members in waves.values())


def _options(group: Group) -> tuple[object, ...]:
    return tuple(value for name, value in vars(group.engine).items() if name != "origin")
