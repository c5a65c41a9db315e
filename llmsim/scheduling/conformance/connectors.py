"""Groups of a case with a KV connector: a pair that hands KV over, or one above a pool of KV.

`config["connector"]` says which; its `kind` is one of three.

- "handover": one group computes prompts, with `prefill_blocks` blocks, and one answers; `push` is
  as of the core's KvTransferConfig. With `state_bytes` a state of so many bytes goes too, which is
  that before a prompt's last token. With `ranks` each side has so many groups, [prefill, decode],
  which take requests in turn. Several run in lock-step, as vLLM's data-parallel ranks do, and
  agree every `sync_interval` rounds whether a wave has ended.
- "pool": below the group are `pool_chunks` chunks of `chunk_blocks` blocks, written when they are
  computed, or (`selective`) at the first hit. Who recalls is parked until it is there (`parks`), or
  its step waits.
- "offloading": below the group are `pool_chunks` chunks of `chunk_blocks` blocks under the rules of
  vLLM's own OffloadingConnector, whose options are `eviction`, `store_threshold`,
  `max_tracker_size` and `prompt_only`.

Links have `bytes_per_s` and `latency_ns`; a token's KV has BYTES_PER_TOKEN bytes. Of the loads that
requests are parked for, a share fails by `load_failures`: its `chance` is in 2^-53, and its
`policy` is vLLM's kv_load_failure_policy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from llmsim import _native
from llmsim.config.engine.offloading import EVICTIONS, follow_release
from llmsim.config.engine.profile import load_profile
from llmsim.core import PS_PER_NS

BYTES_PER_TOKEN = 1000
NEWEST = "vllm-0.33"
"""The engine profile of recordings with offloading that name none."""
HANDOVER, POOL, OFFLOADING = "handover", "pool", "offloading"
RECOMPUTE, FAIL = "recompute", "fail"

Case = dict[str, Any]


class GroupOfCase(Struct, frozen=True):
    """One group before its scheduler is chosen."""

    role: "_native.Role"
    num_blocks: int
    rank: int = 0
    ranks: int = 1
    """Of its side, which run in lock-step."""


def time_digits(case: Case) -> int:
    """Digits behind the comma of a recording's seconds: transfers end at any picosecond, and steps
    alone at whole nanoseconds.
    """
    return 12 if "connector" in case["config"] else 9


def groups_of(case: Case) -> list[GroupOfCase]:
    """The groups of a case, in order of their indices."""
    config = case["config"]
    blocks, connector = config["num_gpu_blocks"], config.get("connector", {})
    if connector.get("kind") != HANDOVER:
        return [GroupOfCase(_native.Role.BOTH, blocks)]
    sides = (
        (_native.Role.PREFILL, connector["prefill_blocks"]),
        (_native.Role.DECODE, blocks),
    )
    return [
        GroupOfCase(role, most, rank, ranks)
        for (role, most), ranks in zip(sides, ranks_of(case), strict=True)
        for rank in range(ranks)
    ]


def ranks_of(case: Case) -> tuple[int, int]:
    """Ranks of the prefill and of the decode side of a case that hands KV over."""
    prefill, decode = case["config"].get("connector", {}).get("ranks", (1, 1))
    return prefill, decode


def load_failures(case: Case) -> "_native.LoadFailuresConfig":
    """Which loads of a case fail; none where it does not say."""
    native = _native.LoadFailuresConfig()
    connector = case["config"].get("connector", {})
    said = connector.get("load_failures")
    if said is not None:
        native.chance, native.recomputes = said["chance"], said["policy"] == RECOMPUTE
        native.loses_all = connector.get("state_bytes", 0) > 0
    return native


def parts_between(case: Case) -> dict[str, Any]:
    """What a SimulationConfig needs beside the groups: links, and what moves over them."""
    connector = case["config"].get("connector")
    if connector is None:
        return {}
    network = _native.NetworkConfig(_native.Sharing.FAIR)
    parts = _PARTS[connector["kind"]]
    return {"network": network} | parts(case, network, _link(network, connector))


def _link(network: "_native.NetworkConfig", connector: Case) -> Callable[[], int]:
    def place(island: int) -> int:
        out = network.add_link(connector["bytes_per_s"], connector["latency_ns"] * PS_PER_NS)
        port = (out, network.add_link(connector["bytes_per_s"], 0))
        return network.add_place(island, port, port)

    islands = iter(range(1 << 10))
    return lambda: place(next(islands))


def _handover(
    case: Case, network: "_native.NetworkConfig", place: Callable[[], int]
) -> dict[str, Any]:
    prefills, decodes = ranks_of(case)
    places = [[place()] for _ in range(prefills + decodes)]
    push = case["config"]["connector"].get("push", False)
    transfer = _native.KvTransferConfig(push, False, places)
    state = case["config"]["connector"].get("state_bytes", 0)
    parts = [([0], BYTES_PER_TOKEN, 0, 0), *([([1], 0, state, 0)] if state else [])]
    table = transfer.add_table([(0, 0, parts)], case["config"]["block_size"], state > 0)
    for prefill in range(prefills):
        for decode in range(prefills, prefills + decodes):
            transfer.add_route(prefill, decode, table)
    sides = (range(prefills), range(prefills, prefills + decodes))
    lockstep = [_lockstep(case, list(side)) for side in sides if len(side) > 1]
    frontend = _native.Frontend(_in_turn(), _in_turn()) if lockstep else None
    return {"kv_transfer": transfer, "lockstep": lockstep, "frontend": frontend}


def _lockstep(case: Case, members: list[int]) -> "_native.LockstepSpec":
    profile = load_profile(case["resolved"].get("engine_profile", NEWEST))
    interval = case["config"]["connector"]["sync_interval"]
    return _native.LockstepSpec(members, interval, syncs_first=profile.schedules_by("agrees_first"))


def _in_turn() -> "_native.RouterMaker":
    return _native.native_router("RR", 0, {}, np.empty(0, np.int32))


def _pool(case: Case, network: "_native.NetworkConfig", place: Callable[[], int]) -> dict[str, Any]:
    connector = case["config"]["connector"]
    write = _native.TierWrite.SELECTIVE if connector["selective"] else _native.TierWrite.THROUGH
    tiers = _native.KvTiersConfig(write, connector["parks"])
    device, memory = place(), place()
    chunk = connector["chunk_blocks"] * case["config"]["block_size"]
    size = connector["pool_chunks"] * chunk * BYTES_PER_TOKEN
    tiers.add_pool("pool", size, _native.TierEviction.LRU, [memory])
    tiers.add_group([0], [device], chunk, [BYTES_PER_TOKEN], 0)
    return {"kv_tiers": tiers}


def _offloading(
    case: Case, network: "_native.NetworkConfig", place: Callable[[], int]
) -> dict[str, Any]:
    device, host = place(), place()
    bytes_per_token = [BYTES_PER_TOKEN]
    copies = _native.OffloadingCopies([device], [host], bytes_per_token, bytes_per_token)
    return {"kv_offloading": [copies]}


def offloading_config(case: Case) -> "_native.OffloadingConfig":
    """What a case says of vLLM's own offloading; an empty pool where it says nothing."""
    native = _native.OffloadingConfig()
    connector = case["config"].get("connector", {})
    if connector.get("kind") != OFFLOADING:
        return native
    native.num_chunks = connector["pool_chunks"]
    profile = load_profile(case["resolved"].get("engine_profile", NEWEST))
    follow_release(native, connector["eviction"], profile)
    native.store_threshold = connector["store_threshold"]
    native.max_tracker_size = connector.get("max_tracker_size", native.max_tracker_size)
    native.blocks_per_chunk = connector["chunk_blocks"]
    native.prompt_only = connector["prompt_only"]
    native.sync_load_tokens = connector.get("sync_load_tokens", 0)
    return native


def offloading_options(native: "_native.OffloadingConfig") -> Case:
    """The options of a case's connector that this is made from."""
    return {
        "kind": OFFLOADING,
        "pool_chunks": native.num_chunks,
        "chunk_blocks": native.blocks_per_chunk,
        "eviction": EVICTIONS[native.eviction],
        "store_threshold": native.store_threshold,
        "max_tracker_size": native.max_tracker_size,
        "prompt_only": native.prompt_only,
        "sync_load_tokens": native.sync_load_tokens,
    }


def offloading_extra(options: Case) -> dict[str, Any]:
    """What vLLM's connector is told of such options (`kv_connector_extra_config`), of which
    `num_chunks` and `sync_load_tokens` are ours (`vllm.offloading.SizedOffloading`).
    """
    return {
        "num_chunks": options["pool_chunks"],
        "blocks_per_chunk": options["chunk_blocks"],
        "eviction_policy": options["eviction"],
        "store_threshold": options["store_threshold"],
        "max_tracker_size": options["max_tracker_size"],
        "offload_prompt_only": options["prompt_only"],
        "sync_load_tokens": options.get("sync_load_tokens", 0),
    }


_PARTS = {HANDOVER: _handover, POOL: _pool, OFFLOADING: _offloading}
