"""What was given and changes nothing in this cluster: said in notes of the run, never passed over
in silence.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmsim.config.constraints import shown
from llmsim.config.engine.quick_reduce import QUICK_REDUCE_LIMITS
from llmsim.core import Note
from llmsim.costs.nccl.protocols import QUICK

if TYPE_CHECKING:
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.config import Cluster, Deployment
    from llmsim.core import Workload
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
    notes += dict.fromkeys(unused_of_models(deployment, lowered))
    return tuple(notes)


def unused_of_models(deployment: "Deployment", lowered: "LoweredDeployment") -> Iterator[str]:
    """One sentence for each option of layers with windows or states that a model does not have."""
    from llmsim.lowering.kv.sglang_pools import window_of
    from llmsim.model.memory.hybrid_groups import SEES_ALL

    for one in lowered.groups:
        if one.scheduler is None:
            continue
        lacks = {
            "windows or states": {*one.scheduler.kv.tables.windows} <= {SEES_ALL},
            "windows in a pool of their own": window_of(one.engine, one.model) == 0,
            "states": one.model.linear is None,
        }
        for option, layers in _OF_LAYERS.items():
            given = not one.engine.is_default(option)
            value = getattr(one.engine, option)
            if given and lacks[layers]:
                yield f"{option} {shown(value)} changes nothing: {one.model.name} has no {layers}"


_OF_LAYERS = {
    "prefix_cache_retention_interval": "windows or states",
    "swa_full_tokens_ratio": "windows in a pool of their own",
    "mamba_full_memory_ratio": "states",
    "max_mamba_cache_size": "states",
    "mamba_radix_cache_strategy": "states",
    "mamba_track_interval": "states",
}
"""Options of the engine, and the layers whose KV they are about."""
_OF_IMAGES = ("max_num_encoder_input_tokens", "encoder_cache_size", "disable_chunked_mm_input")
"""Options of what requests have encoded."""


def unused_of_images(deployment: "Deployment", workload: "Workload") -> Iterator[Note]:
    """One sentence for each option of images and the like that no request brings."""
    if workload.encoder_inputs is not None:
        return
    for option in _OF_IMAGES:
        engines = [one.engine for one in deployment.groups if not one.engine.is_default(option)]
        for value in dict.fromkeys(getattr(engine, option) for engine in engines):
            yield Note(
                f"{option} {shown(value)} changes nothing: no request of the trace has "
                "encoder_inputs"
            )


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
