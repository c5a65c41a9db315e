"""Which scheduler a group runs, and what runs together with one in Python."""

from llmsim import _native
from llmsim.config.engine.rankings import is_ranking
from llmsim.config.engine.scheduler_kinds import INSTALLED, VLLM
from llmsim.config.errors import (
    InputError,
    NotYetError,
)
from llmsim.core import (
    Workload,
)
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.lowering.speculation.request_speculation import request_speculation
from llmsim.scheduling.conformance.vllm.ranks.exchange import Rank, RankGroup
from llmsim.scheduling.ranking import with_ranking
from llmsim.simulation.options import SimulationOptions


def ranks_of(deployment: LoweredDeployment) -> dict[int, Rank]:
    """The groups that run in lock-step with others, by index."""
    ranks: dict[int, Rank] = {}
    for lockstep in deployment.lockstep_groups:
        together = RankGroup(len(lockstep.groups))
        ranks |= {index: together.rank(number) for number, index in enumerate(lockstep.groups)}
    return ranks


def scheduler_of(
    group: LoweredGroup, workload: Workload, options: SimulationOptions, rank: Rank | None
) -> "_native.SchedulerConfig | _native.PythonSchedulerConfig":
    assert group.scheduler is not None, "the caller looked"
    steps = _scheduler_in_python(group, group.scheduler, workload, options, rank)
    if steps is None:
        return options.policies.applied(with_ranking(group.scheduler, group.engine, workload))
    # The installed vLLM says itself how many batches are in flight.
    group.native.depth = getattr(steps, "depth", group.native.depth)
    return _native.PythonSchedulerConfig(
        steps, group.scheduler.kv, group.scheduler.speculation, group.scheduler.lora
    )


def _scheduler_in_python(
    group: LoweredGroup,
    native: "_native.SchedulerConfig",
    workload: Workload,
    options: SimulationOptions,
    rank: Rank | None,
) -> object | None:
    """The installed vLLM's, or a policy's; None: the native one runs."""
    policies, engine = options.policies, group.engine
    if engine.scheduler == INSTALLED:
        if policies.queue_order or policies.victim or policies.eviction:
            raise InputError(
                "a queue order, a preemption victim or a cache eviction of yours does not reach "
                "into the installed vLLM's scheduler; choose the scheduler vllm_v1, or remove it"
            )
        from llmsim.scheduling.conformance.vllm.installed import installed_scheduler

        if engine.speculation is not None and request_speculation(workload) is not None:
            raise NotYetError(
                "acceptance_rate, accepted_drafts and num_speculative_tokens of requests do not "
                "reach the installed vLLM's scheduler; choose the scheduler vllm_v1, or remove them"
            )
        return installed_scheduler(engine, native, workload, rank)
    steps = policies.steps(native, workload)
    if steps is not None and is_ranking(engine.scheduling_policy):
        raise InputError(
            f"scheduling_policy {engine.scheduling_policy} does not reach into a scheduler in "
            "Python; remove one of them"
        )
    if steps is not None and engine.speculation is not None:
        raise NotYetError(
            f"the scheduler {policies.scheduler.name if policies.scheduler else ''} in Python does "
            "not run together with speculative_config in this version; remove one of them"
        )
    return steps


def refuse_what_a_python_scheduler_does_not_do(
    deployment: LoweredDeployment, options: SimulationOptions
) -> None:
    """Its requests can neither be handed to another group nor wait for KV."""
    if options.policies.scheduler is None:
        return
    apart = any(group.native.role != _native.Role.BOTH for group in deployment.groups)
    for is_so, what in (
        (apart, "prefill/decode disaggregation"),
        (options.tiers is not None, "KV tiers (--prefix-storage)"),
        (bool(deployment.kv_offloading), "KV offloading (kv_offloading_size)"),
    ):
        if is_so:
            raise NotYetError(
                f"a scheduler in Python together with {what} does not run in this version; "
                "remove one"
            )


def refuse_routers_by_caches(deployment: LoweredDeployment, options: SimulationOptions) -> None:
    """The installed vLLM's scheduler does not say what its prefix cache holds."""
    groups = deployment.groups
    installed = any(group.engine.scheduler == INSTALLED for group in groups)
    if not installed or len(groups) == 1:
        return
    for router in (options.router, options.decode_router):
        if router.reads_caches:
            raise NotYetError(
                f"the router {router.name} follows prefix caches, and llmsim does not hear of that "
                f"of the scheduler {INSTALLED}; choose {VLLM}, or another router"
            )
