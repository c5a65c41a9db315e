"""Prefill and decode apart: exact bytes, no early decode, nothing lost, whatever the groups and the
pressure.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd import MS, PER_TOKEN, PS_PER_S, STEP, Cluster, gather_ps, run, schedule
from token_balance import token_balance

from llmsim import _native

requests_strategy = st.lists(
    st.tuples(st.integers(0, 200_000), st.integers(1, 200), st.integers(1, 30)),
    min_size=1,
    max_size=20,
).map(sorted)


def needed_blocks(request: tuple[int, int, int], size: int, role: str) -> int:
    """The last token's KV is never written; on the prefill side the only token is the last."""
    _, prompt, output = request
    return -(-(prompt if role == "PREFILL" else prompt + output - 1) // size)


@st.composite
def clusters(draw: Any, requests: list[tuple[int, int, int]]) -> Cluster:
    size = draw(st.sampled_from([1, 4, 16]))

    def pools(role: str) -> list[int]:
        """From 5 % to 110 % of what all requests together need, and at least one for the largest
        prompt.
        """
        total = sum(needed_blocks(request, size, role) for request in requests)
        share = st.integers(5, 110).map(lambda percent: 2 + total * percent // 100)
        most = max(needed_blocks(request, size, role) for request in requests)
        sizes = draw(st.lists(share, min_size=1, max_size=3))
        sizes[0] = max(
            sizes[0], most + 1 - draw(st.integers(0, 1))
        )  # sometimes one request fits nowhere
        return sizes

    push = draw(st.booleans())
    scheduler = draw(st.sampled_from(["vllm_v1", "vllm_v1", "sglang"]))
    ours = scheduler == "vllm_v1"
    return Cluster(
        pools("PREFILL"),
        pools("DECODE"),
        block_size=size,
        max_seqs=draw(st.integers(1, 8)),
        budget=draw(st.sampled_from([16, 64, 256])),
        depth=draw(st.sampled_from([1, 2])) if ours else 1,
        scheduler=scheduler,
        drafts=draw(st.sampled_from([0, 0, 1, 3])) if ours else 0,
        caching=draw(st.booleans()),
        order=draw(st.sampled_from(["FCFS", "PRIORITY", "SHORTEST"])),
        watermark=draw(st.integers(0, 3)),
        push=push,
        layerwise=push and draw(st.booleans()),
        sharing=draw(st.sampled_from(["FAIR", "FIFO"])),
        bytes_per_s=draw(st.sampled_from([10**6, 10**8, 10**11])),
        latency_ps=draw(st.sampled_from([0, 10**6])),
        layers=draw(st.integers(1, 5)),
        api_ps=draw(st.sampled_from([0, 10**9])),
        router=draw(st.sampled_from([kind.name for kind in _native.router_kinds()])),
        lockstep=draw(st.booleans()),
        gathered_bytes=draw(st.sampled_from([0, 1000, 100_000])),
        tail_blocks=draw(st.sampled_from([0, 0, 1, 2, 5])),
        state_bytes=draw(st.sampled_from([0, 0, 777, 50_000])) if ours else 0,
    )


def check(
    requests: list[tuple[int, int, int]], cluster: Cluster, sim: Any, impatient: bool = False
) -> None:
    r, h, c = sim.requests(), sim.kv_transfers(), sim.counters()
    prompts, outputs = (
        np.array([row[1] for row in requests]),
        np.array([row[2] for row in requests]),
    )
    done, gone = r["status"] == 3, r["status"] == 5
    assert (done | (r["status"] == 4) | gone).all() and (impatient or not gone.any())
    assert (r["emitted_tokens"][~gone] == np.where(done, outputs, 0)[~gone]).all()
    for counter in ("running", "waiting", "parked", "idle_with_work"):
        assert not c[counter].any()
    assert c["pool_consistent"].all() and (c["free_blocks"] == c["total_blocks"] - 1).all()
    assert c["finished"].sum() == done.sum() <= c["handed_over"].sum()
    assert c["cancelled"].sum() == gone.sum() and (
        impatient or c["handed_over"].sum() == done.sum()
    )
    assert c["generation_tokens"].sum() == r["emitted_tokens"].sum()
    assert token_balance(sim, prompts.tolist()) == "ok"
    check_bytes(prompts, cluster, sim, done)
    chain = (
        r["arrival_ps"],
        r["queued_ps"],
        r["scheduled_ps"],
        h["prefill_end_ps"],
        h["decode_scheduled_ps"],
        r["first_token_ps"],
        r["finish_ps"],
    )
    for early, late in pairwise(chain):
        assert (early[done] <= late[done]).all()
    assert (h["kv_landed_ps"][done] <= h["decode_scheduled_ps"][done]).all()
    parts = sum(sim.blame().values())
    left = np.maximum(r["finish_ps"], r["cancelled_ps"]) - r["arrival_ps"]
    assert (parts[done | gone] == left[done | gone]).all()
    assert all((part >= 0).all() for part in sim.blame().values())
    for pool in sim.kv_tiers():
        assert pool["consistent"]
    first_steps(requests, cluster, sim, done)


def check_bytes(prompts: np.ndarray, cluster: Cluster, sim: Any, done: np.ndarray) -> None:
    """Exactly the KV that was not there; of a client that has gone, at most that."""
    h = sim.kv_transfers()
    asked = [
        cluster.due_bytes(*row)
        for row in zip(prompts.tolist(), h["decode_cached_tokens"].tolist(), strict=True)
    ]
    due = np.array(asked)
    assert (h["kv_transfer_bytes"][done] == due[done]).all() and (
        h["kv_due_bytes"][done] == due[done]
    ).all()
    assert (h["kv_transfer_bytes"] <= due).all()
    below = sum(pool["recalled_bytes"] + pool["written_bytes"] for pool in sim.kv_tiers())
    if cluster.gathered_bytes == 0:
        assert sim.network()["bytes"].sum() == 2 * (
            h["kv_transfer_bytes"].sum() + below
        )  # a link out, a link in
    alone = -(-due * PS_PER_S // (cluster.bytes_per_s * cluster.layers))
    if not cluster.layerwise:
        start = h["prefill_end_ps"] if cluster.push else h["kv_reserved_ps"]
        assert (
            h["kv_landed_ps"]
            >= start + cluster.latency_ps + alone * cluster.layers - cluster.layers
        )[done].all()


def first_steps(
    requests: list[tuple[int, int, int]], cluster: Cluster, sim: Any, done: np.ndarray
) -> None:
    """The decode side computes one token of each prompt, unless it lost the rest by a
    preemption; SGLang's gets the first token of the answer along with all of the prompt.
    """
    brought = cluster.scheduler == "sglang"
    seen = set()
    for group in range(len(cluster.prefill), len(cluster.prefill) + len(cluster.decode)):
        for step in schedule(sim, group):
            for request, tokens, computed in step:
                prompt = requests[request][1]
                if request not in seen:
                    whole = brought and (tokens, computed) == (0, prompt)
                    assert whole or (tokens, computed) == (1, prompt - 1)
                seen.add(request)
    assert seen >= set(np.flatnonzero(done).tolist())


@settings(deadline=None, max_examples=200)
@given(st.data(), requests_strategy)
def test_nothing_is_lost_and_every_byte_is_counted(
    data: st.DataObject, requests: list[tuple[int, int, int]]
) -> None:
    """With any groups, pressure, tiers below, ranks in lock-step, and clients that give up at any
    time.
    """
    cluster = data.draw(clusters(requests))
    if len(cluster.decode) != 2 or not cluster.lockstep:
        cluster.gathered_bytes = 0
    shared = data.draw(st.integers(0, 6))
    keys = [
        list(range(1, 1 + min(shared, prompt // cluster.block_size))) for _, prompt, _ in requests
    ]
    priority = [data.draw(st.integers(-2, 2)) for _ in requests]
    impatient = data.draw(st.booleans())
    patience = st.one_of(st.just(-1), st.integers(0, 400 * MS), st.integers(0, 20 * MS))
    timeouts = [data.draw(patience) for _ in requests] if impatient else None
    if cluster.caching and data.draw(st.booleans()):
        cluster.tier_chunks = data.draw(st.integers(0, 20))
        cluster.tier_write = data.draw(st.sampled_from(["THROUGH", "SELECTIVE", "BACK"]))
        cluster.tier_parks = cluster.scheduler == "vllm_v1" and data.draw(st.booleans())
    sim = run(requests, cluster, keys, priority, timeouts)
    check(requests, cluster, sim, impatient)
    again = run(requests, cluster, keys, priority, timeouts)
    for name, column in sim.requests().items():
        assert (again.requests()[name] == column).all()


def test_a_decode_server_that_looks_again_in_lock_step_does_not_count_as_idle() -> None:
    """SGLang's loop looks at its queues once more when somebody has left, which takes no time."""
    cluster = Cluster(
        [14], [34], block_size=16, max_seqs=1, budget=16, depth=1, caching=False, push=True,
        bytes_per_s=10**6, latency_ps=0, layers=1, api_ps=0, router="LOAD", lockstep=True,
        scheduler="sglang",
    )  # fmt: skip
    requests = [(0, 1, 1), (0, 1, 1), (0, 4, 30)]
    sim = run(requests, cluster, [[] for _ in requests], [0] * len(requests))
    check(requests, cluster, sim)


SCARCE = [
    (0, 1, 1),
    (0, 1, 1),
    (0, 76, 1),
    (284, 149, 3),
    (439, 71, 2),
    (761, 139, 21),
    (1722, 17, 16),
    (1752, 111, 3),
    (1752, 111, 3),
    (1878, 132, 10),
    (2499, 89, 19),
    (3873, 51, 24),
    (6439, 32, 4),
    (26197, 47, 1),
    (48442, 37, 5),
    (65535, 197, 9),
    (94650, 69, 27),
    (110756, 146, 26),
    (112654, 73, 16),
    (161818, 97, 14),
]


@settings(deadline=None, max_examples=60)
@given(st.data(), requests_strategy)
def test_what_ended_before_a_horizon_ended_as_without_it(
    data: st.DataObject, requests: list[tuple[int, int, int]]
) -> None:
    """With clients that take turns and give up, by time or by tokens."""
    cluster = data.draw(clusters(requests))
    if len(cluster.decode) != 2 or not cluster.lockstep:
        cluster.gathered_bytes = 0
    n = len(requests)
    clients = data.draw(st.sampled_from([0, 1, 3]))
    timeouts = [data.draw(st.sampled_from([-1, 1, 10**9, 10**10])) for _ in range(n)]
    cancel_tokens = [data.draw(st.sampled_from([0, 0, 1, 5])) for _ in range(n)]
    options: dict[str, Any] = {
        "timeouts": timeouts,
        "cancel_tokens": cancel_tokens,
        "clients": clients,
    }
    sim = run(requests, cluster, **options)
    r, c = sim.requests(), sim.counters()
    assert (
        np.isin(r["status"], (3, 4, 5)).all() and not c["running"].any() and not c["parked"].any()
    )
    assert c["pool_consistent"].all() and (c["free_blocks"] == c["total_blocks"] - 1).all()
    horizon = data.draw(st.integers(1, max(1, sim.now_ps)))
    cut = run(requests, cluster, **options, horizon_ps=horizon)
    columns, ended = cut.requests(), (r["finish_ps"] >= 0) & (r["finish_ps"] <= horizon)
    assert np.array_equal(columns["finish_ps"], np.where(ended, r["finish_ps"], -1))
    assert all((part >= 0).all() for part in cut.blame().values())


def test_a_rank_whose_kv_lands_while_another_one_runs_waits_for_the_next_round() -> None:
    """Ranks of a prefill server end their rounds apart here: once the first one asked again and
    again for what it was to hear of with the next round.
    """
    prompts = [1, 22, 84, 130, 140, 152, 171, 1, 35, 29]
    answers = [24, 30, 1, 1, 15, 28, 30, 1, 1, 30]
    arrivals = [0, 0, 0, 0, 0, 0, 0, 1, 136, 61021]
    requests = [(0, 1, 1)] * 10 + list(zip(arrivals, prompts, answers, strict=True))
    cluster = Cluster(
        prefill=[12, 5],
        decode=[70],
        both=[],
        block_size=16,
        max_seqs=8,
        budget=256,
        depth=1,
        caching=False,
        push=True,
        sharing="FAIR",
        bytes_per_s=100_000_000,
        latency_ps=0,
        layers=1,
        bytes_per_token_and_layer=1000,
        api_ps=0,
        router="LOAD",
        lockstep=True,
        scheduler="sglang",
    )
    sim = run(requests, cluster)
    assert np.isin(sim.requests()["status"], (3, 4, 5)).all()


@pytest.mark.parametrize("blocks", [93, 95])
def test_drafts_find_room_where_parked_prompts_hold_all_blocks(blocks: int) -> None:
    """Once those whose KV had come lacked a draft's slot to begin, or a prompt preempted itself for
    ever.
    """
    priority = [1, 1, 0, 2, 0, 0, 0, 0, 0, 0, -1, 0, 0, -2, 0, 0, -2, 0, -1, -1]
    cluster = Cluster(
        [198],
        [206, blocks],
        block_size=1,
        max_seqs=1,
        budget=16,
        caching=False,
        order="PRIORITY",
        push=True,
        bytes_per_s=10**6,
        latency_ps=0,
        layers=1,
        drafts=1,
        state_bytes=50_000,
        depth=1,
        router="LOAD",
    )
    check(SCARCE, cluster, run(SCARCE, cluster, priority=priority), impatient=False)


@pytest.mark.parametrize("push", [False, True])
def test_one_request_by_hand(push: bool) -> None:
    """Two steps of the prompt, its 400 kB at 1 GB/s, one step for the first token."""
    sim = run([(0, 100, 3)], Cluster([50], [50], push=push))
    h = sim.kv_transfers()
    prompt = 2 * STEP + 100 * PER_TOKEN
    told = 1000  # one message on its way to the prefill group
    assert h["prefill_end_ps"][0] == prompt + (told if push else 0)
    landed = prompt + 2 * told + MS * 4 // 10
    assert h["kv_landed_ps"][0] == landed
    assert sim.requests()["first_token_ps"][0] == landed + STEP + PER_TOKEN
    assert sim.requests()["finish_ps"][0] == landed + 3 * (STEP + PER_TOKEN)


def test_layer_by_layer_only_the_last_layer_shows() -> None:
    """Each layer takes 1.25 ms to compute and 0.1 ms to move; the last one leaves when its
    attention has run.
    """
    sim = run([(0, 64, 1)], Cluster([50], [50], push=True, layerwise=True, bytes_per_s=640 * 10**6))
    h = sim.kv_transfers()
    assert h["kv_landed_ps"][0] == 1000 + STEP + MS // 10 + 1000
    assert (
        h["decode_scheduled_ps"][0] == 1000 + STEP + 64 * PER_TOKEN
    )  # not before the prefill has ended
    slow = Cluster([50], [50], push=True, layerwise=True, bytes_per_s=64 * 10**5, sharing="FIFO")
    h = run([(0, 64, 1)], slow).kv_transfers()
    assert h["kv_landed_ps"][0] == 1000 + STEP // 4 + 4 * 10 * MS + 1000  # one after the other


def test_windows_move_their_last_blocks_and_states_move_once() -> None:
    """Two layers keep everything, one the last two of seven blocks, one a state; the last token is
    no part of them.
    """
    cluster = Cluster([50], [50], layers=4, tail_blocks=2, state_bytes=5000)
    assert [layers for layers, *_ in cluster.kinds] == [[3], [0, 2], [1]]
    sim = run([(0, 100, 3)], cluster)
    h = sim.kv_transfers()
    assert h["kv_transfer_bytes"][0] == 99 * 1000 + 2 * (99 - 80) * 1000 + 5000
    prompt = [(tokens, computed) for step in schedule(sim, 0) for _, tokens, computed in step]
    assert prompt == [(64, 0), (35, 64)]  # the prefill side computes 99 tokens
    assert schedule(sim, 1)[0] == [(0, 1, 99)]
    assert sim.counters()["prompt_tokens"].tolist() == [99, 0]


def test_a_prompt_of_one_token_is_computed_whole_and_its_state_moves() -> None:
    sim = run([(0, 1, 2)], Cluster([50], [50], state_bytes=5000))
    assert sim.kv_transfers()["kv_transfer_bytes"][0] == 3 * 1000 + 5000
    assert schedule(sim, 0) == [[(0, 1, 0)]] and schedule(sim, 1)[0] == [(0, 1, 0)]


def test_layer_by_layer_a_window_leaves_when_its_blocks_are_computed() -> None:
    """Chunks of 64 and 36 tokens: the window's last 20 tokens go with the second, nothing of it
    with the first.
    """
    cluster = Cluster(
        [50], [50], layers=2, tail_blocks=2, push=True, layerwise=True, bytes_per_s=10**12
    )
    sim = run([(0, 100, 1)], cluster)
    assert sim.kv_transfers()["kv_transfer_bytes"][0] == 100 * 1000 + 20 * 1000
    moved = sim.network()["transfers"].tolist() if "transfers" in sim.network() else None
    assert moved is None or max(moved) == 3  # both layers of the last chunk, one of the first


def test_n_prompts_at_once_share_the_link() -> None:
    """Equal prompts that end together and reserve together take n times as long as one."""
    cluster = Cluster([2000], [2000], budget=1024, bytes_per_s=10**6)
    alone = run([(0, 64, 1)], cluster).kv_transfers()
    for n in (2, 5, 8):
        h = run([(0, 64, 1)] * n, cluster).kv_transfers()
        took = h["kv_landed_ps"] - h["kv_reserved_ps"] - 2000
        assert len(set(h["kv_reserved_ps"].tolist())) == 1
        expected = n * int(alone["kv_landed_ps"][0] - alone["kv_reserved_ps"][0] - 2000)
        assert np.abs(took - expected).max() <= n  # integer rates


def test_what_the_decode_side_has_does_not_move() -> None:
    keys = [[1, 2, 3], [1, 2, 3]]
    sim = run([(0, 64, 2), (100_000, 64, 2)], Cluster([50], [50], caching=True), keys)
    h = sim.kv_transfers()
    assert h["decode_cached_tokens"].tolist() == [0, 48] and sim.requests()[
        "cached_tokens"
    ].tolist() == [0, 48]
    assert h["kv_transfer_bytes"].tolist() == [64 * 4000, 16 * 4000]


def test_prefill_keeps_its_blocks_until_they_are_read() -> None:
    """Two prompts do not fit the prefill pool together: the second waits for the first one's
    transfer.
    """
    sim = run([(0, 64, 1), (0, 64, 1)], Cluster([6], [50], bytes_per_s=10**6))
    r, h = sim.requests(), sim.kv_transfers()
    assert h["kv_landed_ps"][0] > h["prefill_end_ps"][0] + 200 * MS
    assert r["scheduled_ps"][1] == h["kv_landed_ps"][0]


def test_decode_without_room_queues() -> None:
    """The second prompt can be reserved when the first request has left; the transfer
    begins then.
    """
    sim = run([(0, 64, 10), (0, 64, 10)], Cluster([50], [7]))
    r, h = sim.requests(), sim.kv_transfers()
    assert h["kv_reserved_ps"][1] >= r["finish_ps"][0] > h["prefill_end_ps"][1]
    assert sim.blame()["queue_ps"][1] > 0


def test_a_preempted_request_is_computed_again_where_it_decodes() -> None:
    sim = run([(0, 60, 60), (0, 60, 60)], Cluster([50], [11]))
    r, h, c = sim.requests(), sim.kv_transfers(), sim.counters()
    assert r["preemptions"].sum() > 0 and c["preemptions"].tolist()[0] == 0
    assert h["kv_transfer_bytes"].tolist() == [60 * 4000] * 2  # moved once
    assert (sim.blame()["preemption_ps"] > 0).any()


@pytest.mark.parametrize(("late", "victims"), [(True, [1, 0]), (False, [1])])
def test_a_victim_in_flight_makes_no_room_before_its_step_has_ended(
    late: bool, victims: list[int]
) -> None:
    """Of 6 blocks both hold 3 when the first needs a fourth: what the second gives up is not there
    yet.
    """
    sim = run([(0, 30, 40), (1, 30, 40)], Cluster([100], [7], depth=2, defer_block_free=late))
    columns = sim.schedule(1)
    assert columns["preempted_request"].tolist() == victims
    step = columns["preempted_step"].tolist()[0]
    assert columns["preempted_step"].tolist() == [step] * len(victims)
    assert columns["free_blocks"][step] == (0 if late else 2)
    assert len(schedule(sim, 1)[step]) == (0 if late else 1)
    assert sim.requests()["status"].tolist() == [3, 3]


def test_an_aborted_request_in_flight_keeps_its_blocks_until_its_steps_have_ended() -> None:
    """Its client gives up while two of its steps are under way; it is heard when the first ends."""
    free = []
    for late in (True, False):
        cluster = Cluster([100], [9], depth=2, defer_block_free=late)
        sim = run([(0, 30, 20), (1, 30, 20)], cluster, timeouts=[-1, 60 * MS])
        columns, row = sim.schedule(1), schedule(sim, 1)
        step = next(
            i for i, at in enumerate(columns["time_ps"]) if at >= sim.requests()["cancelled_ps"][1]
        )
        assert [len(items) for items in row[step - 2 : step + 1]] == [2, 2, 1]
        free.append(columns["free_blocks"][step - 1 : step + 2].tolist())
    assert free == [[2, 2, 5], [2, 5, 5]]


def test_what_fits_no_decode_group_is_refused_before_it_is_prefilled() -> None:
    sim = run([(0, 64, 100), (0, 64, 2)], Cluster([50], [7, 6]))
    assert sim.requests()["status"].tolist() == [4, 3]
    assert sim.requests()["scheduled_ps"].tolist()[0] == -1


# Four decode groups for short prompts, of which only two hold a long one.
UNEQUAL = Cluster([200], [12, 12, 200, 200])
SHORT_AND_LONG = [(i * 3000, 300 if i % 3 == 0 else 20, 5) for i in range(24)]


@pytest.mark.parametrize("router", [kind.name for kind in _native.router_kinds()])
def test_routers_choose_among_the_decode_groups_that_hold_the_request(router: str) -> None:
    r = run(SHORT_AND_LONG, replace(UNEQUAL, router=router)).requests()
    assert (r["status"] == 3).all() and (r["group"][::3] >= 3).all()


def test_a_router_in_python_sees_the_decode_groups_that_hold_the_request() -> None:
    seen = []

    def last(request: Any, groups: Any) -> int:
        seen.append((request.tokens, [group.index for group in groups]))
        return int(groups[-1].index)

    r = run(SHORT_AND_LONG, replace(UNEQUAL, decode_route=last)).requests()
    assert (r["status"] == 3).all()
    assert sorted(seen) == [(20, [1, 2, 3, 4])] * 16 + [(300, [3, 4])] * 8


def test_groups_that_do_everything_take_their_share() -> None:
    sim = run([(1000 * i, 64, 4) for i in range(8)], Cluster([50], [50], both=[50], router="RR"))
    assert sim.kv_transfers()["prefill_group"].tolist() == [0, -1] * 4
    assert sim.requests()["group"].tolist() == [1, 2] * 4
    assert (sim.requests()["status"] == 3).all()
    parts = sum(sim.blame().values())
    assert (parts == sim.requests()["finish_ps"] - sim.requests()["arrival_ps"]).all()


def steps_of(sim: Any, group: int) -> list[tuple[int, int]]:
    """(start, tokens) of every step."""
    steps = sim.steps()
    mine = steps["group"] == group
    return list(zip(steps["start_ps"][mine].tolist(), steps["tokens"][mine].tolist(), strict=True))


def test_ranks_in_lock_step_run_dummies_while_somebody_is_parked_and_then_end() -> None:
    """64 tokens take 256 ms to move: about fifty empty rounds of both decode ranks, as vLLM's
    engines run them.
    """
    cluster = Cluster([50, 50], [50, 50], lockstep=True, bytes_per_s=10**6)
    sim = run([(0, 64, 3)], cluster)
    r, h = sim.requests(), sim.kv_transfers()
    group = int(r["group"][0])
    moved = 256 * MS + 2000
    assert h["kv_landed_ps"][0] == h["kv_reserved_ps"][0] + moved
    empty = [at for at, tokens in steps_of(sim, group) if tokens == 0 and at < h["kv_landed_ps"][0]]
    assert len(empty) == -(-moved // (STEP + PER_TOKEN))
    assert len(steps_of(sim, 2)) == len(steps_of(sim, 3)) and len(steps_of(sim, 0)) == len(
        steps_of(sim, 1)
    )
    assert len(steps_of(sim, group)) % 4 == 0  # the wave ends when the ranks next agree
    assert h["decode_scheduled_ps"][0] >= h["kv_landed_ps"][0]
    assert sum(sim.blame().values())[0] == r["finish_ps"][0] - r["arrival_ps"][0]


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize(
    ("timeout_ms", "moved"),
    [(3, False), (8, False), (12, True), (40, True), (110, True)],
    ids=["first chunk", "second chunk", "KV begins to move", "KV moves", "decoding"],
)
def test_a_client_that_gives_up_frees_the_blocks_at_both_ends(
    timeout_ms: int, moved: bool, push: bool
) -> None:
    """A prompt of two steps (5.6 ms each), 100 ms of KV, an answer of 9 steps; a second request
    needs the blocks.
    """
    timeout = timeout_ms * MS
    cluster = Cluster([8], [8], bytes_per_s=4 * 10**6, push=push)
    sim = run([(0, 100, 9), (1, 100, 2)], cluster, timeouts=[timeout, -1])
    r, h, parts = sim.requests(), sim.kv_transfers(), sim.blame()
    assert r["status"].tolist() == [5, 3]
    assert (h["kv_transfer_bytes"][0] > 0) == moved and h["kv_transfer_bytes"][1] == 400_000
    assert timeout <= r["cancelled_ps"][0] <= timeout + 2 * STEP
    assert sum(parts.values())[0] == r["cancelled_ps"][0]
    # Neither end has room for both: the second request waits until nothing of the first moves any
    # more.
    free = max(int(r["cancelled_ps"][0]), int(h["kv_landed_ps"][0]))
    assert (h["kv_reserved_ps"] if push else r["scheduled_ps"])[1] >= (
        free if moved else r["cancelled_ps"][0]
    )


def test_what_a_tier_below_the_decode_side_holds_does_not_come_from_the_prefill_side() -> None:
    """Both decode groups share the pool: the second finds there what the first was sent, 48 of 64
    tokens in chunks.
    """
    cluster = Cluster([50], [50, 50], caching=True, block_size=8, tier_chunks=20, router="RR")
    keys = [list(range(1, 9))] * 2
    sim = run([(0, 64, 2), (400_000, 64, 2)], cluster, keys)
    h, r = sim.kv_transfers(), sim.requests()
    assert r["group"].tolist() == [1, 2] and h["decode_cached_tokens"].tolist() == [0, 48]
    assert h["kv_transfer_bytes"].tolist() == [64 * 4000, 16 * 4000]
    assert sim.kv_tiers()[0]["hit_tokens"] >= 48


def test_kv_and_collectives_on_one_port_share_it() -> None:
    """400 ms of KV into one of two decode ranks that gather 1 ms in each of four layers: both slow
    each other down.
    """
    cluster = Cluster(
        [200],
        [200, 200],
        lockstep=True,
        router="RR",
        bytes_per_token_and_layer=10**6,
        gathered_bytes=10**6,
        latency_ps=0,
    )
    sim = run([(0, 1, 200), (50_000, 100, 2)], cluster)
    h = sim.kv_transfers()
    assert sim.requests()["group"].tolist() == [1, 2]
    start, landed = int(h["kv_reserved_ps"][1]), int(h["kv_landed_ps"][1])
    steps = sim.steps()
    mine = (steps["group"] == 1) & (steps["start_ps"] > h["kv_landed_ps"][0])
    begin, end = steps["start_ps"][mine], steps["end_ps"][mine]
    alone = STEP + PER_TOKEN + cluster.layers * gather_ps(2, cluster)
    assert gather_ps(2, cluster) == MS
    inside, outside = (begin >= start) & (end <= landed), (end <= start) | (begin >= landed)
    assert inside.sum() > 30 and outside.sum() > 30
    assert set((end - begin)[outside].tolist()) == {alone}
    assert set((end - begin)[inside].tolist()) == {alone + cluster.layers * MS}
    # The KV lost a millisecond in each of the gatherings beside it; the first and the last may be
    # cut.
    late = landed - start - 400 * MS
    assert abs(late - cluster.layers * MS * int(inside.sum())) <= 2 * cluster.layers * MS


@pytest.mark.parametrize("sharing", ["FAIR", "FIFO"])
def test_a_collective_alone_takes_what_its_table_says(sharing: str) -> None:
    cluster = Cluster(
        [200], [200, 200], lockstep=True, gathered_bytes=12_345, latency_ps=777, sharing=sharing
    )
    sim = run([(0, 20, 9)], cluster)
    steps = sim.steps()
    took = (steps["end_ps"] - steps["start_ps"])[steps["group"] == 1]
    assert set(took.tolist()) == {STEP + PER_TOKEN + cluster.layers * gather_ps(2, cluster)}
