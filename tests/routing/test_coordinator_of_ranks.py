"""What vLLM's balancer hears of ranks in lock-step, and of clients that give up."""

import pytest
from routing.routing_runs import MS, Run

BY_REPORTS = {"by_requests_in_flight": False, "rotates": False}
"""Scores of 4 * waiting + running as they were reported, at ties the first rank."""


@pytest.mark.parametrize(
    ("lockstep", "arrival_ms", "group"),
    [(True, 101, 1), (True, 205, 0), (False, 101, 0), (False, 205, 0)],
)
def test_a_report_is_of_one_iteration(lockstep: bool, arrival_ms: int, group: int) -> None:
    """Group 0 has two requests from 40 ms on, group 1 from 60 ms on. The report of 100 ms leaves
    out what has come in the last iteration with news, as ranks in lock-step tell it; the one of
    200 ms has it.
    """
    requests = [(at * MS, 16, 600) for at in (0, 0, 40, 60)] + [(arrival_ms * MS, 16, 1)]
    run = Run(requests, lockstep=lockstep, balancer=BY_REPORTS)
    assert run.routes("VLLM_DP") == [0, 1, 0, 1, group]


@pytest.mark.parametrize(("quiet_ms", "group"), [(0, 0), (50, 1)])
def test_the_coordinator_waits_for_all_ranks(quiet_ms: int, group: int) -> None:
    """Group 0 ends its requests at 5.36 ms, which is reported at 6.36, or 50 ms behind."""
    requests = [(0, 16, 1), (0, 16, 60), (0, 16, 1), (20 * MS, 16, 1)]
    run = Run(requests, lockstep=True, balancer=BY_REPORTS | {"quiet_ps": quiet_ms * MS})
    assert run.routes("VLLM_DP:period_ms=6") == [0, 1, 0, group]


@pytest.mark.parametrize(("arrival_ms", "group"), [(9, 1), (16, 0)])
def test_a_request_counts_until_an_output_says_that_it_has_left(
    arrival_ms: int, group: int
) -> None:
    """The client of the third request gives up at 7.5 ms, of which the report of 6.18 ms knows
    nothing. Group 0 hears of both behind its second step, and says so at 15.5 ms, with its third.
    """
    requests = [(0, 16, 60), (0, 16, 60), (55 * MS // 10, 16, 60), (arrival_ms * MS, 16, 1)]
    run = Run(requests, timeouts=[-1, -1, 2 * MS, -1], balancer={"rotates": False})
    assert run.routes("VLLM_DP:period_ms=6") == [0, 1, 0, group]


@pytest.mark.parametrize(("late_ps", "group"), [(0, 1), (1, 0)])
def test_the_coordinator_hears_when_a_wave_ends(late_ps: int, group: int) -> None:
    """Three requests end with the third round, at 15.48 ms, and the ranks agree behind the 16th, at
    80.61. Reports come so much into a millisecond: of the iteration before at 100.61 ms, and of the
    ends at 200.61.
    """
    requests = [(0, 16, 3)] * 3 + [(200_610 * MS // 1000 + late_ps, 16, 1)]
    run = Run(requests, lockstep=True, balancer=BY_REPORTS)
    assert run.routes("VLLM_DP") == [0, 1, 0, group]
