"""Pools of KV below the devices: which there are, who shares them, and where they are on the cluster's network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.errors import InputError, NotYetError
from llmsim.lowering.network import ClusterNetwork, cluster_network

if TYPE_CHECKING:
    from llmsim.lowering.deployment import LoweredGroup

Medium = Literal["CPU", "CXL"]
WRITE = {
    "write-through": _native.TierWrite.THROUGH,
    "write-through-selective": _native.TierWrite.SELECTIVE,
    "write-back": _native.TierWrite.BACK,
}
EVICTION = {"lru": _native.TierEviction.LRU, "lfu": _native.TierEviction.LFU, "cost": _native.TierEviction.COST}


@dataclass(frozen=True)
class KvTierOptions:
    """`media` in order of lookup, the nearest first; see docs/kv_tiers.md."""

    media: tuple[Medium, ...]
    shared: bool = False
    write: str = "write-through"
    eviction: str = "lru"
    chunk_tokens: int = 256


@dataclass(frozen=True, eq=False)
class LoweredTiers:
    """What a run needs; immutable."""

    network: ClusterNetwork
    config: "_native.KvTiersConfig"

    def install(self, simulation: "_native.Simulation") -> None:
        """After the groups have been added."""
        simulation.set_fabric(self.network.config)
        simulation.set_kv_tiers(self.config)


def parse_tiers(
    storage: str | None, *, shared: bool, write: str | None, eviction: str | None, chunk_tokens: int | None
) -> KvTierOptions | None:
    """The options of the command line; None without a storage. Raises InputError for what cannot be."""
    media = [] if storage is None or storage.lower() == "none" else storage.upper().split("+")
    if any(medium not in ("CPU", "CXL") for medium in media) or len(set(media)) != len(media):
        raise InputError(f'--prefix-storage is "{storage}"; it may be None, CPU, CXL or CPU+CXL')
    given = {"--kv-tier-write": write, "--kv-tier-eviction": eviction, "--kv-chunk-size": chunk_tokens}
    if not media:
        option = next((name for name, value in given.items() if value is not None), None)
        if shared or option:
            raise InputError(
                f"{'--enable-prefix-sharing' if shared else option} has an effect only with a second tier of the "
                "prefix cache: add --prefix-storage CPU or CXL"
            )
        return None
    if write not in (None, *WRITE):
        raise InputError(f'--kv-tier-write is "{write}"; it may be {", ".join(WRITE)}')
    if eviction not in (None, *EVICTION):
        raise InputError(f'--kv-tier-eviction is "{eviction}"; it may be {", ".join(EVICTION)}')
    if chunk_tokens is not None and not 1 <= chunk_tokens <= 1 << 20:
        raise InputError(f"--kv-chunk-size is {chunk_tokens}; it must be from 1 to {1 << 20} tokens")
    return KvTierOptions(
        media=tuple(media),  # type: ignore[arg-type]  # checked above
        shared=shared,
        write=write or "write-through",
        eviction=eviction or "lru",
        chunk_tokens=chunk_tokens or 256,
    )


def lower_tiers(deployment: Deployment, groups: Sequence["LoweredGroup"], options: KvTierOptions) -> LoweredTiers:
    """The pools of a deployment. A host's memory is cut into equal parts for its groups, or shared by them; the CXL
    pool is cut into equal parts for all groups, or shared by them.

    Raises InputError where the file declares no such memory, where a chunk is not whole blocks of a group, or where a
    group has no prefix cache; NotYetError for groups that cannot have tiers.
    """
    for group in deployment.groups:
        _check(deployment, group, groups[group.index].engine, options)
    network = cluster_network(deployment)
    config = _native.KvTiersConfig(WRITE[options.write])
    eviction = EVICTION[options.eviction]
    pools: dict[tuple[Medium, int], int] = {}

    def pool(medium: Medium, owner: int, name: str, capacity: int, place: int) -> int:
        key = (medium, owner)
        if key not in pools:
            pools[key] = config.add_pool(name, capacity, eviction, place)
        return pools[key]

    models = tuple(dict.fromkeys(group.model_name for group in deployment.groups))
    for group in deployment.groups:
        mine = []
        for medium in options.media:
            place, capacity, sharers, scope = _memory(deployment, group, network, medium)
            if options.shared:
                owner = group.node if medium == "CPU" else 0
                mine.append(pool(medium, owner, f"{medium} of {scope}", capacity, place))
            else:
                mine.append(pool(medium, group.index, f"{medium} of group {group.index}", capacity // sharers, place))
        ledger, engine = groups[group.index].ledger, groups[group.index].engine
        per_token = ledger.block_bytes // engine.block_size
        ranks = list(network.devices[group.index])
        config.add_group(mine, ranks, options.chunk_tokens, per_token, models.index(group.model_name))
    return LoweredTiers(network, config)


def _memory(deployment: Deployment, group: Group, network: ClusterNetwork, medium: Medium) -> tuple[int, int, int, str]:
    """(place, bytes, groups among which it is cut, whose it is)."""
    if medium == "CPU":
        node = deployment.nodes[group.node]
        place = network.hosts[group.node]
        if place is None or node.host_memory is None:
            raise InputError(
                f"{deployment.cluster_path}: nodes[{group.node}] has no cpu_mem, which --prefix-storage CPU keeps KV in"
            )
        return place, node.host_memory.capacity_bytes, len(node.groups), f"node {group.node}"
    if network.pool is None or deployment.pool is None:
        raise InputError(f"{deployment.cluster_path}: it has no cxl_mem, which --prefix-storage CXL keeps KV in")
    return network.pool, deployment.pool.whole.capacity_bytes, len(deployment.groups), "the cluster"


def _check(deployment: Deployment, group: Group, engine: "object", options: KvTierOptions) -> None:
    where = f"{deployment.cluster_path}: {group.field_path}"
    for is_so, what in (
        (group.pd_type is not None, "prefill/decode disaggregation"),
        (group.dp_group is not None, "a data-parallel group"),
        (group.pp > 1, "pipeline parallelism"),
        (getattr(engine, "scheduler", "") != "vllm_v1", "a scheduler other than vllm_v1"),
    ):
        if is_so:
            raise NotYetError(f"{where}: KV tiers together with {what} do not run in this version; remove one of them")
    block_size = getattr(engine, "block_size", 1)
    if options.chunk_tokens % block_size:
        raise InputError(
            f"{where}: --kv-chunk-size is {options.chunk_tokens} tokens, which is not whole blocks of {block_size}"
        )
    if not getattr(engine, "enable_prefix_caching", True):
        raise InputError(f"{where}: KV tiers need the prefix cache, which enable_prefix_caching turns off")
