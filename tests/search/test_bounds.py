"""Bounds of points: no run is better, and what they leave out would not have stayed."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmsim.cli import main
from llmsim.config.errors import InvariantError
from llmsim.core import PS_PER_MS, RequestColumns, Status
from llmsim.search.apply import load_base
from llmsim.search.journal import State, Trial
from llmsim.search.space import REQUESTS, Space
from llmsim.search.study import fronts
from llmsim.search.successive_halving.bounds import Bounds, Range
from llmsim.search.successive_halving.ceilings import Ceilings, RunStopped, Watch, exceeded
from llmsim.search.successive_halving.halving import BEATEN, UNMET, Rung, halved, near
from llmsim.search.trials import Trials
from llmsim.sizing.workers.workers import Workers
from tests.search.test_model_spaces import AFD, space, written

NO_READS = {"--disable-term": "kv_reads"}
"""Bounds do not have what hosts take to post reads."""
ONE: dict[str, Any] = {
    "gpus": 2,
    "tp": [1],
    "architecture": ["colocated"],
    "hardware": "A100-40GB-SXM",
}


@pytest.mark.parametrize(
    ("fields", "looseness"),
    [
        ({**AFD, "vary": {"--max-num-seqs": [4, 64], "rate": [5, 80]}}, 1.1),
        ({"model": "Qwen/Qwen3-30B-A3B", "gpus": 4, "architecture": ["colocated"]}, 2.5),
        ({"options": NO_READS, "gpus": 4, "split_step": 2, "pp": [1, 2]}, 1.1),
    ],
    ids=["attention and FFN apart", "experts", "measured tables and stages"],
)
def test_no_run_is_better_than_its_bounds(
    fields: dict[str, Any], looseness: float, tmp_path: Path
) -> None:
    asked = space(tmp_path, halving={"requests": [20, 40], "bounds": False}, **fields)
    with Workers(1, apart=True) as workers:
        trials = Trials(load_base(asked), tmp_path / "out", workers)
        bounds = trials.bounds()
        points = list(asked.grid())
        bounds.look_at(points)
        found = trials.of([{**point, REQUESTS: 40} for point in points])
    tight = []
    for point, trial in zip(points, found, strict=True):
        if trial.state == "infeasible":
            continue
        bounds.check(Trial(point, trial.state, "", trial.values, ""), 40)
        ranges = bounds.of(point, 40)
        tight.append(trial.values["p95_tpot_ms"] / ranges["p95_tpot_ms"][0])
        assert trial.values["output_throughput"] < ranges["output_throughput"][1]
    assert min(tight) < looseness and len(tight) > 3


def test_a_run_that_is_better_than_its_bounds_is_a_defect(tmp_path: Path) -> None:
    asked = space(tmp_path, gpus=2)
    (point, *_) = asked.grid()
    bounds = Bounds(load_base(asked), lambda runs: [10**10] * len(runs))
    bounds.look_at([point])
    assert bounds.of(point, 40)["p95_tpot_ms"][0] == pytest.approx(10.0)
    fast = Trial(point, "feasible", "", {"p95_tpot_ms": 9.9}, "")
    with pytest.raises(InvariantError, match=r"p95_tpot_ms of deployment .* is 9\.9, and its"):
        bounds.check(fast, 40)


class _Known:
    """Bounds of figures that are known, by shares that are drawn."""

    def __init__(self, values: Mapping[int, Mapping[str, float]], shares: np.ndarray) -> None:
        self._values, self._shares = values, shares

    def look_at(self, points: Sequence[Any]) -> None:
        pass

    def of(self, point: Mapping[str, Any], requests: int) -> dict[str, Range]:
        values, share = self._values[point["number"]], self._shares[point["number"]]
        return {
            "p95_tpot_ms": (values["p95_tpot_ms"] * share, np.inf),
            "output_throughput": (0.0, values["output_throughput"] / share),
        }

    def check(self, trial: Trial, requests: int) -> None:
        pass


@pytest.mark.parametrize("seed", range(8))
def test_what_stays_is_what_stays_without_bounds(seed: int, tmp_path: Path) -> None:
    """400 points with drawn figures, other ones on each rung, and valid bounds of any tightness."""
    asked = space(
        tmp_path, require={"p95_tpot_ms": {"at_most": 9}, "p95_ttft_ms": {"at_most": 300}}
    )
    draw = np.random.default_rng(seed)
    labels = list(asked.plans)
    points = [{"deployment": str(draw.choice(labels)), "number": i} for i in range(400)]
    whole = {
        i: {
            "output_throughput": float(draw.lognormal(5, 0.5)),
            "p95_tpot_ms": float(draw.lognormal(2, 0.5)),
            "p95_ttft_ms": float(draw.uniform(100, 350)),
        }
        for i in range(400)
    }
    shares = draw.uniform(0.7, 1.0, 400)

    early = draw.uniform(0, 1, 400) < 0.5

    def evaluate(wanted: Sequence[dict[str, Any]], ceilings: Sequence[Ceilings]) -> list[Trial]:
        """Every second run above a ceiling stops, and the others show at their end that it is."""
        found = []
        for point, most in zip(wanted, ceilings, strict=True):
            values = whole[point["number"]]
            state: State = "feasible" if _meets(values) else "short"
            if exceeded(values, most) and early[point["number"]]:
                state, values = "stopped", {}
            found.append(Trial(point, state, "", values, ""))
        return found

    every: list[Rung] = []
    some: list[Rung] = []
    all_run = halved(asked, evaluate, points, every)
    bounds: Any = _Known(whole, shares)
    left = halved(asked, evaluate, points, some, bounds)
    assert _front(asked, left) == _front(asked, all_run) != []
    first, last = some
    assert first.points + sum(first.pruned.values()) == 400 == every[0].points
    assert last.points + sum(last.pruned.values()) == every[1].points
    assert first.pruned[UNMET] and first.pruned[BEATEN] and first.example
    assert first.stopped and last.stopped and every[0].stopped == 0


def _meets(values: Mapping[str, float]) -> bool:
    return values["p95_tpot_ms"] <= 9 and values["p95_ttft_ms"] <= 300


def _front(asked: Space, trials: Sequence[Trial]) -> list[Any]:
    found = fronts(asked, trials)
    return [(name, [trials[i] for i in found[name]]) for name in sorted(found)]


def test_a_run_is_stopped_only_where_its_figure_ends_above_the_ceiling() -> None:
    """However the other requests fare: they may all be as fast as can be, or never finish."""
    draw = np.random.default_rng(5)
    for requests, q in itertools.product((1, 2, 19, 20, 21, 200), (50, 90, 95, 99)):
        ttft_ms = np.round(draw.lognormal(3, 1, requests), 3)
        figure = "median_ttft_ms" if q == 50 else f"p{q}_ttft_ms"
        for done in range(1, requests + 1):
            ceiling = float(draw.choice(ttft_ms))
            finished = np.arange(requests) < done
            stopped = _is_stopped(ttft_ms, finished, figure, ceiling)
            rest = np.where(finished, ttft_ms, 0.0)
            least = min(np.percentile(rest, q), np.percentile(ttft_ms[:done], q))
            assert not stopped or least > ceiling
            if done == requests and np.percentile(ttft_ms, q, method="lower") > ceiling + 0.001:
                assert stopped


def test_a_run_is_stopped_by_requests_that_wait_unless_clients_give_up() -> None:
    """Of ten requests three wait for 90 ms: the p90 of all will be above 60 ms, if they stay."""
    ttft_ms, finished = np.full(10, 5.0), np.arange(10) < 7
    columns = _columns(ttft_ms, finished)
    columns["finish_ps"] = columns["first_token_ps"]
    simulation: Any = SimpleNamespace(requests=lambda: columns, now_ps=90 * PS_PER_MS)
    with pytest.raises(RunStopped):
        Watch({"p90_ttft_ms": 60.0}, 10, np.full(10, 4))(simulation)
    Watch({"p90_ttft_ms": 95.0}, 10, np.full(10, 4))(simulation)
    Watch({"p90_ttft_ms": 60.0}, 10)(simulation)


def _is_stopped(ttft_ms: np.ndarray, finished: np.ndarray, figure: str, ceiling: float) -> bool:
    columns = _columns(ttft_ms, finished)
    simulation: Any = SimpleNamespace(requests=lambda: columns)
    try:
        Watch({figure: ceiling}, len(ttft_ms))(simulation)
    except RunStopped as stopped:
        assert (stopped.figure, stopped.ceiling) == (figure, ceiling)
        return True
    return False


def _columns(ttft_ms: np.ndarray, finished: np.ndarray) -> dict[str, np.ndarray]:
    """Requests that came at 0, of which some have finished."""
    kinds = {field.name: np.int64 for field in dataclasses.fields(RequestColumns)}
    columns = {name: np.zeros(len(ttft_ms), kind) for name, kind in kinds.items()}
    columns["status"] = np.where(finished, Status.FINISHED, Status.RUNNING)
    columns["first_token_ps"] = np.where(finished, ttft_ms * PS_PER_MS, -1).astype(np.int64)
    return columns


def test_a_stopped_run_is_run_again_under_a_higher_ceiling(tmp_path: Path) -> None:
    asked = space(tmp_path, gpus=2, halving={"requests": [20, 40]})
    base = load_base(asked)
    with Workers(1, apart=True) as workers:
        (point, *_) = asked.grid()
        wanted = {**point, REQUESTS: 40}

        def trial(most: float) -> Trial:
            again = Trials(base, tmp_path / "out", workers)
            return again.of([wanted], [{"p95_tpot_ms": most}])[0]

        low = trial(0.001)
        assert (low.state, low.values) == ("stopped", {"p95_tpot_ms": 0.001})
        assert low.reason == "p95_tpot_ms is above 0.001"
        assert trial(0.0005) == low
        whole = trial(1e6)
        assert whole.state == "feasible" and whole.values["p95_tpot_ms"] > 0.001
        assert trial(0.001) == whole


def test_a_margin_of_nothing_keeps_what_meets_bounds_with_one_end(tmp_path: Path) -> None:
    asked = space(tmp_path)
    values = {"p95_ttft_ms": 300.0, "output_throughput": 1.0, "p95_tpot_ms": 1.0}
    trials = [Trial({"deployment": label}, "feasible", "", values, "") for label in asked.plans]
    assert near(asked, trials, 0.0) == list(range(len(trials)))


def test_a_search_whose_points_miss_by_their_bounds_says_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data sheet's peak allows the TPOT, and the compiled step does not."""
    least_ms = _least_step_ms(space(tmp_path, **ONE), tmp_path)
    require = {"p95_tpot_ms": {"at_most": least_ms / 1.25}}
    path = written(tmp_path, **ONE, require=require)
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 3
    said = capsys.readouterr()
    assert f"p95_tpot_ms is at least {least_ms * (1 - 1e-6):.6g}" in said.err
    assert "0 points run with 40 requests, 6 by their bounds not" in said.out


def test_options_that_leave_requests_unserved_have_no_bounds(tmp_path: Path) -> None:
    def bounds(**fields: Any) -> Bounds:
        return Bounds(load_base(space(tmp_path, **fields)), lambda runs: [0] * len(runs))

    assert bounds().known
    assert not bounds(options={"--max-num-queued-reqs": 1}).known
    assert not bounds(vary={"--max-concurrency": [1, 2], "rate": [2]}).known
    assert not bounds(
        vary={}, load={"rate": {"from": 1, "to": 2}, "until": {"p95_ttft_ms": {"at_most": 9}}}
    ).known


def _least_step_ms(asked: Space, folder: Path) -> float:
    (point, *_) = asked.grid()
    with Workers(1, apart=True) as workers:
        bounds = Trials(load_base(asked), folder / "look", workers).bounds()
        bounds.look_at([point])
    return bounds.of(point, 40)["p95_tpot_ms"][0] / (1 - 1e-6)
