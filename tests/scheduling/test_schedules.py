"""What distinguishes each scheduler, as exact steps on tiny traces: (request, tokens, computed
before) per step.

A step takes 1 ms, so an arrival between two milliseconds is seen by the step at the next one.
"""

from dataclasses import replace

import pytest
from scheduling.tiny import SCHEDULERS, Options, free_blocks, preempted, run, schedule

# A decode runs when a long prompt arrives.
INTERRUPTED = [(0.0, 4, 5), (1.5, 12, 2)]


def test_vllm_mixes_prompts_with_decodes_running_first() -> None:
    sim = run(INTERRUPTED, Options("vllm_v1", budget=8))
    assert schedule(sim)[:4] == [
        [(0, 4, 0)],
        [(0, 1, 4)],
        [(0, 1, 5), (1, 7, 0)],
        [(0, 1, 6), (1, 5, 7)],
    ]


def test_prefill_first_runs_prompts_alone() -> None:
    sim = run(INTERRUPTED, Options("vllm_v1", budget=8, extra={"prefill_first": True}))
    assert schedule(sim) == [
        [(0, 4, 0)], [(0, 1, 4)],
        [(1, 8, 0)], [(1, 4, 8)],  # the decode stalls
        [(0, 1, 5), (1, 1, 12)], [(0, 1, 6)], [(0, 1, 7)],
    ]  # fmt: skip


def test_sarathi_runs_decodes_first_and_takes_a_whole_prompts_blocks_at_its_start() -> None:
    options = Options("sarathi", budget=8, block_size=4, blocks=101)
    sim = run(INTERRUPTED, options)
    assert schedule(sim)[2:5] == [
        [(0, 1, 5), (1, 7, 0)],
        [(0, 1, 6), (1, 5, 7)],
        [(0, 1, 7), (1, 1, 12)],
    ]
    # 2 blocks of the decode and 3 of a prompt of which 7 tokens have run; vLLM takes 2 for those
    assert free_blocks(sim)[2] == 100 - 2 - 3
    assert free_blocks(run(INTERRUPTED, replace(options, scheduler="vllm_v1")))[2] == 100 - 2 - 2


def test_sarathi_shares_the_chunk_among_prompts_and_keeps_its_watermark() -> None:
    requests = [(0.0, 10, 4), (0.0, 12, 1), (0.0, 4, 1)]
    options = Options("sarathi", budget=8, block_size=4, blocks=9)
    assert schedule(run(requests, options))[:4] == [
        [(0, 8, 0)],
        [(0, 2, 8), (1, 6, 0)],
        [(0, 1, 10), (1, 6, 6), (2, 1, 0)],
        [(0, 1, 11), (2, 3, 1)],
    ]
    marked = schedule(run(requests, replace(options, extra={"watermark_blocks": 3})))
    # 8 blocks: the first prompt takes 3, the second would leave 2 of the 3 that must stay free, and
    # nobody overtakes it
    assert marked == [
        [(0, 8, 0)],
        [(0, 2, 8)],
        [(0, 1, 10)],
        [(0, 1, 11)],
        [(0, 1, 12)],
        [(1, 8, 0)],
        [(1, 4, 8), (2, 4, 0)],
    ]


def test_sarathi_restarts_the_youngest_and_starts_nothing_in_that_step() -> None:
    # 4 blocks: both grow into a second block, then request 0 needs a third
    sim = run(
        [(0.0, 4, 9), (0.0, 4, 9), (4.5, 1, 1)],
        Options("sarathi", budget=8, block_size=4, blocks=5),
    )
    steps = schedule(sim)
    assert preempted(sim) == [(5, 1)]
    assert steps[5] == [(0, 1, 8)]  # one block is free again, yet request 2 does not start
    assert steps[4] == [(0, 1, 7), (1, 1, 7)]
    assert steps[9] == [
        (1, 8, 0)
    ]  # computes 4 + 5 tokens again, in chunks, when request 0 has left


# Two places of 40 tokens; request 1 leaves first.
SHORT_AND_LONG = [(0.0, 8, 3), (0.0, 8, 2), (0.0, 30, 2)]
TWO_PLACES = {"budget": 64, "block_size": 4, "blocks": 21, "max_model_len": 40}


def test_orca_reserves_the_longest_sequence_and_refills_every_iteration() -> None:
    sim = run(SHORT_AND_LONG, Options("orca", **TWO_PLACES))
    assert schedule(sim) == [
        [(0, 8, 0), (1, 8, 0)], [(0, 1, 8), (1, 1, 8)],
        [(0, 1, 9), (2, 30, 0)],  # the whole prompt beside a decode, in the place that came free
        [(2, 1, 30)],
    ]  # fmt: skip
    assert free_blocks(sim) == [0, 0, 0, 10]
    paged = schedule(run(SHORT_AND_LONG, Options("vllm_v1", **TWO_PLACES)))
    assert paged[0] == [(0, 8, 0), (1, 8, 0), (2, 30, 0)]


def test_static_batching_runs_a_batch_to_completion() -> None:
    sim = run(SHORT_AND_LONG, Options("static", **TWO_PLACES))
    assert schedule(sim) == [
        [(0, 8, 0), (1, 8, 0)], [(0, 1, 8), (1, 1, 8)],
        [(0, 1, 9)],  # one place is empty
        [(2, 30, 0)], [(2, 1, 30)],
    ]  # fmt: skip
    assert free_blocks(sim) == [
        0,
        0,
        0,
        10,
        10,
    ]  # a finished request's memory is kept for its batch


@pytest.mark.parametrize("scheduler", ["orca", "static"])
def test_a_cache_smaller_than_the_longest_sequence_holds_one_at_a_time(scheduler: str) -> None:
    options = Options(scheduler, budget=64, block_size=4, blocks=6, max_model_len=40)
    assert schedule(run([(0.0, 4, 2), (0.0, 4, 1)], options)) == [
        [(0, 4, 0)],
        [(0, 1, 4)],
        [(1, 4, 0)],
    ]


def test_whole_prompt_schedulers_start_only_prompts_that_the_budget_holds_together() -> None:
    for scheduler in ("orca", "static"):
        steps = schedule(run([(0.0, 40, 1), (0.0, 40, 1)], Options(scheduler, budget=64)))
        assert steps == [[(0, 40, 0)], [(1, 40, 0)]]


def test_sglang_runs_prompts_before_decodes_and_cuts_one_at_a_time() -> None:
    requests = [*INTERRUPTED, (1.6, 12, 2)]
    options = Options("sglang", budget=8, blocks=10_000, block_size=1)
    assert schedule(run(requests, options)) == [
        [(0, 4, 0)], [(0, 1, 4)],
        [(1, 8, 0)], [(1, 4, 8), (2, 4, 0)], [(2, 8, 4)],
        [(0, 1, 5), (1, 1, 12), (2, 1, 12)], [(0, 1, 6)], [(0, 1, 7)],
    ]  # fmt: skip
    # A step ahead: the one after the arrival was formed before it.
    assert schedule(run(requests, replace(options, depth=2))) == [
        [(0, 4, 0)], [(0, 1, 4)], [(0, 1, 5)],
        [(1, 8, 0)], [(1, 4, 8), (2, 4, 0)], [(2, 8, 4)],
        [(0, 1, 6), (1, 1, 12), (2, 1, 12)], [(0, 1, 7)],
    ]  # fmt: skip


def test_sglang_gives_the_last_token_of_its_budget_to_the_next_prompt() -> None:
    sim = run([(0.0, 7, 1), (0.0, 5, 1)], Options("sglang", budget=8, blocks=10_000, block_size=1))
    assert schedule(sim) == [[(0, 7, 0), (1, 1, 0)], [(1, 4, 1)]]


def test_sglang_admits_by_what_the_running_may_still_write() -> None:
    requests = [(0.0, 4, 4), (0.0, 8, 1)]
    small = Options("sglang", block_size=4, blocks=11)
    assert schedule(run(requests, replace(small, extra={"sglang_new_tokens": 4})))[0] == [
        (0, 4, 0),
        (1, 8, 0),
    ]
    # 40 tokens of cache: 8 + 20 + a page do not go beside 4 and what request 0 may write, whatever
    # it will
    unknown = {"sglang_new_tokens": 20, "output_length_known": False}
    careful = schedule(run(requests, replace(small, extra=unknown)))
    assert careful == [[(0, 4, 0)], [(0, 1, 4)], [(0, 1, 5)], [(0, 1, 6)], [(1, 8, 0)]]


@pytest.mark.parametrize("clip", [4, 20, 4096])
def test_sglang_counts_on_no_more_than_a_request_may_write(clip: int) -> None:
    """A clip beyond the requests' own limits is no reason to wait: as with a clip of the longest of
    them.
    """
    requests = [(0.0, 4, 4), (0.0, 8, 1)]
    options = Options("sglang", block_size=4, blocks=11, extra={"sglang_new_tokens": clip})
    assert schedule(run(requests, options))[0] == [(0, 4, 0), (1, 8, 0)]


def test_sglang_counts_on_no_more_than_the_clip_of_a_long_answer() -> None:
    """Of 40 tokens of cache request 0 may fill all but 8: request 1 waits for it, unless the clip
    hides that.
    """
    requests = [(0.0, 4, 28), (0.0, 8, 1)]
    for clip, together in ((4, True), (4096, False)):
        options = Options(
            "sglang", block_size=4, blocks=11, caching=True, extra={"sglang_new_tokens": clip}
        )
        assert (len(schedule(run(requests, options))[0]) == 2) == together


def test_sglang_retracts_the_longest_prompt_of_the_shortest_answers_to_the_end_of_the_queue() -> (
    None
):
    # 7 blocks; both need one more at the tenth step, and none is free
    requests = [(0.0, 8, 12), (0.0, 4, 12), (4.5, 4, 1)]
    options = Options(
        "sglang",
        block_size=4,
        blocks=8,
        max_seqs=2,
        caching=True,
        extra={"sglang_new_tokens": 1},
    )
    sim = run(requests, options)
    assert preempted(sim) == [(9, 0)]
    steps = schedule(sim)
    assert steps[9] == [(1, 1, 12)]
    assert steps[10] == [(2, 4, 0)]  # in front of the retracted one
    again = next(step for step in steps[10:] if any(request == 0 for request, _, _ in step))
    assert again == [(0, 17, 0)]
    assert preempted(run(requests, replace(options, scheduler="vllm_v1", extra={})))[0] == (
        9,
        1,
    )  # vLLM: the youngest


def test_mlfq_demotes_by_quantum_and_pauses_without_losing_kv() -> None:
    options = Options("mlfq", max_seqs=1, extra={"mlfq_tokens_per_iteration": 8})
    sim = run([(0.0, 8, 8), (0.5, 8, 3)], options)
    assert schedule(sim) == [
        [(0, 8, 0)],  # uses up the first level's one iteration
        [(1, 8, 0)],  # a new request goes first, then both are in the second level
        [(0, 1, 8)], [(0, 1, 9)],  # of two iterations
        [(1, 1, 8)], [(1, 1, 9)],
        [(0, 1, 10)], [(0, 1, 11)], [(0, 1, 12)], [(0, 1, 13)], [(0, 1, 14)],
    ]  # fmt: skip
    assert preempted(sim) == []


def test_mlfq_skips_the_levels_that_a_prompt_would_only_be_demoted_from() -> None:
    options = Options("mlfq", max_seqs=1, extra={"mlfq_tokens_per_iteration": 8})
    # 32 tokens are four iterations: third level. The short one has its first two levels to itself.
    sim = run([(0.0, 32, 1), (0.0, 8, 5)], options)
    assert schedule(sim) == [
        [(1, 8, 0)],
        [(1, 1, 8)],
        [(1, 1, 9)],
        [(0, 32, 0)],
        [(1, 1, 10)],
        [(1, 1, 11)],
    ]


def test_mlfq_promotes_who_waits_too_long() -> None:
    short = [(float(i), 8, 1) for i in range(12)]
    requests = sorted([(0.0, 32, 1), *short])
    long = requests.index((0.0, 32, 1))

    def started(starvation_ms: int) -> int:
        extra = {"mlfq_tokens_per_iteration": 8, "mlfq_starvation_ps": starvation_ms * 10**9}
        steps = schedule(run(requests, Options("mlfq", max_seqs=1, extra=extra)))
        return next(i for i, step in enumerate(steps) if step[0][0] == long)

    assert started(1000) == 12  # every short one first
    assert (
        started(5) == 6
    )  # promoted at 5 ms, behind the one that had come to the first level before


def test_mlfq_drops_the_lowest_when_kv_is_short() -> None:
    # 4 blocks of 4 tokens: the newcomer's 8 do not fit beside 9 of the first
    options = Options(
        "mlfq", max_seqs=1, block_size=4, blocks=5, extra={"mlfq_tokens_per_iteration": 8}
    )
    sim = run([(0.0, 8, 5), (1.5, 8, 1)], options)
    steps = schedule(sim)
    assert steps[:4] == [[(0, 8, 0)], [(0, 1, 8)], [(1, 8, 0)], [(0, 10, 0)]]
    assert preempted(sim) == [(2, 0)]


def test_mlfq_drops_nobody_in_vain() -> None:
    """The third needs 6 blocks; 2 are free and the lowest holds 3: it stays, as the second's 5 are
    not to be had.
    """
    options = Options(
        "mlfq", max_seqs=3, block_size=4, blocks=11, extra={"mlfq_tokens_per_iteration": 8}
    )
    sim = run([(0.0, 5, 20), (6.5, 20, 1), (6.6, 24, 1)], options)
    steps = schedule(sim)
    assert steps[6:9] == [[(0, 1, 10)], [(1, 20, 0)], [(2, 24, 0), (0, 1, 11)]]
    assert preempted(sim) == []


def test_srpt_serves_the_request_with_the_fewest_tokens_left() -> None:
    """A long prompt with a short answer goes before a short prompt with a long one."""
    requests = [(0.0, 4, 6), (0.5, 6, 30), (0.6, 9, 2)]
    sim = run(requests, Options("srpt", max_seqs=1))
    order = [request for step in schedule(sim) for request, _, _ in step]
    assert order == [0] * 6 + [2] * 2 + [1] * 30
    # Two places: the newcomer, which has 11 tokens left, takes the budget before the one with 33
    both = schedule(run([(0.0, 4, 30), (0.5, 9, 2)], Options("srpt", max_seqs=2, budget=9)))
    assert both[:3] == [[(0, 4, 0)], [(0, 1, 4), (1, 8, 0)], [(1, 1, 8), (0, 1, 5)]]


def test_srpt_preempts_the_request_with_the_most_tokens_left() -> None:
    requests = [(0.0, 4, 12), (0.0, 4, 9)]
    options = Options("srpt", max_seqs=2, block_size=4, blocks=5)
    assert preempted(run(requests, options))[0] == (5, 0)
    assert preempted(run(requests, replace(options, scheduler="vllm_v1")))[0] == (5, 1)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_decode_only_runs_begin_with_a_decode_on_the_whole_prompt(scheduler: str) -> None:
    options = Options(scheduler, block_size=4, blocks=101, max_model_len=40, decode_only=True)
    requests = [(0.0, 20, 3), (0.5, 9, 2)]
    sim = run(requests, options)
    joined = [[(0, 1, 19)], [(0, 1, 20), (1, 1, 8)], [(0, 1, 21), (1, 1, 9)]]
    apart = [[(0, 1, 19)], [(0, 1, 20)], [(0, 1, 21)], [(1, 1, 8)], [(1, 1, 9)]]
    newest_first = [[(0, 1, 19)], [(1, 1, 8), (0, 1, 20)], [(0, 1, 21), (1, 1, 9)]]
    assert schedule(sim) == {
        "static": apart,
        "mlfq": newest_first,
        "tensorrt_llm": newest_first,
    }.get(scheduler, joined)
    assert free_blocks(sim)[0] == 100 - (10 if scheduler in ("orca", "static") else 5)
    assert sim.requests()["cached_tokens"].tolist() == [19, 8]
    assert sim.requests()["first_token_ps"][0] == 10**9  # one step after arrival


def test_a_decode_only_request_that_loses_its_kv_computes_its_prompt() -> None:
    options = Options("vllm_v1", block_size=4, blocks=5, max_seqs=2, decode_only=True)
    sim = run([(0.0, 4, 9), (0.0, 4, 9)], options)
    assert preempted(sim)[0][1] == 1
    assert [step for step in schedule(sim) if any(tokens > 1 for _, tokens, _ in step)] == [
        [(1, 9, 0)]
    ]


TWO_BATCHES = [(0.0, 4, 3), (0.0, 4, 3)]


def test_two_stages_take_turns_and_one_batch_is_scheduled_ahead() -> None:
    """vLLM's Model Runner V2: a sequence decodes in every second call; without that it would join
    the second batch.
    """
    turns = {"async_scheduling": True, "decode_interval": 2}
    sim = run(TWO_BATCHES, Options("vllm_v1", budget=4, depth=3, extra=turns))
    assert schedule(sim) == [
        [(0, 4, 0)],
        [(1, 4, 0)],
        [(0, 1, 4)],
        [(1, 1, 4)],
        [(0, 1, 5)],
        [(1, 1, 5)],
    ]
    assert sim.schedule(0)["time_ps"].tolist()[:4] == [0, 0, 0, 10**9]
    together = run(
        TWO_BATCHES, Options("vllm_v1", budget=4, depth=3, extra={**turns, "decode_interval": 1})
    )
    assert schedule(together)[:3] == [[(0, 4, 0)], [(0, 1, 4), (1, 3, 0)], [(0, 1, 5), (1, 1, 3)]]


def test_alone_a_sequence_waits_for_its_turn_and_nothing_stands_still() -> None:
    extra = {"async_scheduling": True, "decode_interval": 4}
    sim = run([(0.0, 4, 3)], Options("vllm_v1", depth=5, extra=extra))
    assert schedule(sim) == [[(0, 4, 0)], [(0, 1, 4)], [(0, 1, 5)]]
    assert sim.requests()["finish_ps"][0] == 3 * 10**9


def test_sarathi_in_stages_has_a_request_in_one_batch_at_a_time() -> None:
    sim = run([(0.0, 8, 1)], Options("sarathi", budget=4, depth=2))
    assert sim.schedule(0)["time_ps"].tolist() == [
        0,
        10**9,
    ]  # the second chunk behind the first one's end
    assert run([(0.0, 8, 1)], Options("vllm_v1", budget=4, depth=2)).schedule(0)[
        "time_ps"
    ].tolist() == [0, 0]
    sim = run(TWO_BATCHES, Options("sarathi", budget=4, depth=2))
    assert schedule(sim) == [
        [(0, 4, 0)],
        [(1, 4, 0)],
        [(0, 1, 4)],
        [(1, 1, 4)],
        [(0, 1, 5)],
        [(1, 1, 5)],
    ]


def test_sarathi_in_stages_restarts_who_is_in_no_batch() -> None:
    # 3 blocks: request 0 has taken its second and runs when request 1 needs one
    sim = run(
        [(0.0, 4, 6), (0.0, 4, 2)], Options("sarathi", budget=4, block_size=4, blocks=4, depth=2)
    )
    assert preempted(sim) == [(3, 1)]
    younger_runs = run(
        [(0.0, 4, 2), (0.0, 4, 6)], Options("sarathi", budget=4, block_size=4, blocks=4, depth=2)
    )
    assert preempted(younger_runs) != [(2, 1)]


def test_orca_in_stages_has_a_request_in_one_batch_at_a_time() -> None:
    sim = run(TWO_BATCHES, Options("orca", budget=40, max_seqs=2, max_model_len=40, depth=2))
    assert schedule(sim) == [[(0, 4, 0), (1, 4, 0)], [(0, 1, 4), (1, 1, 4)], [(0, 1, 5), (1, 1, 5)]]
    apart = run(
        [(0.0, 30, 3), (0.0, 30, 3)],
        Options("orca", budget=40, max_seqs=2, max_model_len=40, depth=2),
    )
    assert schedule(apart)[:4] == [[(0, 30, 0)], [(1, 30, 0)], [(0, 1, 30)], [(1, 1, 30)]]
