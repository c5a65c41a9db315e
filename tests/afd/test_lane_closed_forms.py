"""Attention and FFN devices of equal lanes take what arithmetic by hand says."""

from typing import Any

import pytest
from afd.sides import FEATURE, HEAD, PROLOGUE, SEQUENCES, hop, run, side
from hypothesis import given
from hypothesis import strategies as st

from llmsim import _native


def step_ps(times: tuple[int, int, int], layers: int, lanes: int, **how: Any) -> int:
    """The length of one step whose lanes hold equal tokens; `times` are those of attention, FFN and
    one way between them.
    """
    attention_ps, ffn_ps, way_ps = times
    a, f = side(), side()
    a.add("qkv", FEATURE.TOKENS, layers, table=attention_ps)
    a.attention(layers)
    f.add("ffn", FEATURE.GATHERED, layers, table=ffn_ps)
    config = _native.AfdConfig(
        attention_members=1,
        lanes=lanes,
        columns=1,
        sharing=1,
        bands=[_native.AfdBand(0, layers, [_native.AfdLayer([0, 1], [0])])],
        hops=[hop(0, 0, 0, 0)],
        latency_ps=way_ps,
        attention_bytes_per_s=10**9,
        ffn_bytes_per_s=10**9,
    )
    steps = run([a.program(), f.program()], config, 1, [(0, 12, 1)], **how).steps()
    return int((steps["end_ps"] - steps["start_ps"])[0])


def closed_form(times: tuple[int, int, int], layers: int, lanes: int) -> int:
    """The longest of both sides paces the lanes; if these do not fill the round, the round does."""
    attention_ps, ffn_ps, way_ps = times
    rounds, slowest = attention_ps + ffn_ps + 2 * way_ps, max(attention_ps, ffn_ps)
    if lanes * slowest >= rounds:
        return rounds + (lanes * layers - 1) * slowest
    return layers * rounds + (lanes - 1) * slowest


TIMES = st.tuples(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(0, 10**9))


@given(times=TIMES, layers=st.integers(1, 60), lanes=st.sampled_from([1, 2, 3, 4]))
def test_a_step_takes_the_closed_form(times: tuple[int, int, int], layers: int, lanes: int) -> None:
    assert step_ps(times, layers, lanes) == closed_form(times, layers, lanes)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_by_hand(lanes: int) -> None:
    """4 layers of 30 and 20 ps with ways of 5 ps: 240 ps in one lane; two lanes fill the pipe."""
    expected = {1: 4 * 60, 2: 60 + 7 * 30, 3: 60 + 11 * 30}[lanes]
    assert step_ps((30, 20, 5), 4, lanes) == expected
    assert step_ps((30, 20, 5), 4, lanes, exact=True) == expected


def test_the_least_time_between_both_sides_is_that_of_one_row() -> None:
    """Two bands of 4 and 1 layers, of which the second moves nothing: 4 times 8 us there and 4 us
    back, the slower port each way, and 3 us of latency each.
    """
    config = _native.AfdConfig(
        attention_members=1,
        lanes=2,
        columns=1,
        sharing=1,
        bands=[
            _native.AfdBand(0, 4, [_native.AfdLayer([0, 1], [0])]),
            _native.AfdBand(0, 1, [_native.AfdLayer([0, 1], [])]),
        ],
        hops=[hop(8000, 1000, 8000, 1000)],
        latency_ps=3_000_000,
        attention_bytes_per_s=10**9,
        ffn_bytes_per_s=2 * 10**9,
    )
    assert config.least_m2n_ps() == 4 * (8_000_000 + 3_000_000 + 4_000_000 + 3_000_000)


def test_rows_take_their_time_on_both_ports() -> None:
    """8 rows of 1,000 B and 500 B back at 1 GB/s: 8 us and 4 us, and 3 us of latency each way; the
    FFN's ports carry the rows of both attention groups.
    """
    a, f = side(), side(2)
    a.add("qkv", FEATURE.TOKENS, 1, table=10)
    a.attention(1)
    f.add("ffn", FEATURE.GATHERED, 1, table=20)
    config = _native.AfdConfig(
        attention_members=2,
        lanes=1,
        columns=1,
        sharing=1,
        bands=[_native.AfdBand(0, 1, [_native.AfdLayer([0, 1], [0])])],
        hops=[hop(1000, 1000, 500, 500)],
        latency_ps=3 * 10**6,
        attention_bytes_per_s=10**9,
        ffn_bytes_per_s=10**9,
    )
    programs = [a.program(), a.program(), f.program()]
    steps = run(programs, config, 2, [(0, 8, 1), (0, 8, 1)]).steps()
    us = 10**6
    assert (steps["end_ps"] - steps["start_ps"])[0] == 10 + 16 * us + 3 * us + 20 + 8 * us + 3 * us


def test_what_works_on_sequences_runs_once() -> None:
    """Embedding and norm run for each lane, the head for the whole batch."""
    a, f = side(), side()
    a.add("embedding", FEATURE.TOKENS, 1, table=7, part=PROLOGUE)
    a.add("qkv", FEATURE.TOKENS, 1, table=100)
    a.attention(1)
    a.add("norm", FEATURE.TOKENS, 1, table=11, part=HEAD)
    a.add("lm_head", FEATURE.SEQUENCES, 1, table=1000, part=HEAD)
    f.add("ffn", FEATURE.GATHERED, 1, table=50)
    config = _native.AfdConfig(
        attention_members=1,
        lanes=2,
        columns=1,
        sharing=1,
        bands=[_native.AfdBand(0, 1, [_native.AfdLayer([1, 2], [0])])],
        hops=[hop(0, 0, 0, 0)],
        latency_ps=0,
        attention_bytes_per_s=1,
        ffn_bytes_per_s=1,
    )
    sim = run([a.program(), f.program()], config, 1, [(0, SEQUENCES, 1)])
    steps = sim.steps()
    assert (steps["end_ps"] - steps["start_ps"])[0] == 2 * 7 + 2 * 100 + 50 + 11 + 1000
    busy = {(group, op): sum(parts) for group, op, parts in sim.busy_time()}
    assert busy[0, 0] == 2 * 7
    assert busy[0, 4] == 1000
    assert busy[1, 0] == 2 * 50
