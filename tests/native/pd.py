"""Tiny disaggregated runs: groups of one device each, given step times, one link per device."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import simulations
from simulations import router, simulation

from llmsim import _native

MS = 10**9
PS_PER_S = 10**12
STEP, PER_TOKEN = 5 * MS, 10**7


@dataclass
class Cluster:
    """`prefill` and `decode` are numbers of KV blocks, one entry per group; `both` groups do
    everything themselves.
    """

    prefill: list[int]
    decode: list[int]
    both: list[int] = field(default_factory=list)
    block_size: int = 16
    max_seqs: int = 8
    budget: int = 64
    depth: int = 1
    defer_block_free: bool = True
    """With depth 2, as vLLM 0.24: blocks that a batch in flight writes are not free before it has
    ended.
    """
    caching: bool = False
    order: str = "FCFS"
    watermark: int = 0
    push: bool = False
    layerwise: bool = False
    sharing: str = "FAIR"
    bytes_per_s: int = 10**9
    latency_ps: int = 1000
    layers: int = 4
    bytes_per_token_and_layer: int = 1000
    api_ps: int = 0
    router: str = "LOAD"
    lockstep: bool = False
    """All prefill groups run in lock-step, and all decode groups."""
    tier_chunks: int = -1
    """Chunks of two blocks that a pool below all groups holds; -1: there is none."""
    tier_write: str = "THROUGH"
    tier_parks: bool = False
    gathered_bytes: int = 0
    """Per token, gathered in every layer by the two decode groups in lock-step, over the ports that
    KV takes.
    """
    tail_blocks: int = 0
    """Every second layer keeps only so many blocks at the end of a prompt; 0: all."""
    scheduler: str = "vllm_v1"
    whole_prompts: bool = False
    max_model_len: int = 100_000
    drafts: int = 0
    """Of every step; half of them hold."""
    decode_route: Callable[[Any, Any], int] | None = None
    """A router in Python for the decode side; None: `router`."""
    state_bytes: int = 0
    """The last layer keeps a state of so many bytes instead of tokens; 0: it is like the others."""

    @property
    def kinds(self) -> list[tuple[list[int], int, int, int]]:
        """Parts of the hand-over: layers, bytes per token, bytes of state, blocks that are kept."""
        size, rest = self.bytes_per_token_and_layer, list(range(self.layers))
        parts = []
        if self.state_bytes:
            parts.append(([rest.pop()], 0, self.state_bytes, 0))
        if self.tail_blocks:
            parts.append((rest[::2], size, 0, self.tail_blocks))
            rest = rest[1::2]
        return [*parts, (rest, size, 0, 0)]

    def due_bytes(self, prompt: int, cached: int) -> int:
        """What of a prompt moves of which the decode side has `cached` tokens, counted token by
        token.
        """
        computed = prompt - 1 if self.state_bytes and prompt > 1 else prompt
        first = min(cached, computed - 1)
        total = 0
        for layers, size, state, tail in self.kinds:
            blocks = -(-computed // self.block_size)
            kept = [
                t
                for t in range(first, computed)
                if not tail or t // self.block_size >= blocks - tail
            ]
            total += len(layers) * (len(kept) * size + state)
        return total

    @property
    def bytes_per_token(self) -> int:
        return self.layers * self.bytes_per_token_and_layer


def gather_ps(tokens: int, cluster: Cluster) -> int:
    """Two ranks send each other half of it."""
    chunk = -(-tokens * cluster.gathered_bytes // 2)
    return cluster.latency_ps + -(-chunk * PS_PER_S // cluster.bytes_per_s)


def program(budget: int, max_seqs: int, layers: int, gather: list[int] | None = None) -> Any:
    """A step takes STEP, in equal layers, plus PER_TOKEN per token at its end; `gather`: ps by
    gathered tokens.
    """
    tokens = np.arange(budget + 1, dtype=np.int64)
    zero = np.zeros(1, np.int64)
    layer = np.full(budget + 1, STEP // layers, np.int64)
    operators = [
        _native.Operator(name, kind, feature, part, repeat, ps, np.zeros(len(ps), np.uint8))
        for name, kind, feature, part, repeat, ps in (
            ("layer", _native.NodeKind.COMPUTE, _native.Feature.TOKENS, 1, layers, layer),
            (
                "attention",
                _native.NodeKind.ATTENTION,
                _native.Feature.TOKENS,
                1,
                layers,
                np.empty(0, np.int64),
            ),
            ("tail", _native.NodeKind.COMPUTE, _native.Feature.TOKENS, 2, 1, tokens * PER_TOKEN),
            (
                "head",
                _native.NodeKind.COMPUTE,
                _native.Feature.SEQUENCES,
                2,
                1,
                np.zeros(max_seqs + 1, np.int64),
            ),
        )
    ]
    if gather is not None:
        table, kind = (
            np.array(gather, np.int64),
            (_native.NodeKind.COLLECTIVE, _native.Feature.GATHERED),
        )
        operators.insert(
            2, _native.Operator("gather", *kind, 1, layers, table, np.zeros(len(gather), np.uint8))
        )
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    return _native.Program(operators, attention, tokens.astype(np.int32), _native.LowerBound(), 0)


def run(
    requests: list[tuple[int, int, int]],
    cluster: Cluster,
    keys: list[list[int]] | None = None,
    priority: list[int] | None = None,
    timeouts: list[int] | None = None,
    cancel_tokens: list[int] | None = None,
    clients: int = 0,
    horizon_ps: int = 0,
) -> Any:
    """Runs (arrival in us, input, output) rows, in order of arrival, to the end; `timeouts` are ps,
    -1: never.
    """
    roles = (
        ["PREFILL"] * len(cluster.prefill)
        + ["DECODE"] * len(cluster.decode)
        + ["BOTH"] * len(cluster.both)
    )
    network = _native.NetworkConfig(getattr(_native.Sharing, cluster.sharing))
    tiers = _native.KvTiersConfig(
        getattr(_native.TierWrite, cluster.tier_write), cluster.tier_parks
    )
    memory = network.add_place(0, (network.add_link(cluster.bytes_per_s, 0),) * 2, (-1, -1))
    chunk = 2 * cluster.block_size
    if cluster.tier_chunks >= 0:
        size = cluster.tier_chunks * chunk * cluster.bytes_per_token
        tiers.add_pool("pool", size, _native.TierEviction.LRU, [memory])
    places, groups = [], []
    for index, (role, blocks) in enumerate(
        zip(roles, cluster.prefill + cluster.decode + cluster.both, strict=True)
    ):
        group = _native.GroupConfig()
        group.index, group.depth, group.api_latency_ps = index, cluster.depth, cluster.api_ps
        group.role = getattr(_native.Role, role)
        groups.append(
            _native.GroupSpec(
                group,
                scheduler(cluster, role, blocks),
                program_of(cluster, role),
                record_steps=True,
                record_schedule=True,
            )
        )
        port = (
            network.add_link(cluster.bytes_per_s, cluster.latency_ps),
            network.add_link(cluster.bytes_per_s, 0),
        )
        places.append([network.add_place(0, port, port)])
        tiers.add_group([0], places[-1], chunk, [cluster.bytes_per_token], 0)
    sim = simulation(
        [(1_000_000 * arrival_us, prompt, answer) for arrival_us, prompt, answer in requests],
        groups,
        keys=keys,
        granularity=cluster.block_size,
        priority=priority or (),
        clients=simulations.clients(timeouts, cancel_tokens, clients),
        router=router(cluster.router),
        check_every_step=True,
        horizon_ps=horizon_ps,
        **(parts_between(cluster, places, network, tiers) if cluster.prefill else {}),
    )
    for _ in range(200):
        if sim.run(10_000):
            return sim
    raise AssertionError(f"no end: {sim.num_finished} of {len(requests)} requests have finished")


def program_of(cluster: Cluster, role: str) -> Any:
    tokens = range(2 * cluster.budget + 1)
    gather = (
        [gather_ps(n, cluster) for n in tokens]
        if cluster.gathered_bytes and role == "DECODE"
        else None
    )
    return program(cluster.budget, cluster.max_seqs, cluster.layers, gather)


def parts_between(
    cluster: Cluster, places: list[list[int]], network: Any, tiers: Any
) -> dict[str, Any]:
    """What the groups share: the network, and what moves over it."""
    route = cluster.decode_route
    decode_router = router(cluster.router)
    if route is not None:
        decode_router = _native.python_router(route, None, ["model"])
    parts = {
        "network": network,
        "kv_tiers": tiers if cluster.tier_chunks >= 0 else None,
        "kv_transfer": kv_transfers(cluster, places),
        "decode_router": decode_router,
    }
    return parts | lockstep_groups(cluster, places) if cluster.lockstep else parts


def lockstep_groups(cluster: Cluster, places: list[list[int]]) -> dict[str, Any]:
    sizes = [len(cluster.prefill), len(cluster.decode)]
    lockstep, contention = [], []
    for first, size, role in zip([0, sizes[0]], sizes, ["PREFILL", "DECODE"], strict=True):
        members = list(range(first, first + size))
        lockstep.append(_native.LockstepSpec(members, 4))
        if cluster.gathered_bytes and role == "DECODE":
            spec = _native.CollectiveSpec(
                2, _native.engine.CollectiveKind.ALL_GATHER, cluster.gathered_bytes
            )
            shared = [place for index in members for place in places[index]]
            contention.append(_native.ContentionSpec(members, shared, [spec]))
    return {"lockstep": lockstep, "contention": contention}


def scheduler(cluster: Cluster, role: str, blocks: int) -> Any:
    config = _native.SchedulerConfig()
    config.scheduler = cluster.scheduler
    config.chunked_prefill = not cluster.whole_prompts
    if cluster.scheduler == "vllm_v1":
        config.async_scheduling = cluster.depth == 2
        config.defer_block_free = cluster.depth == 2 and cluster.defer_block_free
        config.prefill_all_but_last_token = cluster.state_bytes > 0
        config.speculation = speculation(cluster.drafts)
    config.max_num_seqs, config.max_num_scheduled_tokens = cluster.max_seqs, cluster.budget
    config.kv_producer, config.kv_consumer = role == "PREFILL", role == "DECODE"
    config.tiered = cluster.tier_chunks >= 0
    config.watermark_blocks = cluster.watermark
    queue = _native.QueueConfig()
    queue.order = getattr(_native.QueueOrder, cluster.order)
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.block_size, kv.max_model_len = (
        blocks,
        cluster.block_size,
        cluster.max_model_len,
    )
    kv.prefix_caching = cluster.caching
    config.kv, config.queue = kv, queue
    return config


def speculation(drafts: int) -> Any:
    """As a draft model's: slots ahead for all of them."""
    config = _native.SpeculationConfig()
    config.tokens = config.lookahead = drafts
    acceptance = _native.Acceptance()
    acceptance.chance = [1 << 52] * drafts
    config.acceptance = acceptance
    return config


def kv_transfers(cluster: Cluster, places: list[list[int]]) -> Any:
    config = _native.KvTransferConfig(cluster.push, cluster.layerwise, places)
    table = config.add_table([(0, 0, cluster.kinds)], cluster.block_size, cluster.state_bytes > 0)
    for p in range(len(cluster.prefill)):
        for d in range(len(cluster.decode)):
            config.add_route(p, len(cluster.prefill) + d, table)
    return config


def schedule(sim: Any, group: int) -> list[list[tuple[int, int, int]]]:
    """Per step of a group, (request, tokens scheduled, tokens computed before)."""
    columns = sim.schedule(group)
    names = ("request", "tokens", "computed")
    items = list(zip(*(columns[f"item_{name}"].tolist() for name in names), strict=True))
    return [items[a:b] for a, b in pairwise(columns["item_offsets"].tolist())]
