"""Which round a rank in lock-step joins with what, as vLLM's engine loop has it."""

from typing import Any

import pytest

from llmsim import _native
from llmsim.scheduling.conformance.cases import (
    GroupSteps,
    group_spec,
    native_group,
    run_simulation,
    source,
    step_program,
)
from llmsim.scheduling.conformance.connectors import groups_of

STEP_S = 0.00503
"""About what a step of one token takes."""


def case_of(requests: list[tuple[float, int]], *, queue: int) -> dict[str, Any]:
    """Requests (arrival in s, tokens of the answer) of 8 tokens; even ones are those of rank 0."""
    return {
        "config": {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "block_size": 16,
            "max_model_len": 512,
            "num_gpu_blocks": 100,
            "async_scheduling": queue > 1,
        },
        "resolved": {
            "max_num_scheduled_tokens": 64,
            "max_concurrent_batches": queue,
            "num_lookahead_tokens": 0,
            "num_spec_tokens": 0,
            "draft_slots": 0,
            "reserve_full_isl": True,
            "watermark": 0.0,
            "engine_profile": "vllm-0.33",
        },
        "requests": [
            {"id": f"r{i}", "arrival": arrival, "segments": [[i, 8]], "output_len": tokens}
            for i, (arrival, tokens) in enumerate(requests)
        ],
    }


def ran(case: dict[str, Any], interval: int = 16, *, first: bool = False) -> GroupSteps:
    (alone,) = groups_of(case)

    def rank(group: Any, scheduler: Any, program: Any) -> Any:
        return native_group(group, scheduler, step_program(case, ranks=2))

    specs = []
    for index in (0, 1):

        def numbered(group: Any, scheduler: Any, program: Any, model: int = index) -> Any:
            group.model = model
            return rank(group, scheduler, program)

        specs.append(group_spec(case, index, alone, numbered))
    together = [_native.LockstepSpec([0, 1], interval, syncs_first=first)]
    config = _native.SimulationConfig(source(case, models=2), specs, lockstep=together)
    return run_simulation(case, config, (0, 1))


def steps_of(ran: GroupSteps, rank: int) -> list[tuple[list[str], int]]:
    """Whom each step with work runs, and when it ends."""
    return [
        ([name for name, _, _ in step["scheduled"]], step["end_ps"])
        for step in ran.groups[rank]
        if step["scheduled"]
    ]


def test_behind_its_last_output_a_rank_runs_a_dummy() -> None:
    """The engine of rank 0 has found nothing to run and waits for the output of r0's last step.
    What comes meanwhile runs behind the dummy that it then owes: with rank 1's fourth step.
    """
    case = case_of([(0.0, 2), (0.0, 30), (2.5 * STEP_S, 2)], queue=2)
    both = ran(case)
    mine, other = steps_of(both, 0), steps_of(both, 1)
    assert [names for names, _ in mine[:3]] == [["r0"], ["r0"], ["r2"]]
    later = [end_ps for _, end_ps in other]
    assert mine[1][1] == later[1]
    assert mine[2][1] == later[4]


def test_without_a_queue_of_batches_it_owes_none() -> None:
    case = case_of([(0.0, 2), (0.0, 30), (1.5 * STEP_S, 2)], queue=1)
    both = ran(case)
    later = [end_ps for _, end_ps in steps_of(both, 1)]
    assert [end_ps for _, end_ps in steps_of(both, 0)][:3] == later[:3]


@pytest.mark.parametrize("first", [True, False])
def test_a_wave_of_one_step_ends_where_the_ranks_agree(*, first: bool) -> None:
    """r0 has its only token in the first round. Where the ranks agree behind it, nobody runs
    dummies when r1 comes; else r1 waits for the one in flight.
    """
    arrival_s = 1.5 * STEP_S
    both = ran(case_of([(0.0, 1), (arrival_s, 1)], queue=1), first=first)
    ((_, first_end),) = steps_of(both, 0)
    (step,) = [step for step in both.groups[1] if step["scheduled"]]
    arrival_ps = round(arrival_s * 1e6) * 10**6
    assert first_end < arrival_ps
    if first:
        assert step["schedule_ps"] == arrival_ps
    else:
        assert step["schedule_ps"] > arrival_ps + STEP_S * 1e12 / 3
