"""An API server's processes: rounds of work, what clients see, blame, cancellations."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.tiny import MS, Options, built, run

import llmsim
from llmsim import _native
from llmsim.config.errors import InputError

FINISHED, CANCELLED = 3, 5
CLUSTER = "cluster_config/h100_llama31_8b.json"


def test_one_request_waits_for_its_work_before_and_after_the_engine() -> None:
    """2 ms for the request, 0.1 ms for each of 10 prompt tokens, then 0.5 ms for each chunk."""
    sim = run([(0, 10, 3)], Options(api_server_ms=(2, 0.1, 0.5), api_latency_ms=1))
    r, parts = sim.requests(), sim.blame()
    assert r["queued_ps"].tolist() == [4 * MS]
    assert r["first_token_ps"].tolist() == [int(5.5 * MS)]
    assert r["finish_ps"].tolist() == [int(7.5 * MS)]
    assert parts["frontend_ps"].tolist() == [int(3.5 * MS)]
    assert parts["api_ps"].tolist() == [1 * MS]
    assert sim.first_token_blame()["frontend_ps"].tolist() == [int(3.5 * MS)]


def test_what_comes_during_a_round_leaves_together_at_the_end_of_the_next() -> None:
    """The first prompt is a round of its own; three that come meanwhile are the next round."""
    rows = [(0, 10, 1), (0, 10, 1), (0.5, 10, 1), (1.5, 10, 1)]
    queued = run(rows, Options(api_server_ms=(2, 0, 0))).requests()["queued_ps"]
    assert queued.tolist() == [2 * MS, 8 * MS, 8 * MS, 8 * MS]


def test_processes_share_the_requests() -> None:
    rows = [(0, 10, 1)] * 8
    queued = run(rows, Options(api_server_ms=(2, 0, 0), api_processes=4)).requests()["queued_ps"]
    assert queued.tolist() == [2 * MS] * 4 + [4 * MS] * 4


def test_chunks_wait_behind_prompts() -> None:
    """Prompts of nine others hold up the first token of the first, which the engine had at 3 ms."""
    rows = [(0, 10, 2), *[(0.5, 10, 1)] * 9]
    r = run(rows, Options(api_server_ms=(2, 0, 0.1), max_seqs=16)).requests()
    assert r["queued_ps"].tolist() == [2 * MS] + [20 * MS] * 9
    # Round 2 ends at 20 ms; round 3 has the tokens that the engine gave at 3 and 4 ms in one chunk.
    assert r["first_token_ps"][0] == r["finish_ps"][0] == int(20.1 * MS)


def test_tokens_of_several_steps_that_wait_together_are_one_chunk() -> None:
    """Two requests of 12 tokens, a step a millisecond, and 2 ms for a chunk: each round of 4 ms has
    the tokens of the four steps before, in one chunk for each request.
    """
    sim = run([(0, 10, 12), (0, 10, 12)], Options(api_server_ms=(0, 0, 2), max_seqs=2))
    r, times = sim.requests(), _native.TokenTimes(sim)
    assert r["first_token_ps"].tolist() == [5 * MS] * 2
    assert r["finish_ps"].tolist() == [17 * MS] * 2
    gaps = (times.inter_token_latencies_of(0) / MS).tolist()
    assert gaps == [4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0]


def test_gaps_between_tokens_are_those_that_clients_see() -> None:
    for processes in (1, 2):
        options = Options(api_server_ms=(2, 0, 0.3), max_seqs=16, api_processes=processes)
        sim = run([(i, 10, 3 + i) for i in range(8)], options)
        r, times = sim.requests(), _native.TokenTimes(sim)
        values, counts = times.inter_token_latencies()
        gaps = [times.inter_token_latencies_of(row) for row in range(8)]
        assert sorted(np.concatenate(gaps).tolist()) == np.repeat(values, counts).tolist()
        assert [int(one.sum()) for one in gaps] == (r["finish_ps"] - r["first_token_ps"]).tolist()


def test_a_closed_loop_waits_for_the_last_chunk() -> None:
    """One client: each call is 1 ms of prompt, one step and 1 ms of chunk after the other."""
    sim = run([(0, 10, 1), (0, 10, 1)], Options(api_server_ms=(1, 0, 1), clients=1))
    assert sim.requests()["finish_ps"].tolist() == [3 * MS, 6 * MS]


def test_a_client_that_leaves_early_is_dropped_when_the_engine_sees_it() -> None:
    sim = run([(0, 10, 5), (0, 10, 5)], Options(api_server_ms=(4, 0, 0), timeout_ms=[1, -1]))
    r, parts = sim.requests(), sim.blame()
    assert r["status"].tolist() == [CANCELLED, FINISHED]
    assert r["cancelled_ps"].tolist() == [4 * MS, -1]
    assert parts["frontend_ps"].tolist() == [4 * MS, 8 * MS]


def test_without_work_nothing_of_it_shows() -> None:
    sim = run([(0, 10, 3)], Options(api_processes=4))
    assert "frontend_ps" not in sim.blame()


def test_a_group_that_gives_parts_of_answers_has_none() -> None:
    with pytest.raises(ValueError, match="an API server has at least one process"):
        built([(0, 10, 1)], Options(api_server_ms=(1, 0, 0), api_processes=0))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(1, 12)), min_size=1),
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 3)),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_nobody_is_lost_and_causes_add_up(
    rows: list[tuple[int, int, int]], work: tuple[int, int, int], processes: int, depth: int
) -> None:
    ordered: Any = sorted(rows)
    options = Options(
        api_server_ms=(work[0], work[1] / 8, work[2] / 4), api_processes=processes, depth=depth
    )
    sim = run(ordered, options)
    r, parts = sim.requests(), sim.blame()
    assert (r["status"] == FINISHED).all()
    assert r["emitted_tokens"].tolist() == [one[2] for one in ordered]
    assert (r["first_token_ps"] <= r["finish_ps"]).all()
    latency = r["finish_ps"] - r["arrival_ps"]
    assert sum(parts.values()).tolist() == latency.tolist()
    assert min(one.min() for one in parts.values()) >= 0
    first = sim.first_token_blame()
    assert sum(first.values()).tolist() == (r["first_token_ps"] - r["arrival_ps"]).tolist()


def chat(**options: Any) -> Any:
    load = "synthetic:n=60,rate=1000,input=128,output=4"
    return llmsim.run(CLUSTER, load, engine_profile="vllm-0.11", cost_source="roofline", **options)


def test_an_endpoint_is_a_cause_of_its_own_that_a_term_switches_off() -> None:
    plain, asked, off = (
        chat(),
        chat(endpoint="chat"),
        chat(endpoint="chat", disable_term=["frontend"]),
    )
    assert "frontend" not in plain.summary["blame"] and "frontend" not in off.summary["blame"]
    assert asked.summary["blame"]["frontend"]["share"] > 0.5
    assert asked.summary["mean_ttft_ms"] > plain.summary["mean_ttft_ms"] + 300
    assert off.summary["mean_ttft_ms"] == plain.summary["mean_ttft_ms"]
    assert "frontend_ps" in asked.requests and "frontend_ps" not in plain.requests
    more = chat(endpoint="chat", api_server_count=4)
    assert more.summary["mean_ttft_ms"] < asked.summary["mean_ttft_ms"] / 2


def test_options_of_an_api_server_without_an_endpoint_are_refused() -> None:
    with pytest.raises(InputError, match="api_server_count is given, but no endpoint is"):
        chat(api_server_count=2)
    with pytest.raises(InputError, match="does not say what a request takes; give api_request_ns"):
        llmsim.run(CLUSTER, "synthetic:n=1,rate=1,input=8,output=2", endpoint="chat",
                   engine_profile="transformers-5", cost_source="roofline")  # fmt: skip
