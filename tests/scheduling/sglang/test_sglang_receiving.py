"""SGLang's `scheduler_recv_interval`: its scheduler looks for new requests every few steps of
decodes, behind a step of prompts, and when nothing runs.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import Options, run, schedule
from token_balance import assert_nothing_is_lost

import llmsim


def options(interval: int, **fields: Any) -> Options:
    extra = {"sglang_recv_interval": interval}
    return Options("sglang", block_size=1, blocks=10_000, extra=extra, **fields)


def prompts(sim: Any) -> list[int]:
    """The steps that compute the prompts of the second request and later ones."""
    return [
        number
        for number, step in enumerate(schedule(sim))
        if any(request > 0 and before == 0 for request, _, before in step)
    ]


def late(interval: int) -> list[int]:
    """Request 0 decodes; request 1 comes within its fourth step."""
    return prompts(run([(0, 10, 40), (3.5, 10, 2)], options(interval)))


def test_a_request_waits_for_the_next_look() -> None:
    at_once = late(1)
    assert [late(interval)[0] for interval in (5, 10, 20)] == [6, 11, 21]
    assert at_once[0] <= 5


def test_a_step_of_prompts_looks_behind_it() -> None:
    """Request 2 comes while the prompt of request 1 is computed."""
    requests = [(0, 10, 60), (3.5, 10, 2), (11.5, 10, 2)]
    assert prompts(run(requests, options(10))) == [11, 12]


def test_a_server_that_is_idle_looks_at_once() -> None:
    sim = run([(0, 10, 2), (50, 10, 2)], options(1000))
    times = sim.schedule(0)["time_ps"]
    assert len(schedule(sim)) == 4
    assert times[2] == run([(0, 10, 2), (50, 10, 2)], options(1)).schedule(0)["time_ps"][2]


@pytest.mark.parametrize(("interval", "leaves_ms"), [(1, 4), (10, 11), (20, 21)])
def test_who_gives_up_waits_until_the_next_look(interval: int, leaves_ms: int) -> None:
    """Of two places one is taken by a request that decodes, and two wait for the other one."""
    requests = [(0, 10, 60), (0, 10, 60), (0, 10, 9), (0, 10, 9)]
    sim = run(requests, options(interval, max_seqs=2, timeout_ms=[-1, -1, 3.2, -1]))
    gauges = sim.schedule(0)
    waiting = dict(zip(gauges["time_ps"].tolist(), gauges["waiting"].tolist(), strict=True))
    assert next(at for at, number in waiting.items() if number == 1) == leaves_ms * 10**9


@settings(max_examples=80)
@given(
    requests_strategy,
    st.sampled_from([2, 5, 30]),
    st.sampled_from([1, 2, 3]),
    st.integers(400, 900),
    st.booleans(),
)
def test_nothing_is_lost(
    requests: list[tuple[int, int, int]], interval: int, stages: int, blocks: int, caching: bool
) -> None:
    asked = Options(
        "sglang",
        block_size=1,
        blocks=blocks + 1,
        caching=caching,
        depth=stages,
        extra={
            "stages": stages,
            "micro_batches": stages,
            "sglang_recv_interval": interval,
            "sglang_new_tokens": 8,
        },
    )
    sim = run(requests, asked)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, asked.blocks, requests)


@pytest.mark.parametrize(
    ("layout", "ranks", "policy"),
    [({"prefill": 1, "decode": 1}, {}, "fcfs"), ({}, {}, "priority"), ({}, {"dp": 2}, "fcfs")],
)
def test_loops_of_another_kind_refuse_it(
    layout: dict[str, Any], ranks: dict[str, int], policy: str
) -> None:
    fields = llmsim.Cluster.build("Qwen/Qwen3-30B-A3B", "H100", **layout).fields()
    for size in ranks.values():
        instance = fields["nodes"][0]["instances"][0]
        instance.pop("ep_size", None)
        instance |= {"num_npus": size, "data_parallel_size": size, "enable_expert_parallel": True}
    with pytest.raises(llmsim.InputError, match="sglang_scheduler_recv_interval does not run"):
        llmsim.run(
            fields,
            "synthetic:n=2,rate=1,input=fixed:8,output=fixed:2",
            scheduler="sglang",
            scheduling_policy=policy,
            sglang_scheduler_recv_interval=5,
        )
