"""The scheduler tensorrt_llm: its rules by hand, and a twin in Python of the published scheduler.

Blocks have 4 tokens. A batch is (request, tokens, tokens computed before).
"""

from typing import Any

import pytest
from scheduling.tiny import Options, preempted, run, schedule
from tensorrt_llm_twin import drawn, same

MAX_UTILIZATION = {"tensorrt_llm_capacity_policy": 1}
EQUAL_PROGRESS = {"tensorrt_llm_chunking_policy": 1}


def tiny(usable: int = 100, budget: int = 100, **extra: Any) -> Options:
    more = {"caching": extra.pop("caching", False), "keys": extra.pop("keys", None)}
    return Options(
        "tensorrt_llm", blocks=usable + 1, block_size=4, budget=budget, extra=extra, **more
    )


def test_a_prompt_starts_when_the_blocks_of_its_longest_answer_are_free() -> None:
    """9, 5 and 2 tokens at most: of four blocks the first takes three in the end. The second lacks
    one of its two, and the third does not overtake it.
    """
    requests = [(0.0, 4, 5), (0.0, 4, 1), (0.0, 1, 1)]
    sim = run(requests, tiny(usable=4))
    assert schedule(sim) == [
        [(0, 4, 0)], [(0, 1, 4)], [(0, 1, 5)], [(0, 1, 6)], [(0, 1, 7)],
        [(1, 4, 0), (2, 1, 0)],
    ]  # fmt: skip
    assert preempted(sim) == []
    at_once = schedule(run(requests, tiny(usable=4, **MAX_UTILIZATION)))
    assert at_once[0] == [(0, 4, 0), (1, 4, 0), (2, 1, 0)]


def test_what_running_answers_may_still_take_is_reserved() -> None:
    """A second prompt of two blocks fits beside one that may take three of five, and no third."""
    sim = run([(0.0, 4, 6), (1.5, 4, 2), (1.5, 4, 2)], tiny(usable=5))
    assert schedule(sim)[2:5] == [
        [(1, 4, 0), (0, 1, 5)],
        [(0, 1, 6), (1, 1, 4)],
        [(2, 4, 0), (0, 1, 7)],
    ]
    assert preempted(sim) == []


GROWING = [(0.0, 4, 9), (0.0, 4, 9), (2.5, 4, 1)]


def test_max_utilization_pauses_the_last_that_has_started_and_computes_it_again() -> None:
    """Both have two of four blocks when the first needs a third. The request that has not started
    pauses nobody, and waits behind the paused one, although a block is free.
    """
    sim = run(GROWING, tiny(usable=4, **MAX_UTILIZATION))
    steps = schedule(sim)
    assert preempted(sim) == [(5, 1)]
    assert steps[4:10] == [
        [(0, 1, 7), (1, 1, 7)],
        [(0, 1, 8)], [(0, 1, 9)], [(0, 1, 10)], [(0, 1, 11)],
        [(1, 9, 0), (2, 4, 0)],
    ]  # fmt: skip
    assert steps[10:] == [[(1, 1, 9)], [(1, 1, 10)], [(1, 1, 11)]]
    reserved = run(GROWING, tiny(usable=4))
    assert preempted(reserved) == [] and schedule(reserved)[8] == [(0, 1, 11)]
    assert schedule(reserved)[9] == [(1, 4, 0)]


PROMPTS = [(0.0, 9, 2), (0.0, 9, 1), (0.0, 3, 1)]


def test_prompts_are_cut_first_come_first_served() -> None:
    """Of 14 tokens the first takes 9 and the second one block. A prompt's last chunk comes last."""
    assert schedule(run(PROMPTS, tiny(budget=14))) == [
        [(1, 4, 0), (0, 9, 0)],
        [(1, 5, 4), (2, 3, 0), (0, 1, 9)],
    ]


def test_prompts_advance_by_one_block_after_the_other() -> None:
    """4 + 4 + 3 of 14 tokens; no further block fits."""
    made = tiny(budget=14, **EQUAL_PROGRESS)
    assert schedule(run(PROMPTS, made)) == [
        [(0, 4, 0), (1, 4, 0), (2, 3, 0)],
        [(0, 5, 4), (1, 5, 4)],
        [(0, 1, 9)],
    ]
    short_first = [PROMPTS[2], PROMPTS[1], PROMPTS[1]]
    assert schedule(run(short_first, made))[0] == [(1, 4, 0), (2, 4, 0), (0, 3, 0)]


def test_whole_prompts_wait_for_a_step_that_holds_them() -> None:
    assert schedule(run(PROMPTS, tiny(budget=14, chunked_prefill=False))) == [
        [(0, 9, 0)],
        [(1, 9, 0), (2, 3, 0), (0, 1, 9)],
    ]


@pytest.mark.parametrize("policy", [{}, MAX_UTILIZATION])
def test_a_prompt_waits_for_a_block_that_another_one_computes(policy: dict[str, int]) -> None:
    """The second has the first one's blocks, of which it computes none; the third has others."""
    rows = [(0.0, 9, 2), (0.0, 9, 1), (0.0, 9, 1)]
    shared = {"caching": True, "keys": [[1, 2], [1, 2], [3, 4]], **policy}
    assert schedule(run(rows, tiny(**shared))) == [
        [(0, 9, 0), (2, 9, 0)],
        [(1, 1, 8), (0, 1, 9)],
    ]
    in_chunks = schedule(run(rows[:2], tiny(budget=4, **{**shared, "keys": [[1, 2]] * 2})))
    assert in_chunks == [[(0, 4, 0)], [(0, 4, 4)], [(0, 1, 8)], [(1, 1, 8), (0, 1, 9)]]
    alone = schedule(run(rows[:2], tiny(keys=[[1, 2]] * 2, **policy)))
    assert alone[0] == [(0, 9, 0), (1, 9, 0)]


def test_started_prompts_go_on_where_an_earlier_one_lacks_blocks() -> None:
    """The second waits for the first one's prefix, and meanwhile the third starts with the blocks
    that the second then lacks.
    """
    rows = [(0.0, 9, 1), (0.0, 9, 20), (0.0, 24, 1)]
    sim = run(rows, tiny(usable=12, budget=16, caching=True, keys=[[1, 2], [1, 2], []]))
    assert schedule(sim)[:4] == [[(2, 4, 0), (0, 9, 0)], [(2, 16, 4)], [(2, 4, 20)], [(1, 1, 8)]]
    assert sim.requests()["emitted_tokens"].tolist() == [1, 20, 1] and preempted(sim) == []


def test_where_a_pause_leaves_nobody_to_run_the_rules_are_asked_again() -> None:
    """The second lacks one of five blocks, so that the third is paused. By the published rules the
    second is then passed over, as if another one computed its next block.
    """
    rows = [(0.0, 9, 1), (0.0, 17, 1), (0.0, 12, 9)]
    shared = {"caching": True, "keys": [[1, 2], [1, 2], []]}
    sim = run(rows, tiny(usable=7, **shared, **MAX_UTILIZATION))
    assert schedule(sim)[:2] == [[(0, 9, 0), (2, 12, 0)], [(1, 9, 8)]]
    assert preempted(sim) == [(1, 2)]
    assert sim.requests()["emitted_tokens"].tolist() == [1, 1, 9]


def test_chunks_below_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="a step of 3 tokens holds none of 4"):
        run([(0.0, 4, 1)], tiny(budget=3))


def test_random_runs_are_those_of_the_published_rules() -> None:
    """Batches and pauses of 400 runs, step for step; some of them pause, cut and reuse."""
    pauses = cuts = reused = 0
    for seed in range(400):
        requests, twin = drawn(seed)
        sim = run(
            [(one.arrival_ms, one.prompt, one.answer) for one in requests], same(twin, requests)
        )
        twin.run(requests)
        assert schedule(sim) == twin.steps, seed
        assert preempted(sim) == twin.paused, seed
        pauses += len(twin.paused)
        cuts += sum(
            0 < before < requests[row].prompt for step in twin.steps for row, _, before in step
        )
        reused += int(sim.requests()["cached_tokens"].sum())
    assert pauses > 100 and cuts > 100 and reused > 1000
