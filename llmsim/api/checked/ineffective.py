"""What was given and changes nothing in this cluster: said in notes of the run, never passed over
in silence.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmsim.config.constraints import shown
from llmsim.config.engine.quick_reduce import QUICK_REDUCE_LIMITS
from llmsim.costs.nccl.protocols import QUICK

if TYPE_CHECKING:
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.config import Cluster, Deployment
    from llmsim.lowering import LoweredDeployment


def unused_notes(
    options: "RunOptions", deployment: "Deployment", lowered: "LoweredDeployment"
) -> tuple[str, ...]:
    """One sentence for each: what it is, and what it would have an effect on."""
    notes = list(options.without_effect)
    if deployment.disaggregation is None and options.decode_router.text != "LOAD":
        notes.append(
            f"--decode-routing-policy {options.decode_router.text} changes nothing: no instance "
            "has the pd_type decode"
        )
    experts = options.expert_routing
    if not experts.balanced and not any(group.model.num_moe_layers for group in lowered.groups):
        notes.append(
            f"--expert-routing-policy {experts.label} changes nothing: no model of the cluster "
            "has experts"
        )
    latencies = {
        group.memory.latency_ps // 1000
        for group in deployment.groups
        if not group.offloading.local_reads
    } - {0}
    notes += [
        f"npu_mem.mem_latency of the cluster file ({latency} ns) is not used: the times of kernels "
        "contain it (--enable-local-offloading uses it)"
        for latency in sorted(latencies)
    ]
    notes += unused_quick_reduce(deployment, lowered)
    return tuple(notes)


def overridden_options(cluster: "Cluster", options: "RunOptions") -> Iterator[str]:
    """One sentence for each option that every instance of the file gives a value of its own, where
    one of these is another.
    """
    from llmsim.config.overridden import overridden

    for option in overridden(cluster, options.engine, options.switches):
        if (other := option.other) is not None:
            yield (
                f"{option.words} changes nothing: every instance has a value of its own, and "
                f"{cluster.position(other.place)} is {shown(other.value)}"
            )


def unused_quick_reduce(deployment: "Deployment", lowered: "LoweredDeployment") -> Iterator[str]:
    """One sentence for each group that no quick all-reduce is taken in, and for each variable of
    one that is off.
    """
    for group, one in zip(deployment.groups, lowered.groups, strict=True):
        asked = group.engine.quick_reduce_quantization
        if asked in (None, "NONE"):
            given = [
                name for name in QUICK_REDUCE_LIMITS if getattr(group.engine, name) is not None
            ]
            yield from (
                f"{group.field_path}: {name} changes nothing: quick_reduce_quantization is NONE"
                for name in given
            )
        elif not any(QUICK in cost.source for cost in one.program_costs):
            yield (
                f"{group.field_path}: quick_reduce_quantization {asked} changes nothing: engines "
                "take it for large vectors among 2, 4 or 8 MI300 and their like in a server, whose "
                "own links price them (docs/explanation/collectives.md)"
            )
