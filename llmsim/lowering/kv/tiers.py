"""Pools of KV below the devices: which there are, who shares them, and where they are on the
cluster's network.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from llmsim import _native
from llmsim.config import Deployment, EngineArgs, Group
from llmsim.config.engine.scheduler_kinds import KINDS
from llmsim.config.errors import InfeasibleError, InputError
from llmsim.lowering.contention import Memory, weights_in
from llmsim.lowering.network.cluster_network import EVERY_NODE, ClusterNetwork
from llmsim.lowering.offload.host_memory import memory_of_several_nodes
from llmsim.lowering.offload.placement import HOST
from llmsim.lowering.parallel_layout import stages_of
from llmsim.model import Dtypes, Layout, MemoryLedger, ModelConfig
from llmsim.model.memory.sizes import kv_bytes_per_token

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

Medium = Literal["CPU", "CXL", "SSD", "NVMEOF"]
MEDIA: tuple[Medium, ...] = ("CPU", "CXL", "SSD", "NVMEOF")
"""Memory of the node, the cluster's CXL pool, storage of the node, storage of the cluster."""
OF_NODE = ("CPU", "SSD")
WRITE = {
    "write-through": _native.TierWrite.THROUGH,
    "write-through-selective": _native.TierWrite.SELECTIVE,
    "write-back": _native.TierWrite.BACK,
}
EVICTION = {
    "lru": _native.TierEviction.LRU,
    "lfu": _native.TierEviction.LFU,
    "cost": _native.TierEviction.COST,
}


RECALL = {"sync": False, "async": True}


class KvTierOptions(Struct, frozen=True):
    """`media` in order of lookup, the nearest first; see docs/explanation/kv_tiers.md."""

    media: tuple[Medium, ...]
    evictions: tuple[str, ...]
    """One for each medium."""
    shared: bool = False
    write: str = "write-through"
    recall: str = "sync"
    chunk_tokens: int = 256


class LoweredTiers(Struct, frozen=True, eq=False):
    """What a run needs; immutable."""

    network: ClusterNetwork
    config: "_native.KvTiersConfig"


def parse_tiers(
    storage: str | None,
    *,
    shared: bool,
    write: str | None,
    eviction: str | None,
    chunk_tokens: int | None,
    recall: str | None,
) -> KvTierOptions | None:
    """The options of the command line; None without a storage. Raises InputError for what cannot
    be.
    """
    media = [] if storage is None or storage.lower() == "none" else storage.upper().split("+")
    if any(medium not in MEDIA for medium in media) or len(set(media)) != len(media):
        raise InputError(
            f'--prefix-storage is "{storage}"; it may be None, {", ".join(MEDIA)}, or several of '
            "them joined by +, "
            "such as CPU+SSD"
        )
    given = {
        "--kv-tier-write": write,
        "--kv-tier-eviction": eviction,
        "--kv-tier-recall": recall,
        "--kv-chunk-size": chunk_tokens,
    }
    if not media:
        option = next((name for name, value in given.items() if value is not None), None)
        if shared or option:
            raise InputError(
                f"{'--enable-prefix-sharing' if shared else option} has an effect only with a "
                f"second tier of the prefix cache: add --prefix-storage {' or '.join(MEDIA)}"
            )
        return None
    for option, value, known in (
        ("--kv-tier-write", write, WRITE),
        ("--kv-tier-recall", recall, RECALL),
    ):
        if value is not None and value not in known:
            raise InputError(f'{option} is "{value}"; it may be {", ".join(known)}')
    if chunk_tokens is not None and not 1 <= chunk_tokens <= 1 << 20:
        raise InputError(
            f"--kv-chunk-size is {chunk_tokens}; it must be from 1 to {1 << 20} tokens"
        )
    return KvTierOptions(
        media=tuple(media),  # type: ignore[arg-type]  # checked above
        evictions=_evictions(eviction or "lru", len(media)),
        shared=shared,
        write=write or "write-through",
        recall=recall or "sync",
        chunk_tokens=chunk_tokens or 256,
    )


def _evictions(text: str, count: int) -> tuple[str, ...]:
    names = text.split("+")
    if any(name not in EVICTION for name in names):
        raise InputError(
            f'--kv-tier-eviction is "{text}"; it may be {", ".join(EVICTION)}, or one for each '
            "medium joined by +"
        )
    if len(names) not in (1, count):
        raise InputError(
            f'--kv-tier-eviction is "{text}", {len(names)} names; give one, or one for each of '
            f"the {count} media"
        )
    return tuple(names) if len(names) == count else tuple(names) * count


_Pool = tuple[str, int, "_native.TierEviction", list[int], int, int, int]
"""Name, bytes, eviction, places, queue depth, and latencies of a read and of a write."""


class TierPools(Struct):
    """Pools of a run, which the groups of several layouts may share."""

    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    described: list[_Pool] = field(default_factory=list)

    def number(self, key: tuple[object, ...], description: _Pool) -> int:
        """Of the pool with this key, which is made if nobody has asked for it."""
        if key not in self.numbers:
            self.numbers[key] = len(self.described)
            self.described.append(description)
        return self.numbers[key]


def lower_tiers(
    deployment: Deployment,
    groups: Sequence["LoweredGroup"],
    options: KvTierOptions,
    network: ClusterNetwork,
    pools: TierPools | None = None,
    layout: str | None = None,
) -> LoweredTiers:
    """The pools of a deployment. What is a node's is cut into equal parts for its groups, or shared
    by them; what is the cluster's is cut into equal parts for all groups, or shared by them. A
    group on several nodes has a part of each. Weights in the same memory come first. FFN groups
    keep no KV, and have no part. `pools` has those of other layouts of the same devices; what is
    shared is the same for all of them.

    Raises InputError where the file declares no such memory, where a chunk is not whole blocks of a
    group, or where a group has no prefix cache; InfeasibleError where weights leave no room;
    NotYetError for schedulers that cannot park requests, and for groups on several nodes with
    storage of a node or a shared pool in host memory.
    """
    weights = weights_in(deployment, groups)
    for group in deployment.groups:
        _check(deployment, group, groups[group.index].engine, options)
        plan = groups[group.index].offload
        if plan is not None and plan.kv_bytes is not None:
            raise InputError(
                f"{deployment.cluster_path}: {group.field_path}: its KV cache is in the node's "
                "memory, where it "
                "attends; there is no tier below that, so leave --prefix-storage out"
            )
    pools = TierPools() if pools is None else pools
    members: list[tuple[list[int], list[int], list[int], str]] = []
    models = tuple(dict.fromkeys(group.model_name for group in deployment.groups))
    with_kv = [group for group in deployment.groups if group.role != "ffn"]
    on_node = Counter(node for group in with_kv for node in group.nodes)
    for group in deployment.groups:
        mine, per_token = [], bytes_per_token(groups[group.index])
        chosen = zip(options.media, options.evictions, strict=True)
        for medium, eviction in chosen if group.role != "ffn" else ():
            of_node = medium in OF_NODE
            memories = _memories(deployment, group, network, medium)
            sharers = [on_node[memory.node] if of_node else len(with_kv) for memory in memories]
            parts = [1 if options.shared else count for count in sharers]
            rooms = [
                _room(deployment, group, memory, weights, medium) // count
                for memory, count in zip(memories, parts, strict=True)
            ]
            owner = (group.node if of_node else 0) if options.shared else group.index
            size = _whole_bytes(rooms, per_token)
            name = f"{medium} of {_owner(group, options, layout, of_node=of_node)}"
            key = medium, owner, None if options.shared else layout
            places = [memory.place for memory in memories]
            how = EVICTION[eviction], places, *memories[0].operations
            mine.append(pools.number(key, (name, size, *how)))
        ranks = list(network.devices[group.index])
        members.append((mine, ranks, per_token, group.model_name))
    return LoweredTiers(network, _config(options, network, pools, members, models))


def _room(
    deployment: Deployment,
    group: Group,
    memory: "_Memory",
    weights: Mapping[Memory, int],
    medium: Medium,
) -> int:
    """What weights leave of a memory."""
    room = memory.capacity_bytes - _weights(weights, memory.node, medium)
    if room <= 0:
        raise InfeasibleError(
            f"{deployment.cluster_path}: {group.field_path}: the weights in that memory "
            f"leave no room for --prefix-storage {medium} ({room} B)"
        )
    return room


def _whole_bytes(rooms: Sequence[int], per_token: Sequence[int]) -> int:
    """Bytes of all ranks that a pool holds whose memories have `rooms` for the shares of as many
    of the ranks each: that which is full first has as many tokens as the pool.
    """
    ranks, total = len(per_token) // len(rooms), sum(per_token)
    shares = [sum(per_token[i * ranks : (i + 1) * ranks]) for i in range(len(rooms))]
    return min(room * total // share for room, share in zip(rooms, shares, strict=True))


def _owner(group: Group, options: KvTierOptions, layout: str | None, *, of_node: bool) -> str:
    """Whose pool it is, for people."""
    if options.shared:
        return f"node {group.node}" if of_node else "the cluster"
    return f"group {group.index}" if layout is None else f"group {group.index} of {layout}"


def _config(
    options: KvTierOptions,
    network: ClusterNetwork,
    pools: TierPools,
    members: Sequence[tuple[list[int], list[int], list[int], str]],
    models: Sequence[str],
) -> "_native.KvTiersConfig":
    how = WRITE[options.write], RECALL[options.recall], options.shared
    config = _native.KvTiersConfig(*how)
    if network.stripes:
        config.stripe(_placed(network.pool), list(network.stripes))
    for description in pools.described:
        config.add_pool(*description)
    for mine, ranks, per_token, model in members:
        config.add_group(mine, ranks, options.chunk_tokens, per_token, models.index(model))
    return config


def _weights(weights: Mapping[Memory, int], node: int, medium: Medium) -> int:
    """Bytes of weights in the memory that holds the pool; the cluster's pool is spread over all of
    its devices.
    """
    if medium == "CPU":
        return weights.get((node, HOST), 0)
    if medium == "CXL":
        return sum(size for (where, _), size in weights.items() if where == EVERY_NODE)
    return 0


def bytes_per_token(group: "LoweredGroup") -> list[int]:
    """Of every rank, stage by stage; ranks that share sequences by tokens hold as many of a block
    each.
    """
    ledger, block_size = group.ledger, group.engine.block_size
    return rank_bytes_per_token(group.model, group.layout, ledger, group.dtypes, block_size)


def rank_bytes_per_token(
    model: ModelConfig, layout: Layout, ledger: MemoryLedger, dtypes: Dtypes, block: int
) -> list[int]:
    """The same of a group that is not lowered yet, whose blocks have `block` tokens on each rank
    that shares sequences by tokens.
    """
    if layout.pp == 1:
        sizes = [-(-ledger.block_bytes // block)]
    else:
        sizes = [kv_bytes_per_token(model, stage, dtypes) for stage in stages_of(layout)]
    return [-(-size // layout.context_ranks) for size in sizes for _ in range(layout.stage_ranks)]


class _Memory(Struct, frozen=True):
    node: int
    """Which the group is on; a memory of the cluster is near to all."""
    place: int
    capacity_bytes: int
    operations: tuple[int, int, int] = (0, 0, 0)
    """Queue depth, latency of reads and of writes; a memory has none."""


def _memories(
    deployment: Deployment, group: Group, network: ClusterNetwork, medium: Medium
) -> list[_Memory]:
    """That of each of the group's nodes, or that of the cluster."""
    nodes = group.nodes if medium in OF_NODE else (group.node,)
    return [_memory(deployment, network, medium, node) for node in nodes]


def _memory(
    deployment: Deployment, network: ClusterNetwork, medium: Medium, number: int
) -> _Memory:
    node = deployment.nodes[number]
    if medium == "CPU" and node.host_memory is not None:
        return _Memory(number, _placed(network.hosts[number]), node.host_memory.capacity_bytes)
    if medium == "CXL" and deployment.pool is not None:
        return _Memory(number, _placed(network.pool), deployment.pool.whole.capacity_bytes)
    storage = (
        node.storage if medium == "SSD" else deployment.storage if medium == "NVMEOF" else None
    )
    if storage is None:
        what, where = {
            "CPU": ("cpu_mem", f"nodes[{number}]"),
            "CXL": ("cxl_mem", "it"),
            "SSD": ("storage", f"nodes[{number}]"),
            "NVMEOF": ("storage of the cluster", "it"),
        }[medium]
        raise InputError(
            f"{deployment.cluster_path}: {where} has no {what}, which --prefix-storage {medium} "
            "keeps KV in"
        )
    operations = storage.queue_depth, storage.read_latency_ps, storage.write_latency_ps
    place = network.drives[number] if medium == "SSD" else network.storage
    return _Memory(number, _placed(place), storage.capacity_bytes, operations)


def _placed(place: int | None) -> int:
    assert place is not None  # what the file declares has one
    return place


def _check(
    deployment: Deployment, group: Group, engine: EngineArgs, options: KvTierOptions
) -> None:
    where = f"{deployment.cluster_path}: {group.field_path}"
    if group.nnodes > 1 and "SSD" in options.media:
        raise memory_of_several_nodes(deployment, group, "--prefix-storage SSD")
    if group.nnodes > 1 and "CPU" in options.media and options.shared:
        raise memory_of_several_nodes(deployment, group, "--enable-prefix-sharing")
    reason = KINDS[engine.scheduler].lacks.get("kv_tier_recall")
    if RECALL[options.recall] and reason is not None:
        raise InputError(
            f"{where}: --kv-tier-recall async does not go with the scheduler {engine.scheduler}: "
            f"{reason}; say sync"
        )
    reason = KINDS[engine.scheduler].lacks.get("kv_tier_write_back")
    if WRITE[options.write] == _native.TierWrite.BACK and reason is not None:
        raise InputError(
            f"{where}: --kv-tier-write write-back does not go with the scheduler "
            f"{engine.scheduler}: {reason}; say write-through"
        )
    reason = KINDS[engine.scheduler].lacks.get("kv_tiers")
    if reason is not None:
        raise InputError(
            f"{where}: KV tiers do not go with the scheduler {engine.scheduler}: {reason}; remove "
            "--prefix-storage"
        )
    block_size = engine.block_size * group.pcp * engine.decode_context_parallel_size
    if options.chunk_tokens % block_size:
        raise InputError(
            f"{where}: --kv-chunk-size is {options.chunk_tokens} tokens, which is not whole "
            f"blocks of {block_size}"
        )
    if not engine.enable_prefix_caching:
        raise InputError(
            f"{where}: KV tiers need the prefix cache, which enable_prefix_caching turns off"
        )
