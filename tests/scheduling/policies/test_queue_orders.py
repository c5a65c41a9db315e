"""The orders of the waiting queue: who starts next when one place comes free."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.tiny import Options, order_of_first_tokens, preempted, run, schedule

ONE_PLACE = Options(max_seqs=1)


def test_first_come_first_served() -> None:
    assert order_of_first_tokens(run([(0, 9, 4), (1, 50, 1), (2, 5, 1)], ONE_PLACE)) == [0, 1, 2]


def test_priority_then_arrival_a_lower_number_first() -> None:
    requests = [(0, 9, 5), (1, 5, 1), (2, 5, 1), (3, 5, 1), (4, 5, 1)]
    sim = run(requests, replace(ONE_PLACE, order="PRIORITY", priority=[0, 7, -1, 7, -2]))
    assert order_of_first_tokens(sim) == [0, 4, 2, 1, 3]


def test_shortest_job_first_knows_prompts_not_answers() -> None:
    requests = [(0, 9, 4), (1, 50, 1), (2, 5, 90), (3, 50, 1), (3, 6, 1)]
    assert order_of_first_tokens(run(requests, replace(ONE_PLACE, order="SHORTEST"))) == [
        0,
        2,
        4,
        1,
        3,
    ]


@settings(max_examples=30, deadline=None)
@given(
    answers=st.lists(st.integers(1, 30), min_size=4, max_size=4),
    order=st.sampled_from(["SHORTEST", "SLACK"]),
)
def test_the_order_does_not_depend_on_the_answers(answers: list[int], order: str) -> None:
    options = replace(ONE_PLACE, order=order, ttft_target_ms=1000, prefill_ms_per_token=0.1)
    requests = [
        (0, 9, 40),
        *(
            (float(i + 1), p, a)
            for i, (p, a) in enumerate(zip((50, 5, 20, 7), answers, strict=True))
        ),
    ]
    expected = {"SHORTEST": [0, 2, 4, 3, 1], "SLACK": [0, 1, 3, 2, 4]}[order]
    assert order_of_first_tokens(run(requests, options)) == expected


def test_least_slack_first_and_the_hopeless_last() -> None:
    # latest starts for a target of 10 ms and 0.1 ms per prompt token: 9.5, 5 and 8 ms; the place
    # comes free at 8 ms
    requests = [(0, 1, 8), (0.5, 10, 1), (1, 60, 1), (2, 40, 1)]
    options = replace(ONE_PLACE, order="SLACK", ttft_target_ms=10, prefill_ms_per_token=0.1)
    assert order_of_first_tokens(run(requests, options)) == [0, 3, 1, 2]
    assert order_of_first_tokens(run(requests, replace(options, ttft_target_ms=1000))) == [
        0,
        2,
        3,
        1,
    ]
    assert order_of_first_tokens(run(requests, replace(options, ttft_target_ms=1))) == [
        0,
        1,
        2,
        3,
    ]  # all late: oldest


@pytest.mark.parametrize("order", ["FCFS", "SHORTEST", "SLACK"])
def test_a_preempted_request_goes_in_front(order: str) -> None:
    options = Options(
        order=order,
        max_seqs=2,
        block_size=4,
        blocks=5,
        ttft_target_ms=100,
        prefill_ms_per_token=0.1,
    )
    sim = run([(0, 4, 9), (0, 4, 9), (4, 1, 1)], options)
    assert preempted(sim) == [(5, 1)]
    later = [request for step in schedule(sim)[6:] for request, _, _ in step]
    assert later.index(1) < later.index(2)
