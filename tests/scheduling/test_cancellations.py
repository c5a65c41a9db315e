"""Clients that give up: what is dropped and when, and that nothing is lost with them under any
pressure.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scheduling.test_nothing_lost import build_options, options_strategy, requests_strategy
from scheduling.tiny import MS, SCHEDULERS, Options, run, schedule
from token_balance import token_balance

FINISHED, REJECTED, CANCELLED = 3, 4, 5


def test_a_timeout_drops_a_running_request_before_the_next_step_and_frees_its_blocks() -> None:
    sim = run([(0, 16, 100), (0, 16, 3)], Options(timeout_ms=[3.5, -1]))
    r = sim.requests()
    assert r["status"].tolist() == [CANCELLED, FINISHED]
    # Steps end at 1, 2, 3, 4 ms. The abort of 3.5 ms comes before the output of 4 ms, whose token
    # is dropped.
    assert r["emitted_tokens"].tolist() == [3, 3]
    assert r["cancelled_ps"].tolist() == [4 * MS, -1] and r["finish_ps"].tolist() == [-1, 3 * MS]
    assert len(schedule(sim)) == 4
    assert sim.counters()["free_blocks"][0] == 1000


def test_the_engine_learns_of_it_an_api_latency_later() -> None:
    r = run([(0, 16, 100)], Options(timeout_ms=[3.5], api_latency_ms=1)).requests()
    # The steps end at 2, 3, 4, 5 ms; the engine hears at 4.5 ms.
    assert r["cancelled_ps"].tolist() == [5 * MS] and r["emitted_tokens"].tolist() == [3]


def test_it_does_not_learn_of_it_before_it_has_seen_the_request() -> None:
    """A prompt is 10 ms on its way, the news that its client has gone 1 ms: an idle engine waits
    for the prompt.
    """
    options = Options(timeout_ms=[2, 2], api_latency_ms=1, api_latency_per_token_ms=0.1)
    sim = run([(0, 90, 5), (0, 40, 5)], options)
    r = sim.requests()
    assert r["queued_ps"].tolist() == r["cancelled_ps"].tolist() == [10 * MS, 5 * MS]
    assert r["status"].tolist() == [CANCELLED] * 2 and schedule(sim) == []


def test_enough_tokens_end_it_and_cost_one_more_with_a_second_batch_in_flight() -> None:
    for depth, steps in ((1, 2), (2, 3)):
        sim = run([(0, 16, 100)], Options(cancel_tokens=[2], depth=depth))
        r = sim.requests()
        assert r["status"].tolist() == [CANCELLED] and r["emitted_tokens"].tolist() == [2]
        assert len(schedule(sim)) == steps
    assert run([(0, 16, 2)], Options(cancel_tokens=[2])).requests()["status"].tolist() == [FINISHED]


def test_a_waiting_request_leaves_the_queue_and_lets_the_next_one_in() -> None:
    sim = run([(0, 16, 10), (0, 16, 10), (1, 16, 2)], Options(max_seqs=1, timeout_ms=[-1, 4.5, -1]))
    r, parts = sim.requests(), sim.blame()
    assert r["status"].tolist() == [FINISHED, CANCELLED, FINISHED]
    assert r["scheduled_ps"].tolist() == [0, -1, 10 * MS]
    assert (r["cancelled_ps"][1], parts["queue_ps"][1]) == (5 * MS, 5 * MS)


def test_what_is_over_does_not_move_the_clock() -> None:
    sim = run([(0, 16, 2)], Options(timeout_ms=[1000]))
    assert sim.requests()["status"].tolist() == [FINISHED] and sim.now_ps == 2 * MS


def test_the_later_calls_of_a_session_never_come() -> None:
    sim = run(
        [(0, 16, 10), (-1, 16, 10), (-1, 16, 10)],
        Options(timeout_ms=[-1, 3.5, -1], next_call=[1, 2, -1]),
    )
    r = sim.requests()
    assert r["status"].tolist() == [FINISHED, CANCELLED, CANCELLED]
    assert r["arrival_ps"].tolist() == [0, 10 * MS, -1] and sim.counters()["cancelled"][0] == 1


def test_a_preempted_request_can_be_dropped() -> None:
    """Two requests that need 6 and 3 of 8 blocks: the younger is preempted, then given up while it
    waits.
    """
    options = Options(blocks=9, block_size=4, timeout_ms=[-1, 15], caching=True)
    sim = run([(0, 4, 24), (0, 4, 24)], options)
    r = sim.requests()
    assert r["preemptions"].tolist() == [0, 1] and r["status"].tolist() == [FINISHED, CANCELLED]
    assert sim.counters()["recomputed_tokens"][0] == 0  # what it lost is never computed again
    assert sim.blame()["abandoned_ps"][1] > 0


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, "vllm_v1 prefill first"])
@settings(max_examples=50, deadline=None)
@given(
    requests=requests_strategy,
    sampled=options_strategy,
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    clients=st.sampled_from([0, 0, 1, 3]),
    api_latency_ms=st.sampled_from([0, 0.7, 5.0]),
    per_token_ms=st.sampled_from([0, 0, 0.3]),
)
@example(  # with srpt, steps before and behind a preemption give a token each for the same one
    requests=[*[(0, 1, 1)] * 5, (85, 52, 60), (86, 74, 23), (158, 3, 44)],
    sampled={
        "blocks": 120, "max_seqs": 12, "block_size": 1, "caching": True, "decode_only": False,
        "max_model_len": 100_000, "order": "SLACK", "extra": {"watermark_blocks": 0}, "budget": 16,
        "depth": 2, "stages": 3,
    },
    seed=0, share=0.1, clients=0, api_latency_ms=0, per_token_ms=0,
)  # fmt: skip
def test_nothing_is_lost_with_cancellations(
    scheduler: str,
    requests: list[tuple[int, int, int]],
    sampled: dict[str, Any],
    seed: int,
    share: float,
    clients: int,
    api_latency_ms: float,
    per_token_ms: float,
) -> None:
    rng = np.random.default_rng(seed)
    options = build_options(scheduler, sampled, requests, seed)
    n = len(requests)
    options.timeout_ms = [
        float(rng.exponential(300)) + 0.001 if rng.random() < share else -1 for _ in range(n)
    ]
    options.cancel_tokens = [
        int(rng.integers(1, 40)) if rng.random() < share else 0 for _ in range(n)
    ]
    options.clients, options.think_ms = clients, [float(rng.exponential(20)) for _ in range(n)]
    options.api_latency_ms, options.api_latency_per_token_ms = api_latency_ms, per_token_ms
    sim = run(requests, options)  # type: ignore[arg-type]
    r, c, parts = sim.requests(), sim.counters(), sim.blame()
    status = r["status"]
    assert np.isin(status, (FINISHED, REJECTED, CANCELLED)).all()
    for state, name in ((FINISHED, "finished"), (CANCELLED, "cancelled"), (REJECTED, "rejected")):
        assert (status == state).sum() == c[name][0]
    assert c["running"][0] == c["waiting"][0] == 0 and not c["idle_with_work"].any()
    assert c["free_blocks"][0] == options.blocks - 1 and c["pool_consistent"].all()
    assert c["recomputed_tokens"][0] >= 0 and (
        c["recomputed_tokens"][0] == 0 or c["preemptions"][0] > 0
    )
    assert token_balance(sim, [tokens for _, tokens, _ in requests]) == "ok"
    done, dropped = status == FINISHED, status == CANCELLED
    output = np.array([o for _, _, o in requests])
    assert (r["emitted_tokens"][done] == output[done]).all() and (
        r["emitted_tokens"][dropped] < output[dropped]
    ).all()
    assert ((r["cancelled_ps"] >= 0) == dropped).all() and ((r["finish_ps"] >= 0) == done).all()
    end = np.maximum(r["finish_ps"], r["cancelled_ps"])
    over = end >= 0
    assert (sum(parts.values())[over] == (end - r["arrival_ps"])[over]).all()
    assert all((part >= 0).all() for part in parts.values())
    assert not np.any(np.where(done, parts["abandoned_ps"], 0))
    steps = sim.steps()["tokens"]
    needed = (
        sum(i + o - 1 for (_, i, o), ok in zip(requests, done, strict=True) if ok)
        - r["cached_tokens"][done].sum()
    )
    assert steps.sum() >= needed + c["recomputed_tokens"][0]
    again = run(requests, options).requests()  # type: ignore[arg-type]
    assert all((again[name] == r[name]).all() for name in r)
