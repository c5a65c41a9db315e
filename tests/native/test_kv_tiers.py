"""KV below the device: what is found there, what moving it costs, what is given up, and that
nothing is lost.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import clients, simulation
from simulations import router as native_router
from test_serving_core import PER_SEQUENCE, PER_TOKEN, STEP, program

from llmsim import _native

BLOCK, CHUNK = 4, 8
BYTES = 1000
"""Of one token on one rank."""
PS_PER_BYTE = 1000
"""Links of 10^9 bytes/s."""


def run(
    requests: list[tuple[int, int, int]],
    *,
    keys: list[list[int]] | None = None,
    write: str = "THROUGH",
    eviction: str = "LRU",
    capacity_chunks: tuple[int, ...] = (100,),
    blocks: int = 100,
    groups: int = 1,
    ranks: int = 1,
    shared: bool = True,
    depth: int = 1,
    max_seqs: int = 8,
    granularity: int = BLOCK,
    router: str = "RR",
    timeouts: list[int] | None = None,
    parks: bool = False,
    storage: tuple[int, int, int] = (0, 0, 0),
    scheduler: str = "vllm_v1",
    budget: int = 256,
    pool_bytes_per_s: int = 10**9,
    stripes: int = 0,
    stripes_depth: int = 0,
    way_out: int = 0,
    nodes: tuple[int, ...] = (1, 1, 1),
) -> Any:
    """Rows of (arrival in ps, prompt, output); every group has the pools of `capacity_chunks`, in
    order of lookup.

    `storage`: queue depth, read and write latency of every pool; 0 operations at once is a memory.
    With `stripes` the first level is one memory of so many devices, each with `pool_bytes_per_s`,
    over which KV is spread. Ranks are on `nodes[level]` nodes with a memory of each level.
    `way_out` is the latency of the cluster's link that what leaves a pool crosses.
    """
    network = _native.NetworkConfig(_native.Sharing.FAIR)
    config = _native.KvTiersConfig(getattr(_native.TierWrite, write), parks)
    devices = [
        [network.add_place(0, (network.add_link(10**9, 0),) * 2, (-1, -1)) for _ in range(ranks)]
        for _ in range(groups)
    ]
    lists: list[list[int]] = [[] for _ in range(groups)]

    def add_memory() -> int:
        both = (network.add_link(pool_bytes_per_s, 0),) * 2
        place: int = network.add_place(0, both, (-1, -1), near_latency_ps=way_out)
        return place

    pool_place = [add_memory() for _ in range(stripes)]
    if stripes:
        config.stripe(len(pool_place) + groups * ranks, pool_place)  # the next place
    for level, chunks in enumerate(capacity_chunks):
        for owner in range(1 if shared else groups):
            striped = stripes and level == 0
            if not striped or owner == 0:
                places = [add_memory() for _ in range(nodes[level])]
            size, how = (
                chunks * CHUNK * BYTES * ranks,
                (stripes_depth, 0, 0) if striped else storage,
            )
            pool = config.add_pool(
                f"{level}.{owner}", size, getattr(_native.TierEviction, eviction), places, *how
            )
            for group in range(groups) if shared else (owner,):
                lists[group].append(pool)
    specs = []
    for index in range(groups):
        kv = _native.KvCacheConfig()
        kv.num_blocks, kv.block_size, kv.max_model_len, kv.prefix_caching = (
            blocks,
            BLOCK,
            10_000,
            True,
        )
        builder = _native.SchedulerConfig()
        builder.scheduler = scheduler
        builder.tiered = True
        builder.max_num_seqs, builder.max_num_scheduled_tokens, builder.kv = max_seqs, budget, kv
        if scheduler == "vllm_v1":
            builder.async_scheduling = depth == 2
        group = _native.GroupConfig()
        group.index, group.depth = index, depth
        step = program(256, max_seqs)
        specs.append(_native.GroupSpec(group, builder, step, record_steps=True))
        config.add_group(lists[index], devices[index], CHUNK, [BYTES] * ranks, 0)
    sim = simulation(
        requests,
        specs,
        keys=keys,
        granularity=granularity,
        router=native_router(router),
        network=network,
        kv_tiers=config,
        check_every_step=True,
        clients=clients(timeouts),
    )
    for _ in range(1000):
        if sim.run(1000):
            return sim
    raise AssertionError("no end")


def step(tokens: int, sequences: int = 1) -> int:
    return STEP + tokens * PER_TOKEN + sequences * PER_SEQUENCE


LATER = 10**12
SAME = [1, 2, 3, 4]
"""Content of 16 tokens in blocks of 4."""


def test_memories_over_which_kv_is_spread_have_no_common_queue() -> None:
    with pytest.raises(ValueError, match="several memories with a queue depth"):
        run([(0, 16, 2)], keys=[SAME], stripes=2, stripes_depth=4)
    run([(0, 16, 2)], keys=[SAME], stripes=2)


def test_a_recall_delays_its_batch_by_the_links_and_saves_the_computing() -> None:
    # The second group has computed nothing: it reads two chunks of 8 tokens from the pool that both
    # share.
    sim = run([(0, 20, 1), (LATER, 20, 1)], keys=[SAME, SAME], groups=2)
    r, pool, parts = sim.requests(), sim.kv_tiers()[0], sim.blame()
    moved = 16 * BYTES * PS_PER_BYTE
    assert r["finish_ps"].tolist() == [step(20), LATER + moved + step(4)]
    assert r["cached_tokens"].tolist() == [0, 16] and parts["kv_transfer_ps"].tolist() == [0, moved]
    assert (pool["hit_chunks"], pool["hit_tokens"], pool["written_chunks"]) == (2, 16, 2)
    assert pool["recalled_bytes"] == pool["written_bytes"] == 16 * BYTES


def test_ranks_move_their_shares_at_once_but_share_the_pools_link() -> None:
    sim = run([(0, 20, 1), (LATER, 20, 1)], keys=[SAME, SAME], groups=2, ranks=2)
    assert sim.requests()["finish_ps"][1] == LATER + 2 * 16 * BYTES * PS_PER_BYTE + step(4)
    assert sim.kv_tiers()[0]["recalled_bytes"] == 2 * 16 * BYTES


def test_a_pool_of_several_devices_is_as_fast_as_all_of_them() -> None:
    """A device's link carries 1 GB/s; each of the pool's devices a quarter of that,
    then an eighth.
    """
    rows, keys = [(0, 20, 1), (LATER, 20, 1)], [SAME, SAME]
    one = run(rows, keys=keys, groups=2).requests()["finish_ps"]
    moved = 16 * BYTES * PS_PER_BYTE
    for rate, slower in ((10**9 // 4, 1), (10**9 // 8, 2)):
        found = run(rows, keys=keys, groups=2, stripes=4, pool_bytes_per_s=rate)
        assert found.requests()["finish_ps"][1] == one[1] + (slower - 1) * moved
        assert found.kv_tiers()[0]["recalled_bytes"] == 16 * BYTES


def test_what_the_device_has_is_not_recalled_and_private_pools_do_not_meet() -> None:
    sim = run([(0, 20, 1), (LATER, 20, 1)], keys=[SAME, SAME])
    assert sim.kv_tiers()[0]["hit_chunks"] == 0 and sim.requests()["cached_tokens"][1] == 16
    sim = run([(0, 20, 1), (LATER, 20, 1)], keys=[SAME, SAME], groups=2, shared=False)
    assert sim.requests()["cached_tokens"].tolist() == [0, 0]
    assert [pool["written_chunks"] for pool in sim.kv_tiers()] == [2, 2]


def test_part_of_a_chunk_that_the_device_has_does_not_move() -> None:
    # The second prompt shares three blocks with the first; the third shares them and the fourth
    # with the second.
    keys = [[1, 2, 3], [1, 2, 3, 9]]
    sim = run([(0, 12, 1), (LATER, 16, 1), (2 * LATER, 17, 1)], keys=[*keys, keys[1]], groups=2)
    # Request 1 recalls the first chunk (8 tokens) and writes the second; request 2, on group 0, has
    # 12 tokens at hand.
    assert sim.requests()["cached_tokens"].tolist() == [0, 8, 16]
    assert sim.kv_tiers()[0]["hit_tokens"] == 8 + 4


def test_write_through_at_once_selective_at_the_first_hit_and_write_back_when_pushed_out() -> None:
    rows = [(0, 16, 1), (LATER, 17, 1), (2 * LATER, 30, 1)]
    keys = [SAME, SAME, []]
    assert run(rows[:1], keys=keys[:1]).kv_tiers()[0]["written_chunks"] == 2
    assert run(rows[:1], keys=keys[:1], write="SELECTIVE").kv_tiers()[0]["written_chunks"] == 0
    assert run(rows[:2], keys=keys[:2], write="SELECTIVE").kv_tiers()[0]["written_chunks"] == 2
    assert run(rows[:2], keys=keys[:2], write="BACK").kv_tiers()[0]["written_chunks"] == 0
    # Of 9 blocks the third request needs 8, so both chunks lose their last blocks; its step waits
    # for the copies.
    sim = run(rows, keys=keys, write="BACK", blocks=10)
    assert sim.kv_tiers()[0]["written_chunks"] == 2
    assert sim.requests()["finish_ps"][2] == 2 * LATER + 2 * CHUNK * BYTES * PS_PER_BYTE + step(30)


def test_what_was_pushed_out_comes_back_instead_of_being_computed_again() -> None:
    """Two requests that need more than the pool: the preempted one recalls the chunks that were
    taken from it.
    """
    rows = [(0, 16, 40), (1, 16, 40)]
    plain = run(rows, blocks=18, capacity_chunks=(0,), write="BACK")
    swapped = run(rows, blocks=18, write="BACK")
    for sim in (plain, swapped):
        assert (
            sim.counters()["preemptions"][0] > 0 and (sim.requests()["emitted_tokens"] == 40).all()
        )
    assert swapped.kv_tiers()[0]["hit_chunks"] > 0
    assert swapped.counters()["recomputed_tokens"][0] < plain.counters()["recomputed_tokens"][0]


def test_who_recalls_is_parked_and_others_go_on() -> None:
    """Group 1 recalls two chunks for one request; a short one that arrives with it is computed
    meanwhile, or waits.
    """
    rows = [(0, 20, 1), (LATER, 20, 1), (LATER, 7, 1), (LATER, 7, 1)]
    moved = 16 * BYTES * 10**6
    for parks in (False, True):
        sim = run(rows, keys=[SAME, SAME, [], []], groups=2, parks=parks, pool_bytes_per_s=10**6)
        r, waited = sim.requests(), sim.blame()["kv_transfer_ps"].tolist()
        assert r["group"].tolist() == [0, 1, 0, 1] and r["cached_tokens"].tolist() == [0, 16, 0, 0]
        both = LATER + moved + step(4 + 7, 2)
        alone = [LATER + moved + step(4), LATER + step(7)]
        assert r["finish_ps"].tolist()[1::2] == (alone if parks else [both, both])
        assert waited[1::2] == ([moved, 0] if parks else [moved, moved])


@pytest.mark.parametrize(("blocks", "waits"), [(55, True), (60, True), (64, False)])
def test_a_load_leaves_room_for_the_chunks_of_a_prompt_under_way(blocks: int, waits: bool) -> None:
    """Of 200 tokens in four chunks, which need 50 blocks in the end; the load takes 8 at once and
    one more to begin.
    """
    late = 10**12
    rows = [(0, 32, 1), (late, 200, 5), (late + 1, 4, 1), (late + 2, 36, 2)]
    keys = [list(range(1, 9)), [], [], list(range(1, 9))]
    sim = run(rows, keys=keys, groups=2, parks=True, blocks=blocks, budget=64)
    r = sim.requests()
    assert r["group"].tolist() == [0, 1, 0, 1] and r["cached_tokens"][3] == 32
    assert r["preemptions"].sum() == 0
    assert bool(r["scheduled_ps"][3] >= r["finish_ps"][1]) is waits


def test_a_storage_device_serves_so_many_operations_at_once() -> None:
    """Latency, then the link; the second chunk of a queue of one begins when the first
    has landed.
    """
    latency, chunk = 10**10, CHUNK * BYTES * PS_PER_BYTE
    for depth, expected in ((1, 2 * (latency + chunk)), (2, latency + 2 * chunk)):
        sim = run(
            [(0, 20, 1), (LATER, 20, 1)], keys=[SAME, SAME], groups=2, storage=(depth, latency, 0)
        )
        assert sim.requests()["finish_ps"][1] == LATER + expected + step(4)
        pool = sim.kv_tiers()[0]
        assert pool["operations"] == 4 and pool["queued_operations"] == (2 if depth == 1 else 0)


@pytest.mark.parametrize("parks", [False, True])
@pytest.mark.parametrize("stripes", [0, 4])
@pytest.mark.parametrize("storage", [(0, 0, 0), (4, 10**6, 0)])
def test_a_recall_pays_the_latency_of_its_link(
    parks: bool, stripes: int, storage: tuple[int, int, int]
) -> None:
    """Once for chunks that are read at once; a write pays it on the device's way out, which has
    none here.
    """
    rows, keys, latency = [(0, 20, 1), (LATER, 20, 1)], [SAME, SAME], 7 * 10**9
    given: dict[str, Any] = {
        "keys": keys,
        "groups": 2,
        "parks": parks,
        "stripes": stripes,
        "storage": storage,
    }
    at_once, late = (
        run(rows, **given, way_out=way).requests()["finish_ps"] for way in (0, latency)
    )
    assert (late - at_once).tolist() == [0, latency]


def test_what_a_pool_hands_to_the_next_pays_the_latency_of_its_link() -> None:
    """Each prompt pushes the one before out of the device, and the first one out of the pool of two
    chunks.
    """
    rows, latency = [(at * LATER, 17, 1) for at in range(3)], 10**13
    keys = [SAME, [5, 6, 7, 8], [9, 10, 11, 12]]
    given: dict[str, Any] = {
        "keys": keys,
        "write": "BACK",
        "blocks": 6,
        "capacity_chunks": (2, 100),
    }
    at_once, late = (run(rows, **given, way_out=way) for way in (0, latency))
    assert late.kv_tiers()[1]["written_chunks"] == 2
    assert late.now_ps > latency > at_once.now_ps


@pytest.mark.parametrize(("nodes", "times"), [((1, 2), 4), ((2, 1), 2), ((2, 2), 2)])
def test_ranks_on_two_nodes_have_their_shares_in_memories_of_their_own(
    nodes: tuple[int, int], times: int
) -> None:
    """The last prompt waits until two chunks of two ranks have come to the first pool, beside as
    many that it hands on. Each of its memories carries the shares of its ranks twice.
    """
    rows = [(at * LATER, 17, 1) for at in range(3)]
    keys = [SAME, [5, 6, 7, 8], [9, 10, 11, 12]]
    sim = run(
        rows, keys=keys, write="BACK", blocks=6, capacity_chunks=(2, 100), ranks=2,
        pool_bytes_per_s=10**6, nodes=nodes,
    )  # fmt: skip
    share = 2 * CHUNK * BYTES * 10**6
    assert sim.requests()["finish_ps"][2] == 2 * LATER + times * share + step(17)
    first, second = sim.kv_tiers()
    assert first["written_bytes"] == 2 * second["written_bytes"] == 2 * 2 * 2 * CHUNK * BYTES
    with pytest.raises(ValueError, match="several memories with a queue depth"):
        run(rows, keys=keys, ranks=2, nodes=(2,), storage=(1, 0, 0))


def test_a_load_begins_when_the_blocks_it_takes_have_been_written_back() -> None:
    """Device of 5 usable blocks: B pushes A out, then A comes back and pushes out what B left."""
    rows = [(0, 17, 1), (LATER, 17, 1), (2 * LATER, 17, 1)]
    sim = run(rows, keys=[SAME, [5, 6, 7, 8], SAME], write="BACK", blocks=6, parks=True)
    pool = sim.kv_tiers()[0]
    assert pool["hit_chunks"] == 2 and pool["written_chunks"] == 4
    moved = 2 * CHUNK * BYTES * PS_PER_BYTE
    assert sim.requests()["finish_ps"][2] == 2 * LATER + 2 * moved + step(1)
    assert sim.blame()["kv_transfer_ps"][2] == 2 * moved


def lists(sim: Any) -> tuple[int, int, int]:
    pool = sim.kv_tiers()[0]
    return pool["hit_chunks"], pool["evicted_chunks"], pool["thrashed_chunks"]


@pytest.mark.parametrize(("eviction", "hits"), [("LRU", 0), ("LFU", 1), ("COST", 1)])
def test_evictions_differ_where_use_and_recency_disagree(eviction: str, hits: int) -> None:
    """A chunk that was recalled twice, then two new ones, in a pool of two: only the least recent
    loses it.
    """
    a, b, c = [1, 2], [3, 4], [5, 6]
    keys = [a, a, a, b, c, a]
    rows = [(i * LATER, 9, 1) for i in range(len(keys))]
    # As many groups as requests: nobody finds anything on a device of its own.
    sim = run(rows, keys=keys, eviction=eviction, capacity_chunks=(2,), groups=len(keys))
    assert sim.kv_tiers()[0]["hit_chunks"] == 2 + hits


def test_what_a_pool_gives_up_moves_down_and_thrashing_is_counted() -> None:
    keys = [[1, 2], [3, 4], [1, 2], [3, 4]]
    rows = [(i * LATER, 9, 1) for i in range(4)]
    sim = run(rows, keys=keys, capacity_chunks=(1,), groups=4)
    assert lists(sim) == (0, 3, 2)  # each comes back after it was given up
    assert lists(run(rows, keys=[*keys[:2], [5, 6], [1, 2]], capacity_chunks=(1,), groups=4)) == (
        0,
        3,
        0,
    )  # too late
    # A pool of three remembers the last three that it gave up, not the last one alone.
    seven = [[2 * i + 1, 2 * i + 2] for i in (0, 1, 2, 3, 4, 5, 0)]
    sim = run([(i * LATER, 9, 1) for i in range(7)], keys=seven, capacity_chunks=(3,), groups=7)
    assert lists(sim) == (0, 4, 1)
    # Write-back: device, first pool, second pool. A device of 4 usable blocks: each request pushes
    # out the last.
    keys = [[1, 2], [3, 4], [5, 6], [1, 2]]
    sim = run(rows, keys=keys, capacity_chunks=(1, 10), write="BACK", blocks=5)
    first, second = sim.kv_tiers()
    assert first["evicted_chunks"] > 0 and second["written_chunks"] == first["evicted_chunks"]
    assert (first["hit_chunks"], second["hit_chunks"]) == (0, 1)


@pytest.mark.parametrize("granularity", [4, 8, 16, 64])
def test_content_keys_may_be_coarser_than_the_blocks(granularity: int) -> None:
    """Keys of 64 tokens name what keys of 4 tokens name: the same hits, on the device and below."""
    fine = [list(range(1, 33)), [*range(1, 17), *range(50, 66)], list(range(1, 33))]
    per = granularity // 4
    ids: dict[tuple[int, ...], int] = {}
    coarse = [
        [ids.setdefault(tuple(row[: i + per]), len(ids) + 1) for i in range(0, len(row), per)]
        for row in fine
    ]
    rows = [(i * LATER, 128, 2) for i in range(3)]
    for groups in (1, 3):
        reference = run(rows, keys=fine, groups=groups)
        sim = run(rows, keys=coarse, groups=groups, granularity=granularity)
        assert (
            sim.requests()["cached_tokens"].tolist()
            == reference.requests()["cached_tokens"].tolist()
        )
        assert sim.requests()["finish_ps"].tolist() == reference.requests()["finish_ps"].tolist()


def test_refusals() -> None:
    with pytest.raises(ValueError, match="cannot name blocks of 4"):
        run([(0, 20, 1)], keys=[[1]], granularity=6)


requests_strategy = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 120), st.integers(1, 40), st.integers(0, 5)),
    min_size=1,
    max_size=20,
).map(sorted)


@settings(max_examples=150, deadline=None)
@given(
    requests=requests_strategy,
    write=st.sampled_from(["THROUGH", "SELECTIVE", "BACK"]),
    eviction=st.sampled_from(["LRU", "LFU", "COST"]),
    capacity=st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple),
    blocks=st.integers(42, 100),
    groups=st.integers(1, 3),
    shared=st.booleans(),
    depth=st.sampled_from([1, 2]),
    impatient=st.booleans(),
    parks=st.booleans(),
    storage=st.sampled_from([(0, 0, 0), (1, 10**7, 10**6), (4, 10**9, 10**8)]),
    budget=st.sampled_from([16, 256]),
    stripes=st.sampled_from([0, 3]),
)
def test_nothing_is_lost(
    requests: list[tuple[int, int, int, int]],
    write: str,
    eviction: str,
    capacity: tuple[int, ...],
    blocks: int,
    groups: int,
    shared: bool,
    depth: int,
    impatient: bool,
    parks: bool,
    storage: tuple[int, int, int],
    budget: int,
    stripes: int,
) -> None:
    rows = [(ms * 10**9, tokens, output) for ms, tokens, output, _ in requests]
    keys = [
        [100 * kind + i for i in range(1, 1 + tokens // BLOCK)] if kind else []
        for _, tokens, _, kind in requests
    ]
    timeouts = [37 * 10**9 if impatient and i % 3 == 0 else -1 for i in range(len(rows))]

    def simulate() -> Any:
        return run(
            rows,
            keys=keys,
            write=write,
            eviction=eviction,
            capacity_chunks=capacity,
            blocks=blocks,
            groups=groups,
            shared=shared,
            depth=depth,
            timeouts=timeouts,
            parks=parks,
            storage=storage,
            budget=budget,
            stripes=stripes,
        )

    sim = simulate()
    r, c, parts = sim.requests(), sim.counters(), sim.blame()
    status = r["status"]
    assert np.isin(status, (3, 5)).all() and (impatient or (status == 3).all())
    done = status == 3
    assert (r["emitted_tokens"][done] == np.array([o for _, _, o in rows])[done]).all()
    assert (
        c["pool_consistent"].all()
        and (c["free_blocks"] == blocks - 1).all()
        and not c["idle_with_work"].any()
    )
    end = np.maximum(r["finish_ps"], r["cancelled_ps"])
    assert (sum(parts.values()) == end - r["arrival_ps"]).all() and all(
        (part >= 0).all() for part in parts.values()
    )
    chain = ("arrival_ps", "queued_ps", "scheduled_ps", "first_token_ps", "finish_ps")
    for early, late in pairwise(chain):
        assert (r[early][done] <= r[late][done]).all()
    for pool in sim.kv_tiers():
        assert (
            pool["consistent"]
            and pool["used_bytes"] <= pool["peak_bytes"] <= pool["capacity_bytes"]
        )
        assert pool["written_chunks"] - pool["evicted_chunks"] == pool["chunks"]
        assert pool["thrashed_chunks"] <= pool["evicted_chunks"]
    needed = sum(i + o - 1 for _, i, o in rows)
    if not impatient:
        steps = int(sim.steps()["tokens"].sum())
        assert steps == needed - int(r["cached_tokens"].sum()) + int(c["recomputed_tokens"].sum())
    again = simulate()
    assert (
        all((again.requests()[name] == r[name]).all() for name in r)
        and again.kv_tiers() == sim.kv_tiers()
    )
