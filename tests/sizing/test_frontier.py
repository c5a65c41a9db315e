"""Searches over very many points: nothing that matters is pruned, dropped or lost."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.sizing.frontier import (
    Envelope,
    Frontier,
    Point,
    counts_text,
    explore,
    front_of,
    run_points,
    sampled,
    static_filter,
)
from llmsim.sizing.load import RATE, Load
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan, Pool, Shape
from llmsim.sizing.workers.workers import Workers
from tests.sizing.test_plans import ROOFLINE

LOAD = Load(RATE, 1.0, "lognormal:400", "lognormal:40", seed=5)
RUNGS = (40, 80, 160)
QUICK = replace(ROOFLINE, disabled_terms=("launches",))
"""Rungs of few short requests tell the front only where the host does not decide their steps."""


def points() -> list[Point]:
    """All of 16 GPUs, colocated and apart, at several rates."""
    made = []
    for seqs in (16, 64):
        engine = (("max_num_seqs", seqs),)
        plans = [
            Plan("Qwen/Qwen3-8B", "H100", (Pool(Shape(tp), 16 // tp),), engine) for tp in (1, 4)
        ]
        for prefill in (4, 8, 12):
            pools = (
                Pool(Shape(2), prefill // 2, "prefill"),
                Pool(Shape(2), 8 - prefill // 2, "decode"),
            )
            plans.append(Plan("Qwen/Qwen3-8B", "H100", pools, engine))
        made += [Point(plan, rate) for plan in plans for rate in (20.0, 80.0, 160.0, 320.0)]
    return made


@pytest.fixture(scope="module")
def bench_workers() -> Workers:
    return Workers(1, QUICK)


def test_the_front_is_that_of_running_every_point_whole(bench_workers: Workers) -> None:
    limits = (1000.0, 100.0)
    halved = explore(points(), LOAD, bench_workers, ttft_ms=limits, rungs=RUNGS)
    last = RUNGS[-1:]
    whole = explore(points(), LOAD, bench_workers, ttft_ms=limits, rungs=last, in_waves=False)
    for limit, architecture in itertools.product(limits, ("colocated", "pd")):
        assert whole.front(limit, architecture) == halved.front(limit, architecture)
        assert whole.front(limit, architecture)
    runs = [count for _, count, _ in halved.rungs]
    unneeded = [count for _, count in halved.beaten]
    assert runs[0] + unneeded[0] == len(points()) and runs[-1] < runs[0]
    assert whole.rungs == [(RUNGS[-1], len(points()), len(points()))] and whole.beaten[0][1] == 0
    assert f"{runs[0]} points with 40 requests ({runs[0]} new)" in counts_text(halved)


def test_a_journal_loses_nothing_when_it_is_cut_anywhere(
    tmp_path: Path, bench_workers: Workers
) -> None:
    """A process that is killed leaves a file that ends at any byte."""
    path = tmp_path / "j.jsonl"
    some = points()[:8]
    first = explore(some, LOAD, bench_workers, rungs=(20, 40), journal=path)
    data = path.read_bytes()
    head = data.index(b"\n") + 1
    for cut in range(head, len(data) + 1, max(1, (len(data) - head) // 9)):
        path.write_bytes(data[:cut])
        again = explore(some, LOAD, bench_workers, rungs=(20, 40), journal=path)
        assert again.finalists == first.finalists
        lines = data[head:].splitlines()
        whole = len(set(lines) & set(data[head:cut].splitlines()))
        assert sum(new for _, _, new in again.rungs) == len(lines) - whole
    again = explore(some, LOAD, bench_workers, rungs=(20, 40), journal=path)
    assert [new for _, _, new in again.rungs] == [0, 0]
    with pytest.raises(InputError, match="another load"):
        explore(some, LOAD.scaled(2.0), bench_workers, rungs=(20,), journal=path)


def test_two_workers_give_the_answers_of_one(bench_workers: Workers) -> None:
    some = points()[:12]
    one = explore(some, LOAD, bench_workers, rungs=(20, 40))
    with Workers(2, QUICK) as workers:
        two = explore(some, LOAD, workers, rungs=(20, 40))
    assert one.finalists == two.finalists and one.rungs == two.rungs


def test_every_candidate_is_counted_and_a_pruned_one_cannot_be_run_well() -> None:
    plans = [Plan("meta-llama/Llama-3.1-70B", "H100", (Pool(Shape(tp), 8 // tp),)) for tp in (1, 8)]
    everything = [Point(plan, rate) for plan in plans for rate in (1.0, 1e4)]
    found = Frontier((1000.0,))
    kept = static_filter(everything, LOAD, found, least_speed=10.0)
    assert found.candidates == 4 and found.pruned.counts.total() + len(kept) == 4
    assert kept == [everything[2]]
    answers = run_points(Bench(QUICK), (LOAD, 200, [everything[0], everything[3]]))
    assert "does not fit" in answers[0].problem
    assert answers[1].ttft_ms > 1000 or answers[1].output_tok_s < 1e4 * 40 / 2


PAIRS = st.lists(
    st.tuples(st.integers(1, 12).map(float), st.integers(1, 12).map(float)), max_size=30
)


@given(PAIRS)
def test_fronts_are_those_of_comparing_all_pairs(pairs: list[tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] >= other[0] and one[1] >= other[1]

    unbeaten = {pair for pair in pairs if not any(beats(one, pair) for one in pairs)}
    assert {pairs[i] for i in front_of(pairs)} == unbeaten
    near = [
        i
        for i, (x, y) in enumerate(pairs)
        if not any(a >= x * 1.25 and b >= y * 1.25 for a, b in pairs)
    ]
    envelope = Envelope(pairs)
    assert near == [i for i, (x, y) in enumerate(pairs) if not envelope.reaches(x * 1.25, y * 1.25)]


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    everything = points()
    assert sampled(everything, 10, 3) == sampled(everything, 10, 3)
    assert sampled(everything, 10, 3) != sampled(everything, 10, 4)
    assert len(set(one.key for one in everything)) == len(everything)
    assert sampled(everything, 1000, 3) == everything
