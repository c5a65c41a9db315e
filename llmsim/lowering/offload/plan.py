"""What a group keeps or runs outside of its devices: weights that steps copy in, decodes that
attend in memory, operators on the node's processors.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.deployment import MemorySpec
from llmsim.core import PS_PER_S
from llmsim.costs import OpCost
from llmsim.costs.source import AttentionCost
from llmsim.lowering.offload.host_memory import kv_room_of, where_of
from llmsim.lowering.offload.host_operators import (
    HostPlan,
    check_devices,
    host_operators,
    host_plan,
)
from llmsim.lowering.offload.pim import PimPlan, attends_in_memory, pim_plan
from llmsim.lowering.offload.placement import DEVICE, HOST, Where, memory_at
from llmsim.lowering.offload.weight_streaming import (
    StageCopies,
    Uneven,
    copies_of,
    sources_of,
    weight_streaming,
)
from llmsim.model import Dtypes, Elsewhere, Layout, ModelConfig, Operator
from llmsim.power.traffic import weight_bytes as bytes_touched

INTERLEAVING = {
    "never": _native.Interleaving.NEVER,
    "shorter": _native.Interleaving.WHEN_SHORTER,
    "always": _native.Interleaving.ALWAYS,
}


class OffloadPlan(Struct, frozen=True, eq=False):
    """What the core, the memory ledger and the energy account need to know."""

    native: "_native.OffloadConfig"
    """Complete once `complete` has been called, but for places on the network."""
    where: Where
    copies: StageCopies
    pim: PimPlan | None
    host: HostPlan | None
    notes: tuple[str, ...]

    @property
    def source(self) -> str:
        """What times of copies, and of memory that computes, come from."""
        parts = [] if self.pim is None else [f"attention in {self.pim.part.name}"]
        parts += ["copies over the links of the cluster file"] * (len(self.copies.places) > 0)
        return " and ".join(parts) or "memory of the cluster file"

    @property
    def kv_bytes(self) -> int | None:
        """Bytes of the memory that holds a rank's KV; None: the device."""
        if self.pim is not None:
            return self.pim.kv_bytes
        return None if self.host is None else self.host.kv_bytes

    def elsewhere(self, stage: int) -> Elsewhere:
        """What a device of a stage need not hold."""
        weights = sum(self.where.bytes_elsewhere(stage).values())
        return Elsewhere(weights, self.copies.buffer_bytes[stage], self.kv_bytes)

    @property
    def memories(self) -> frozenset[str]:
        """The memories beside the devices that steps reach over the node's links, but for those
        that compute.
        """
        return frozenset([*self.copies.places, *((HOST,) if self.host is not None else ())])

    @property
    def num_movers(self) -> int:
        """Kinds of traffic on a device's port: copies, attention in memory, operators
        on the host.
        """
        return (len(self.copies.places) > 0) + (self.pim is not None) + (self.host is not None)


def offload_plan(
    deployment: Deployment,
    group: Group,
    model: ModelConfig,
    layout: Layout,
    stages: Sequence[Sequence[Operator]],
    operators: tuple[Operator, ...],
    max_model_len: int,
    tables: dict[str, int],
) -> OffloadPlan | None:
    """The plan of a group; None where everything is on its devices. Raises InputError,
    InfeasibleError, NotYetError.

    `operators` are the distinct ones of all stages; `tables` says how far a table over each feature
    reaches.
    """
    check_devices(group, operators)
    where = where_of(group, model, layout, stages)
    hosted = where.hosted
    there = [where.bytes_elsewhere(stage) for stage in range(len(stages))]
    pim = None
    kv_room = kv_room_of(deployment, group.node)
    if attends_in_memory(group):
        pim = pim_plan(deployment, group, model, operators, max_model_len, kv_room)
    elif group.offloading.attention and not (hosted or any(there)):
        return None
    host = host_plan(deployment, group, operators, kv_room)
    if not any(there) and pim is None and host is None:
        return None
    copies = copies_of(where, tables)
    notes = [_copy_note(deployment, group, place) for place in copies.places]
    notes += [plan.note for plan in (pim, host) if plan is not None]
    config = _native.OffloadConfig()
    config.interleaving = INTERLEAVING[group.offloading.sub_batches if pim or host else "never"]
    return OffloadPlan(config, where, copies, pim, host, tuple(notes))


def _copy_note(deployment: Deployment, group: Group, place: str) -> str:
    link = deployment.host_links.of_node(group.node)
    memory = memory_at(deployment, group.node, place)
    rate = min(memory.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s)
    return f"weights are copied from {place} at up to {rate / 1e9:g} GB/s to each device"


def complete(
    plan: OffloadPlan,
    deployment: Deployment,
    group: Group,
    model: ModelConfig,
    dtypes: Dtypes,
    costs: Sequence[OpCost | AttentionCost],
    uneven: Uneven,
    tp: int,
) -> None:
    """Gives the core what belongs to operators of the program, whose costs are `costs`."""
    stages, native = plan.where.stages, plan.native
    sources = sources_of(deployment, group, plan.copies, {}, tp)
    native.weights = weight_streaming(
        plan.copies, stages, costs, sources, uneven, group.offloading.expert_cache
    )
    if plan.pim is not None:
        native.pim = plan.pim.native
    if plan.host is not None:
        native.host = host_operators(deployment, group, plan.host, model, dtypes, stages, costs, tp)


def evicted_notes(deployment: Deployment) -> tuple[str, ...]:
    """What a placement says about evicted KV has no effect without a second tier of the prefix
    cache.
    """
    for group in deployment.groups:
        placement = group.offloading.placement
        if placement and any(
            entry.kv_evict_loc not in (None, DEVICE) for entry in placement.entries
        ):
            return (
                (
                    "placement.kv_evict_loc says where a second tier of the prefix cache is; "
                    "without it, nothing is there"
                ),
            )
    return ()


def on_network(
    plan: OffloadPlan,
    deployment: Deployment,
    group: Group,
    tp: int,
    ranks: Sequence[int],
    places: dict[str, int],
    pim_places: Sequence[int],
) -> "_native.OffloadConfig":
    """The core's plan for a group whose steps meet other transfers: `ranks`, `places` and
    `pim_places` are the numbers of its devices, of the memories beside them and of each rank's
    channels on the network.
    """
    native = copy(plan.native)
    native.shared = True
    native.ranks = [list(ranks[first : first + tp]) for first in range(0, len(ranks), tp)]
    native.weights.sources = sources_of(deployment, group, plan.copies, places, tp)
    if plan.pim is not None:
        pim = native.pim
        pim.places = list(pim_places)
        native.pim = pim
    if plan.host is not None:
        native.host.place = places[HOST]
    return native


def local_reads(
    costs: tuple[OpCost, ...], operators: tuple[Operator, ...], memory: MemorySpec
) -> tuple[OpCost, ...]:
    """`enable_local_offloading`: an execution takes at least what its weights take from the
    device's memory as the file states it (latency + bytes / mem_bw). Times of kernels contain their
    own reads, so nothing is added twice.
    """
    by_name = {op.name: op for op in operators}
    changed = []
    for cost in costs:
        op = by_name.get(cost.name)
        if op is None or not op.weight_bytes:
            changed.append(cost)
            continue
        size = np.ceil(bytes_touched(op, np.arange(len(cost.ps)))).astype(np.int64)
        least = [
            memory.latency_ps - (-one * PS_PER_S // memory.bandwidth_bytes_per_s) if one else 0
            for one in size.tolist()
        ]
        changed.append(replace(cost, ps=np.maximum(cost.ps, np.array(least, np.int64))))
    return tuple(changed)
