"""The host pool of SGLang's hierarchical cache (HiCache) of a group, and what its copies take."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.deployment import MemorySpec, StorageSpec
from llmsim.config.engine.args import EngineArgs
from llmsim.config.engine.options import HICACHE_PREFETCH_POLICIES, HICACHE_WRITE_POLICIES
from llmsim.config.engine.sglang.host_cache import HOST_WRITES, PREFETCHES, host_pages
from llmsim.config.errors import InfeasibleError, InputError, NotYetError
from llmsim.core import PS_PER_S
from llmsim.lowering.parallel_layout import members_of
from llmsim.model import ModelConfig
from llmsim.model.memory.ledger import MemoryLedger

DEFAULT_RATIO = 2.0
"""Source: SGLang 0.5.23, arg_groups/hicache_hook.py."""
RESERVED_BYTES = 10 << 30
"""Of host memory, which SGLang leaves alone (mem_cache/pool_host/base.py)."""
DEFAULT_SHARE = 0.8 * 0.95
"""Of the rest, what pools of the default ratio take: hicache_host_memory_fraction, and a slack
(mem_cache/hicache_auto_size.py).
"""
DEFAULT_THRESHOLD = 256
"""Tokens. Source, as of the next four: SGLang 0.5.23, HybridCacheController's
parse_storage_backend_extra_config and arg_groups/fields/memory.py.
"""
DEFAULT_TIMEOUT_S = 1.0
DEFAULT_TIMEOUT_PER_KI_TOKEN_S = 0.25
DEFAULT_RETRY_PASSES = 8
DEFAULT_RETRIES = 8
GB = 10**9
_T = TypeVar("_T")
MOST_PAGES = (1 << 31) - 1
"""The native pool numbers its pages with 32 bits."""


class HostPool(Struct, frozen=True):
    """One pool of a rank, which the host has another one for: how much the device holds, tokens or
    states, what one takes, and how many come together. `beside` of the bytes are not counted by
    hicache_size.
    """

    on_device: int
    size_bytes: int
    page: int = 1
    beside: int = 0

    @property
    def device_bytes(self) -> int:
        """Of the device's pool, as SGLang divides hicache_size by them."""
        return self.on_device * (self.size_bytes - self.beside)


class HostPools(Struct, frozen=True):
    """Of the layers that see everything, of those with a window, and of states; None: there is no
    such pool.
    """

    pages: HostPool
    windows: HostPool | None = None
    states: HostPool | None = None

    @property
    def all(self) -> tuple[HostPool, ...]:
        """Those that there are."""
        return tuple(pool for pool in (self.pages, self.windows, self.states) if pool is not None)


def device_pools(
    group: Group,
    ledger: MemoryLedger,
    scheduler: "_native.SchedulerConfig",
    drafter_token_bytes: int,
) -> HostPools:
    """The pools of a rank that the scheduler has, whose `window_pool` and `state_pool` are set."""
    page = group.engine.block_size
    beside = _beside(group.engine, drafter_token_bytes)
    tokens = (ledger.num_blocks - 1) * page
    window, states = scheduler.window_pool, scheduler.state_pool
    if ledger.pools is None or (window.window == 0 and states.slots == 0):
        return HostPools(HostPool(tokens, -(-ledger.block_bytes // page), page, beside))
    pools, block = ledger.pools, ledger.block_bytes
    windows = held = None
    if window.window > 0:
        block = pools.block
        windows = HostPool(window.pages * page, -(-pools.window_block // page), page)
    if states.slots > 0:
        held = HostPool(states.slots, pools.state)
    return HostPools(HostPool(tokens, -(-block // page), page, beside), windows, held)


def host_cache(
    group: Group,
    deployment: Deployment,
    model: ModelConfig,
    pools: HostPools,
    *,
    tiers: bool,
) -> "_native.HostCacheConfig":
    """The host pools of a group, which every rank has for its share of the KV, beside those of the
    device; empty if HiCache is off.

    Copies take the time of a rank's share on its link to the host, or of all shares of the ranks of
    a node in its memory. All ranks number their pages alike, so the smallest and the slowest of
    several nodes decide.

    Raises InputError without a host memory or with `tiers`, InfeasibleError where it is too small,
    and NotYetError for groups that compute no prompts, for prefill instances with pipeline stages
    or ranks in lock-step, and for storage behind pools of windows or states or of several nodes.
    """
    native = _native.HostCacheConfig()
    engine = group.engine
    if not engine.enable_hierarchical_cache:
        return native
    if tiers:
        raise InputError(
            "enable_hierarchical_cache is true, and --prefix-storage is given, which keeps the "
            "same KV in other pools; remove one of them"
        )
    _refuse(group, model, pools)
    hosts = [_host(node, deployment) for node in group.nodes]
    smallest = min(hosts, key=lambda host: host.room)
    pages, windows, states = _host_sizes(group, smallest, pools)
    native.pages, native.window_pages, native.states = pages, windows, states
    native.write = HOST_WRITES[engine.hicache_write_policy or HICACHE_WRITE_POLICIES[0]]
    _time_copies(native, group, deployment, [host.memory for host in hosts], pools)
    native.layers = -(-model.num_layers // group.pp)
    if engine.hicache_storage_backend is not None:
        native.storage = _storage(group, deployment, smallest.ranks, pools.pages.size_bytes)
    return native


def _time_copies(
    native: "_native.HostCacheConfig",
    group: Group,
    deployment: Deployment,
    memories: Sequence[MemorySpec],
    pools: HostPools,
) -> None:
    port = deployment.host_links.port(group.index, group.num_devices)
    rate = min(
        port.bandwidth_bytes_per_s,
        min(memory.bandwidth_bytes_per_s for memory in memories) // group.devices_on_node,
    )

    def copy_ps(pool: HostPool | None) -> int:
        return 0 if pool is None else -(-pool.size_bytes * PS_PER_S // rate)

    latency_ps = max(memory.latency_ps for memory in memories)
    native.copy_latency_ps = port.latency_ps + latency_ps
    native.load_ps_per_token = native.write_ps_per_token = copy_ps(pools.pages)
    native.load_ps_per_window_token = native.write_ps_per_window_token = copy_ps(pools.windows)
    native.load_ps_per_state = native.write_ps_per_state = copy_ps(pools.states)


def _storage(
    group: Group, deployment: Deployment, ranks: int, token_bytes: int
) -> "_native.HostStorageConfig":
    """What each of the node's `ranks` has of the storage behind the host pools: an equal share of
    its bandwidths and of its bytes, which its files fill as with SGLang's max_size.
    """
    engine = group.engine
    spec = _storage_of(group, deployment)
    native = _native.HostStorageConfig()
    native.prefetch_threshold = _or(engine.hicache_prefetch_threshold, DEFAULT_THRESHOLD)
    policy = engine.hicache_storage_prefetch_policy or HICACHE_PREFETCH_POLICIES[0]
    native.prefetch = PREFETCHES[policy]
    base_s = _or(engine.hicache_prefetch_timeout_base, DEFAULT_TIMEOUT_S)
    per_ki_s = _or(engine.hicache_prefetch_timeout_per_ki_token, DEFAULT_TIMEOUT_PER_KI_TOKEN_S)
    native.timeout_ps = round(base_s * PS_PER_S)
    native.timeout_per_page_ps = round(per_ki_s * PS_PER_S * engine.block_size / 1024)
    native.retry_passes = _or(
        engine.hicache_storage_prefetch_retry_poll_interval, DEFAULT_RETRY_PASSES
    )
    native.most_retries = _or(engine.hicache_storage_prefetch_retry_max_attempts, DEFAULT_RETRIES)
    native.query_latency_ps = native.read_latency_ps = spec.read_latency_ps
    native.write_latency_ps = spec.write_latency_ps
    native.read_ps_per_token = -(-token_bytes * PS_PER_S * ranks // spec.read_bytes_per_s)
    native.write_ps_per_token = -(-token_bytes * PS_PER_S * ranks // spec.write_bytes_per_s)
    native.page_bytes = token_bytes * engine.block_size
    native.capacity_bytes = spec.capacity_bytes // ranks
    if native.capacity_bytes < native.page_bytes:
        raise InfeasibleError(
            f"the storage of nodes[{group.node}] has {native.capacity_bytes} B for each of its "
            f"{ranks} devices, and a page of HiCache takes {native.page_bytes} B; give it more"
        )
    return native


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _storage_of(group: Group, deployment: Deployment) -> StorageSpec:
    spec = deployment.nodes[group.node].storage or deployment.storage
    if spec is None:
        raise InputError(
            f"hicache_storage_backend is {group.engine.hicache_storage_backend}, but neither "
            f"nodes[{group.node}] nor the cluster has a storage, which holds the files; give it one"
        )
    return spec


class _Host(Struct, frozen=True):
    """A node, whose memory all devices that are on it share, `ranks` of them."""

    node: int
    memory: MemorySpec
    ranks: int

    @property
    def room(self) -> int:
        """Bytes of each rank."""
        return (self.memory.capacity_bytes - RESERVED_BYTES) // self.ranks


def _host(node: int, deployment: Deployment) -> _Host:
    memory = deployment.nodes[node].host_memory
    if memory is None:
        raise InputError(
            f"enable_hierarchical_cache is true, but nodes[{node}] has no cpu_mem, which "
            "holds the KV; give it one"
        )
    return _Host(node, memory, deployment.devices_on(node))


def _host_sizes(group: Group, host: _Host, pools: HostPools) -> tuple[int, int, int]:
    """Pages of a rank's host pool, of the one of layers with a window, and states; InfeasibleError
    where the host's memory does not hold the pools of all its ranks, InputError where they cannot
    be numbered.
    """
    kinds = (pools.pages, pools.windows, pools.states)
    held = [0 if one is None else _places(group, host, pools, one) for one in kinds]
    wanted = sum(
        places * one.page * one.size_bytes
        for places, one in zip(held, kinds, strict=True)
        if one is not None
    )
    room = host.room
    if wanted > room:
        raise InfeasibleError(
            f"HiCache's host pool takes {wanted / GB:.1f} GB for each of the {host.ranks} devices "
            f"of nodes[{host.node}], whose cpu_mem has {max(0, room) / GB:.1f} GB for each behind "
            "10 GiB that stay free; lower hicache_ratio or hicache_size"
        )
    if max(held) > MOST_PAGES:
        raise InputError(
            f"HiCache's host pool has {max(held)} pages of {group.engine.block_size} tokens, and "
            f"the most is {MOST_PAGES}; lower hicache_ratio or hicache_size"
        )
    pages, windows, states = held
    return pages, windows, states


def _places(group: Group, host: _Host, pools: HostPools, pool: HostPool) -> int:
    """Of a host pool, pages or states: by its share of hicache_size, or so many times as many as
    the device has.
    """
    engine = group.engine
    if engine.hicache_size:
        everything = sum(one.device_bytes for one in pools.all)
        share = engine.hicache_size * GB * pool.device_bytes // everything
        return host_pages(share // (pool.size_bytes - pool.beside), pool.page)
    ratio = engine.hicache_ratio
    if ratio is None:
        room = max(0, host.memory.capacity_bytes - RESERVED_BYTES) / host.ranks * DEFAULT_SHARE
        on_device = sum(one.on_device * one.size_bytes for one in pools.all)
        ratio = min(DEFAULT_RATIO, room / on_device)
    return host_pages(int(pool.on_device * ratio), pool.page)


def _beside(engine: EngineArgs, drafter_token_bytes: int) -> int:
    """Bytes of a token that hicache_size does not count: those of a drafter whose KV has a pool of
    its own beside the model's. An MTP head's is in the same (speculative/base_spec_worker.py).
    """
    speculation = engine.speculation
    packed = speculation is None or speculation.method == "mtp"
    return 0 if packed else drafter_token_bytes


def _refuse(group: Group, model: ModelConfig, pools: HostPools) -> None:
    plays_role = group.pd_type is not None
    for what, there in (
        ("the role decode, attention or ffn (pd_type)", _is_apart(group)),
        ("pipeline stages (pp_size) of a prefill instance", group.pp > 1 and plays_role),
        ("data-parallel ranks of a prefill instance", plays_role and members_of(group, model) > 1),
        ("storage behind layers with states or windows", _stores_less(group, pools)),
        ("storage behind an instance on several nodes (nnodes)", _stores_apart(group)),
    ):
        if there:
            raise NotYetError(
                f"enable_hierarchical_cache is true, and HiCache with {what} does not run in this "
                "version; remove one of them"
            )


def _is_apart(group: Group) -> bool:
    return group.pd_type == "decode" or group.afd is not None


def _stores_apart(group: Group) -> bool:
    return group.engine.hicache_storage_backend is not None and group.nnodes > 1


def _stores_less(group: Group, pools: HostPools) -> bool:
    return group.engine.hicache_storage_backend is not None and len(pools.all) > 1
