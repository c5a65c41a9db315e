"""Clients that give up with SGLang's scheduler: who runs ends with one more output."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import Options, run, schedule
from test_sglang_drafts import options
from token_balance import token_balance

from llmsim.core import Status


def plain(**fields: Any) -> Options:
    """A group without drafts, whose steps take 1 ms."""
    return Options("sglang", block_size=1, **fields)


@pytest.mark.parametrize(("depth", "steps"), [(1, 5), (2, 6)])
def test_who_runs_takes_one_more_step(depth: int, steps: int) -> None:
    """It gives up in its fourth step. The next one is formed without its knowledge of that step's
    end; with overlap one more has begun before.
    """
    sim = run([(0, 10, 50)], plain(timeout_ms=[3.5], depth=depth))
    assert len(schedule(sim)) == steps
    assert sim.requests()["status"][0] == 5
    assert sim.requests()["cancelled_ps"][0] == 4 * 10**9
    assert sim.counters()["free_blocks"][0] == 1000


def test_who_waits_leaves_at_once() -> None:
    sim = run([(0, 10, 9), (0, 10, 9)], plain(timeout_ms=[-1, 2.5], max_seqs=1))
    assert {request for step in schedule(sim) for request, _, _ in step} == {0}


def test_a_prompt_that_was_cut_is_not_gone_on_with() -> None:
    """Of 600 tokens in chunks of 256 it has computed two when its client gives up."""
    sim = run([(0, 600, 9)], plain(timeout_ms=[1.5], budget=256))
    assert [before for ((_, _, before),) in schedule(sim)] == [0, 256]
    assert sim.counters()["free_blocks"][0] == 1000


def test_what_it_computed_stays_cached() -> None:
    keys = [list(range(1, 41)), list(range(1, 41))]
    asked = plain(timeout_ms=[2.5, -1], caching=True, keys=keys)
    asked.block_size = 1
    sim = run([(0, 40, 30), (50, 40, 2)], asked)
    assert sim.requests()["cached_tokens"][1] == 39


def test_a_token_behind_an_answers_end_counts_once() -> None:
    """The eighth request gives up with its first token. Its verification in flight has two drafts
    beyond its answer, and it takes a token more in a step of prompts.
    """
    answers = [1, 2, 2, 6, 7, 6, 2, 3, 1, 1]
    enough = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    extra = {"sglang_new_tokens": 8, "sglang_mixed_chunk": 1}
    fields: dict[str, Any] = {"depth": 2, "max_seqs": 6, "cancel_tokens": enough}
    sim = run(
        [(0, 1, answer) for answer in answers], options([0.75, 0.75, 0.5], extra=extra, **fields)
    )
    assert sim.requests()["status"][7] == Status.CANCELLED
    assert token_balance(sim, [1] * len(answers)) == "ok"


@settings(max_examples=150)
@given(
    requests_strategy,
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
    st.integers(260, 600),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 1, 2, 30]),
    st.integers(0, 1 << 16),
)
def test_nothing_is_lost(
    requests: list[tuple[int, int, int]],
    rates: list[float],
    tokens: int,
    depth: int,
    caching: bool,
    drafts: bool,
    interval: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    patience = [float(rng.choice([-1, rng.uniform(0.5, 300)])) for _ in requests]
    enough = [int(rng.choice([0, rng.integers(1, 1 + answer)])) for _, _, answer in requests]
    fields: dict[str, Any] = {
        "blocks": tokens + 1,
        "depth": depth,
        "caching": caching,
        "max_seqs": 6,
        "timeout_ms": patience,
        "cancel_tokens": enough,
    }
    extra = {"sglang_new_tokens": 8, "sglang_mixed_chunk": int(rng.random() < 0.5)}
    extra |= {"sglang_recv_interval": interval}
    asked = options(rates, extra=extra, **fields) if drafts else plain(extra=extra, **fields)
    sim = run(requests, asked)  # type: ignore[arg-type]
    counters = sim.counters()
    assert counters["pool_consistent"].all() and not counters["idle_with_work"].any()
    assert counters["free_blocks"][0] == asked.blocks - 1
    assert counters["running"][0] == counters["waiting"][0] == 0
    assert token_balance(sim, [prompt for _, prompt, _ in requests]) == "ok"
