"""Layouts of a cluster file: each is resolved and lowered as if it served alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from llmsim.api.checked.run_options import RunOptions
from llmsim.config.errors import InputError, NotYetError, PluginRefused

if TYPE_CHECKING:
    from llmsim.config import Cluster as ClusterModel
    from llmsim.config import Deployment
    from llmsim.lowering import LoweredDeployment
    from llmsim.lowering.layouts import LayoutPlan, LayoutPlans
    from llmsim.scheduling.reconfigure import Decision

Lower = Callable[["Deployment"], "LoweredDeployment"]
Resolve = Callable[["ClusterModel"], "Deployment"]


def plans_of(
    cluster: "ClusterModel", options: RunOptions, resolve: Resolve, lower: Lower
) -> "LayoutPlans":
    """The layouts of a cluster file with the costs of switching; raises InputError,
    InfeasibleError, and NotYetError for what does not run together with layouts.
    """
    from llmsim.config.cluster_file.cluster import first_layout, places_of, serving
    from llmsim.config.cluster_file.json_positions import field_path
    from llmsim.config.cluster_file.layouts import Reconfiguration
    from llmsim.lowering.layouts import LayoutPlan, plan_layouts

    assert cluster.layouts is not None
    cost = cluster.reconfiguration or Reconfiguration()
    plans = []
    for name in cluster.layouts:
        deployment = resolve(serving(cluster, name))
        paths = {
            field_path(("nodes", 0, "instances", i)): field_path(at)
            for i, (at, _) in enumerate(places_of(cluster, name))
        }
        plans.append(LayoutPlan(name, deployment, lower(deployment), paths))
    _refuse(cluster, options, plans)
    if cost.weights == "cached" and cost.fixed_s is None:
        plans = _with_all_shards(plans, lower)
    initial = list(cluster.layouts).index(first_layout(cluster))
    return plan_layouts(plans, initial, cluster.switch, cost, _decide(cluster))


def _decide(cluster: "ClusterModel") -> "Callable[[], Decision] | None":
    """Makes what asks the class that the cluster file names."""
    if cluster.decide is None:
        return None
    from llmsim.scheduling.reconfigure import decision, parse_reconfigure

    assert cluster.layouts is not None
    try:
        maker = parse_reconfigure(cluster.decide)
    except PluginRefused:
        raise
    except InputError as error:
        raise InputError(f"{cluster.position(('decide',))}: {error}") from error
    return partial(decision, maker, list(cluster.layouts))


def _with_all_shards(plans: "list[LayoutPlan]", lower: Lower) -> "list[LayoutPlan]":
    """Every device holds its shards of all layouts, which leaves less for KV."""
    from llmsim.lowering.layouts import largest_shard

    shards = [largest_shard(plan) for plan in plans]
    made = []
    for plan, own in zip(plans, shards, strict=True):
        groups = []
        for group in plan.deployment.groups:
            others = round((sum(shards) - own) / group.engine.gpu_memory_utilization)
            memory = replace(group.memory, capacity_bytes=group.memory.capacity_bytes - others)
            groups.append(replace(group, memory=memory))
        deployment = replace(plan.deployment, groups=tuple(groups))
        made.append(replace(plan, deployment=deployment, lowered=lower(deployment)))
    return made


def _refuse(cluster: "ClusterModel", options: RunOptions, plans: "list[LayoutPlan]") -> None:
    asked = any(
        group.engine.endpoint is not None for plan in plans for group in plan.lowered.groups
    )
    shared = [plan.name for plan in plans if plan.lowered.network is not None]
    for is_so, what, remedy in (
        (options.tiers is not None, "KV tiers (--prefix-storage)", "leave them out"),
        (options.outside, "steps timed by another ASTRA-sim", "leave --network-backend out"),
        (bool(shared), f"groups of {', '.join(shared)} that share links or memory", "keep apart"),
        (options.graphs is not None, "--graphs", "leave it out"),
        (asked, "an endpoint of the API server", "leave endpoint out"),
        (_any_engine(plans, "sglang"), "the scheduler sglang", "choose vllm_v1"),
    ):
        if is_so:
            raise NotYetError(
                f"{cluster.path}: layouts together with {what} do not run in this version; {remedy}"
            )


def _any_engine(plans: "list[LayoutPlan]", scheduler: str) -> bool:
    """Whether some group has the scheduler."""
    engines = [group.engine for plan in plans for group in plan.lowered.groups]
    return any(engine.scheduler == scheduler for engine in engines)
