"""Runs that are stopped since a target is certain to be missed by far."""

from collections.abc import Sequence

import numpy as np
import pytest

from llmsim.core import PS_PER_MS, RequestColumns, Status
from llmsim.results.requests.ceilings import Ceiling, least_latencies
from llmsim.sizing.answer import text
from llmsim.sizing.capacity import capacity, misses, with_figures
from llmsim.sizing.load import CONCURRENCY, RATE, Load
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan, Pool, Shape
from llmsim.sizing.size import size
from llmsim.sizing.targets import HOPELESS, Targets

MODEL = "meta-llama/Llama-3.1-8B"
ONE = Plan(MODEL, "H100", (Pool(Shape(1), 1),))
PAIR = Plan(MODEL, "H100", (Pool(Shape(1), 1, "prefill"), Pool(Shape(1), 1, "decode")))
TARGETS = Targets.parse("ttft:300,tpot:12,e2el:2000", 99)
OPEN = Load(RATE, 1.0, "lognormal:800", "lognormal:100", seed=3)
CLOSED = Load(CONCURRENCY, 1.0, "lognormal:800", "lognormal:100", seed=3)


@pytest.mark.parametrize("plan", [ONE, PAIR])
@pytest.mark.parametrize(("load", "levels"), [(OPEN, (2, 20, 40, 80, 300)), (CLOSED, (4, 64, 300))])
def test_what_was_given_up_is_as_far_beyond_the_target_in_the_whole_run(
    plan: Plan, load: Load, levels: Sequence[int]
) -> None:
    bench, stopped = Bench(), 0
    for level in levels:
        runs = [
            bench.measure(plan, load, level, 1500, (99.0,), ceilings)
            for ceilings in (TARGETS.ceilings, ())
        ]
        found, whole = runs
        assert not whole.is_given_up
        if found.given_up is None:
            assert found == whole
            continue
        stopped += 1
        metric = found.given_up.latency
        assert whole.at(99.0)[metric] > HOPELESS * TARGETS.of(metric)
        (missed,) = misses(found, TARGETS)
        assert missed.at_least and missed.by == pytest.approx(HOPELESS - 1)
        assert "or more over" in missed.text
        assert found.at(99.0) == {} and not found.complete
    assert 0 < stopped < len(levels)


def test_a_capacity_is_the_same_whether_runs_are_given_up() -> None:
    for plan, load, start in ((ONE, OPEN, 500.0), (PAIR, OPEN, 500.0), (ONE, CLOSED, 256.0)):
        found, whole = (
            capacity(Bench(), plan, load, TARGETS, start, gives_up=gives_up)
            for gives_up in (True, False)
        )
        assert (found.level, found.at) == (whole.level, whole.at)
        assert with_figures(Bench(), plan, load, TARGETS, found) == whole


def test_targets_of_classes_stop_no_run() -> None:
    assert Targets.parse("chat=ttft:300;batch=ttft:9000", 99, ("chat", "batch")).ceilings == ()


def test_unfinished_requests_have_the_latencies_that_are_certain() -> None:
    """One has ended; of one the first token came 30 ms ago, and it gets 11 in all; one waits; one
    comes later, and one was refused.
    """
    statuses = (Status.FINISHED, Status.RUNNING, Status.WAITING, Status.PENDING, Status.REJECTED)
    columns = RequestColumns(
        **{
            name: np.zeros(5, np.int64) if name != "status" else np.array(statuses)
            for name in RequestColumns.__dataclass_fields__
        }
    )
    columns.arrival_ps[:] = np.array([0, 10, 20, -1, 0]) * PS_PER_MS
    columns.first_token_ps[:] = np.array([5, 60, -1, -1, -1]) * PS_PER_MS
    columns.finish_ps[:] = np.array([25, -1, -1, -1, -1]) * PS_PER_MS
    columns.emitted_tokens[:] = [5, 2, 0, 0, 0]
    least = least_latencies(columns, np.array([100, 11, 7, 7, 7]), 90 * PS_PER_MS)
    assert (least.ttft_ps / PS_PER_MS).tolist() == [5, 50, 70]
    assert (least.e2el_ps / PS_PER_MS).tolist() == [25, 80, 70]
    assert (least.tpot_ps / PS_PER_MS).tolist() == [20 / 4, 30 / 10, 0]
    assert Ceiling("ttft", 50.0, 49.0).is_exceeded(least, 3)
    assert not Ceiling("ttft", 50.0, 49.0).is_exceeded(least, 5)


def test_the_answer_shows_whole_runs() -> None:
    answer = size(
        MODEL, "H100", rate=60, input="lognormal:1000", output_tokens="lognormal:200",
        slo="ttft:300,tpot:12", architecture="pd", jobs=1,
    )  # fmt: skip
    assert any(one.run is not None and one.run.is_given_up for one in answer.found.missing)
    assert answer.next and not any(one.run and one.run.is_given_up for one, _ in answer.next)
    assert "or more" not in text(answer)
