"""Micro-batches of SGLang's scheduler with pipeline stages: they take turns and keep apart."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import Options, run, schedule
from token_balance import assert_nothing_is_lost


def options(stages: int, **fields: Any) -> Options:
    """A group of so many stages, with a micro-batch for each."""
    extra = {"stages": stages, "micro_batches": stages, **fields.pop("extra", {})}
    return Options(
        "sglang", block_size=fields.pop("block_size", 1), depth=stages, extra=extra, **fields
    )


def test_each_micro_batch_decodes_its_own_requests() -> None:
    """Two requests that run at most, one in each of two micro-batches."""
    sim = run([(0, 10, 4), (0, 10, 4)], options(2, max_seqs=2))
    turns = [[request for request, _, _ in step] for step in schedule(sim)]
    assert turns == [[0], [1]] * 4


def test_requests_of_one_step_stay_together() -> None:
    sim = run([(0, 10, 4), (0, 10, 4)], options(2, max_seqs=4))
    assert [[request for request, _, _ in step] for step in schedule(sim)] == [[0, 1]] * 4


def test_a_prompt_that_was_cut_goes_on_in_the_next_micro_batch() -> None:
    """Its chunks need no turn of their own batch between them, and it decodes where it ends."""
    sim = run([(0, 500, 3)], options(2, max_seqs=2, budget=256))
    starts = [before for ((_, _, before),) in schedule(sim)]
    assert starts == [0, 256, 500, 501]
    times = sim.schedule(0)["time_ps"]
    assert times[0] == times[1] < times[2]


@pytest.mark.parametrize("stages", [2, 3])
def test_a_micro_batch_holds_its_share_of_the_running_requests(stages: int) -> None:
    sim = run([(0, 10, 30)] * 12, options(stages, max_seqs=6))
    assert max(len(step) for step in schedule(sim)) == 6 // stages


@settings(max_examples=60)
@given(
    requests_strategy,
    st.sampled_from([2, 3]),
    st.sampled_from([1, 16]),
    st.integers(400, 900),
    st.booleans(),
    st.booleans(),
    st.integers(3, 9),
)
def test_nothing_is_lost(
    requests: list[tuple[int, int, int]],
    stages: int,
    page: int,
    tokens: int,
    caching: bool,
    mixed: bool,
    max_seqs: int,
) -> None:
    asked = options(
        stages,
        block_size=page,
        blocks=tokens // page + 1,
        caching=caching,
        max_seqs=max_seqs,
        budget=64,
        extra={"sglang_mixed_chunk": int(mixed), "sglang_new_tokens": 8},
    )
    sim = run(requests, asked)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, asked.blocks, requests)
