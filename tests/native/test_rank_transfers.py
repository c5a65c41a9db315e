"""When a data-parallel rank hears that KV has moved: with the calls whose output its engine takes.

vLLM's engine asks its workers in every call, also in one that gives no batch, and takes the output
of the oldest call when its queue is full. Dummies behind such calls carry nothing.
"""

from typing import Any

from pd import MS, PER_TOKEN, STEP, Cluster, run, schedule

BLOCKS = 5
"""Of 16 tokens, with the null block: room for one prompt of 64 tokens."""
PROMPT = 64
LONG = 640
"""A prompt of ten steps, with which the other rank keeps the wave going."""


def cluster(**changes: Any) -> Cluster:
    """Two ranks prefill, of which each has room for what it is sent, and one group decodes."""
    options: dict[str, Any] = {"prefill": [BLOCKS, 100], "decode": [100], "depth": 2}
    return Cluster(**options | {"lockstep": True, "router": "RR"} | changes)


ROUND = STEP + PROMPT * PER_TOKEN
"""What a rank takes to compute a prompt, or a part of the long one."""
DUMMY = STEP + PER_TOKEN


def began(sim: Any, group: int) -> dict[int, int]:
    """When each request of a group was first scheduled, in ps."""
    found: dict[int, int] = {}
    for items, time_ps in zip(schedule(sim, group), sim.schedule(group)["time_ps"], strict=True):
        for request, _, _ in items:
            found.setdefault(request, int(time_ps))
    return found


def test_a_rank_hears_two_calls_behind_a_read() -> None:
    """Rank 0 computes r0, whose KV is read during the dummy behind it, and has no room for r2. The
    call behind that dummy finds the KV read, the next call takes that one's output, and the call
    after that runs r2.
    """
    rows = [(0, PROMPT, 1), (0, LONG, 1), (0, PROMPT, 1)]
    assert began(run(rows, cluster()), 0) == {0: 0, 2: ROUND + 3 * DUMMY}


def test_a_dummy_that_a_rank_owes_is_no_call() -> None:
    """Behind r2's output rank 0 runs the dummy of a call that found nothing during r2's step. The
    KV of r0 was read behind that call, so that the call behind this dummy is the first to tell.
    """
    rows = [(0, PROMPT, 1), (0, LONG, 1), (0, PROMPT, 1), (0, 1, 1), (0, PROMPT, 1)]
    sim = run(rows, cluster(prefill=[2 * BLOCKS - 1, 100]))
    assert began(sim, 0) == {0: 0, 2: 0, 4: 2 * ROUND + 2 * DUMMY}


def test_a_rank_in_synchronous_steps_hears_in_the_call_behind_a_read() -> None:
    """Its next dummy begins with the other rank's third step, and r2 behind that."""
    rows = [(0, PROMPT, 1), (0, LONG, 1), (0, PROMPT, 1)]
    assert began(run(rows, cluster(depth=1)), 0) == {0: 0, 2: 2 * ROUND + DUMMY}


def test_a_rank_hears_when_its_call_fills_its_queue() -> None:
    """Before r2's batch runs, the engine takes the output of the call before it, and has room for
    r4 in the call that follows at once.
    """
    rows = [(0, PROMPT, 1), (0, LONG, 1), (12_000, PROMPT, 1), (12_000, 1, 1), (12_000, PROMPT, 1)]
    sim = run(rows, cluster(prefill=[2 * BLOCKS - 1, 100]))
    assert began(sim, 0) == {0: 0, 2: 3 * ROUND, 4: 3 * ROUND}


def test_an_idle_rank_hears_at_once() -> None:
    """The wave has ended before the KV of r0 is read; what comes then finds the room."""
    slow = cluster(bytes_per_s=1_000_000)
    rows = [(0, PROMPT, 1), (0, 1, 1)]
    read_ps = int(run(rows, slow).kv_transfers()["kv_landed_ps"][0])
    after_us = read_ps // 1_000_000 + 1
    assert read_ps > 200 * MS
    sim = run([*rows, (after_us, PROMPT, 1)], slow)
    assert began(sim, 0) == {0: 0, 2: after_us * 1_000_000}
