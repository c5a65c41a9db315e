"""KV in host memory under the rules of vLLM's OffloadingConnector (`kv_offloading_size`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsim import _native
from llmsim.config import Deployment, EngineArgs, Group
from llmsim.config.engine.offloading import follow_release
from llmsim.config.engine.options import KV_OFFLOADING_EVICTIONS
from llmsim.config.engine.profile import load_profile
from llmsim.config.errors import InfeasibleError, InputError, NotYetError
from llmsim.config.units import BYTES_PER_GIB
from llmsim.lowering.contention import weights_in
from llmsim.lowering.kv.tiers import bytes_per_token, rank_bytes_per_token
from llmsim.lowering.network.cluster_network import ClusterNetwork
from llmsim.lowering.offload.placement import HOST
from llmsim.model import Dtypes, Layout, MemoryLedger, ModelConfig

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

OPTION = "kv_offloading_size"
ORDERS = ("fcfs", "priority")
"""Values of scheduling_policy that vLLM has."""
PAGE_BYTES = 4096
"""Chunks begin at multiples of it (v1/kv_offload/cpu/shared_offload_region.py, from 0.27 on)."""


def offloads(deployment: Deployment) -> bool:
    """Whether any engine keeps KV in host memory by itself."""
    return any(group.engine.kv_offloading_size is not None for group in deployment.groups)


def keeps_kv_below(deployment: Deployment, *, tiers: bool) -> bool:
    """Whether KV goes below the devices, to `tiers` or by the rules of engines; InputError where it
    would by both.
    """
    alone = offloads(deployment)
    if tiers and alone:
        raise InputError(
            f"{deployment.cluster_path}: {OPTION} and --prefix-storage both keep KV below the "
            "devices, by rules of their own; remove one of them"
        )
    return tiers or alone


def refuse_offloading(group: Group, model: ModelConfig) -> None:
    """Raises NotYetError for a group whose KV cannot be offloaded in this version."""
    engine = group.engine
    if engine.kv_offloading_size is None:
        return
    keeps_less = model.linear is not None or model.layers_of("sliding") > 0
    for what, there in (
        ("a role of disaggregation (pd_type)", group.pd_type is not None or group.afd is not None),
        ("layers with states or windows", keeps_less),
        (f"scheduling_policy {engine.scheduling_policy}", engine.scheduling_policy not in ORDERS),
    ):
        if there:
            raise NotYetError(
                f"{OPTION} together with {what} does not run in this version; remove one of them"
            )


def offloading_config(
    group: Group,
    model: ModelConfig,
    layout: Layout,
    ledger: MemoryLedger,
    dtypes: Dtypes,
) -> "_native.OffloadingConfig":
    """What the group's scheduler offloads; an empty pool where that is nothing.

    Raises InfeasibleError for a pool without room for one chunk.
    """
    native = _native.OffloadingConfig()
    engine = group.engine
    if engine.kv_offloading_size is None:
        return native
    native.blocks_per_chunk = engine.kv_offloading_blocks_per_chunk or 1
    policy = engine.kv_offloading_eviction_policy or KV_OFFLOADING_EVICTIONS[0]
    profile = load_profile(engine.engine_profile)
    follow_release(native, policy, profile)
    native.prompt_only = engine.kv_offloading_prompt_only is not False
    native.store_threshold = engine.kv_offloading_store_threshold or 0
    sizes = rank_bytes_per_token(model, layout, ledger, dtypes, engine.block_size)
    tokens = engine.block_size * layout.context_ranks * native.blocks_per_chunk
    budget = engine.kv_offloading_sync_load_budget_bytes or 0
    native.sync_load_tokens = budget // sizes[0]
    copies = _stored(group, model, layout, sizes)
    page = PAGE_BYTES if profile.schedules_by("shares_host_memory") else 1
    chunk = -(-sum(copies) * tokens // page) * page
    native.num_chunks = _size_bytes(engine) // chunk
    if native.num_chunks == 0:
        raise InfeasibleError(
            f"{OPTION} is {engine.kv_offloading_size} GiB, but a chunk of {tokens} tokens takes "
            f"{chunk} B; raise it"
        )
    return native


def offloading_copies(
    deployment: Deployment, groups: Sequence["LoweredGroup"], network: ClusterNetwork | None
) -> "tuple[_native.OffloadingCopies, ...]":
    """How the KV of each group comes to the memory of its node and back; none where nobody
    offloads.

    Raises InputError where a node has no memory, or has the KV cache itself, and InfeasibleError
    where it is too small.
    """
    if not offloads(deployment):
        return ()
    assert network is not None
    _check_memories(deployment, groups)
    copies = []
    for place, group in zip(deployment.groups, groups, strict=True):
        if place.engine.kv_offloading_size is None:
            copies.append(no_copies())
            continue
        if group.offload is not None and group.offload.kv_bytes is not None:
            raise InputError(
                f"{deployment.cluster_path}: {place.field_path}: its KV cache is in the node's "
                f"memory, where it attends; leave {OPTION} out"
            )
        sizes, ranks = bytes_per_token(group), list(network.devices[place.index])
        stored = _stored(place, group.model, group.layout, sizes)
        copies.append(_native.OffloadingCopies(ranks, _hosts(place, network), sizes, stored))
    return tuple(copies)


def _hosts(group: Group, network: ClusterNetwork) -> list[int]:
    """By rank, the place of the memory of its node; all of them have one."""
    hosts = []
    for node in group.nodes:
        host = network.hosts[node]
        assert host is not None  # it has been checked
        hosts += [host] * group.devices_on_node
    return hosts


def no_copies() -> "_native.OffloadingCopies":
    """Of a group that offloads nothing."""
    return _native.OffloadingCopies([], [], [], [])


def _stored(group: Group, model: ModelConfig, layout: Layout, sizes: Sequence[int]) -> list[int]:
    """Bytes of a token that each rank stores: tensor-parallel ranks of one node that all keep the
    same latents store them once (vLLM: replicated_layout, which asks for nnodes_within_dp 1), from
    0.27 on.
    """
    same = model.latent is not None and layout.pp == 1 and layout.context_ranks == 1
    same = same and group.nnodes == 1
    same = same and load_profile(group.engine.engine_profile).schedules_by("shares_host_memory")
    return [sizes[0], *[0] * (len(sizes) - 1)] if same else list(sizes)


def _size_bytes(engine: EngineArgs) -> int:
    return int((engine.kv_offloading_size or 0) * BYTES_PER_GIB)


def _check_memories(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> None:
    """An engine over several nodes needs all of its bytes on each of them: every host has a file
    of that size, which is pinned as a whole (v1/kv_offload/cpu/shared_offload_region.py,
    gpu_worker.py).
    """
    weights = weights_in(deployment, groups)
    for node in sorted({node for group in deployment.groups for node in group.nodes}):
        engines = [group.engine for group in deployment.groups if node in group.nodes]
        wanted = sum(_size_bytes(engine) for engine in engines)
        if wanted == 0:
            continue
        memory = deployment.nodes[node].host_memory
        if memory is None:
            raise InputError(
                f"{deployment.cluster_path}: {OPTION} is given, but nodes[{node}], or the node "
                "of layouts, has no cpu_mem, which holds the KV; give it one"
            )
        room = memory.capacity_bytes - weights.get((node, HOST), 0)
        if wanted > room:
            raise InfeasibleError(
                f"{deployment.cluster_path}: {OPTION} of the instances on nodes[{node}] is "
                f"{wanted / BYTES_PER_GIB:g} GiB in all, more than its cpu_mem leaves "
                f"({room / BYTES_PER_GIB:g} GiB); lower it"
            )
