"""A prefill group of SGLang: one token of an answer is counted on, memory is free when it has been
sent, and requests wait for a buffer.
"""

from typing import Any

import pytest
from pd import MS, STEP, Cluster, run, schedule


def cluster(blocks: int = 1001, **fields: Any) -> Cluster:
    """Blocks of one token, and a prompt's KV takes a second and more."""
    named = {"latency_ps": 1000 * MS, "max_seqs": 4, "budget": 256} | fields
    return Cluster([blocks], [50_000], block_size=1, scheduler="sglang", **named)


def starts(sim: Any) -> dict[int, int]:
    """When the prefill group first computed each request."""
    times = sim.schedule(0)["time_ps"].tolist()
    steps = zip(schedule(sim, 0), times, strict=True)
    return {one: at for step, at in reversed(list(steps)) for one, _, _ in step}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_waits_until_another_has_been_sent(depth: int) -> None:
    """100 tokens each in a cache of 150: one at a time, a second of sending between them."""
    began = starts(run([(0, 100, 50), (0, 100, 50)], cluster(151, depth=depth)))
    assert began[1] - began[0] > 1000 * MS


def test_answers_take_no_memory_there() -> None:
    """Two prompts of 60 tokens, whose answers of 500 tokens the cache would not hold."""
    began = starts(run([(0, 60, 500), (0, 60, 500)], cluster(151)))
    assert began[0] == began[1]


def test_what_has_landed_is_heard_of_with_the_next_output() -> None:
    """The third prompt needs the memory of the first, which has been sent while the long prompt of
    the second was computed step by step: it starts at the end of a step.
    """
    requests = [(0, 100, 5), (0, 600, 5), (0, 100, 5)]
    sim = run(requests, cluster(751, latency_ps=2 * STEP, budget=64))
    assert starts(sim)[2] in sim.schedule(0)["end_ps"].tolist()
    assert starts(sim)[2] > starts(sim)[0] + 2 * STEP


def test_buffers_are_given_back() -> None:
    """Two requests have a buffer, eight want one, and all are answered in order of arrival."""
    sim = run([(0, 50, 5)] * 8, cluster(max_seqs=1, latency_ps=MS))
    began = starts(sim)
    assert sorted(began, key=lambda one: began[one]) == list(range(8))
    assert sim.requests()["status"].tolist() == [3] * 8


@pytest.mark.parametrize("depth", [1, 2])
def test_clients_that_give_up_leave_nothing_behind(depth: int) -> None:
    requests = [(10 * i, 40 + 13 * i, 20) for i in range(12)]
    for timeout_ms in (1, 7, 30, 900, 1100):
        timeouts = [timeout_ms * MS if i % 2 else -1 for i in range(12)]
        sim = run(requests, cluster(401, depth=depth), timeouts=timeouts)
        counters = sim.counters()
        assert counters["pool_consistent"].all() and not counters["idle_with_work"].any()
        assert counters["free_blocks"][0] == 400
