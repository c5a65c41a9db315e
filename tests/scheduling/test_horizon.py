"""`--horizon`: the run ends at a time; what had finished by then is as if it had gone on."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.cli import run_main
from llmsim.simulation.run import simulate

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
TRACE = "synthetic:n=60,rate=10,input=fixed:300,output=fixed:100,seed=1"


def run(capsys: pytest.CaptureFixture[str], *options: object) -> Any:
    arguments = (
        "--cluster-config",
        CLUSTER,
        "--dataset",
        TRACE,
        "--cost-source",
        "roofline",
        "--json",
        *options,
    )
    assert run_main([str(option) for option in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def rows(path: Path) -> dict[str, dict[str, str]]:
    return {row["request id"]: row for row in csv.DictReader(path.open(encoding="utf-8"))}


def test_what_finishes_before_the_horizon_is_what_a_whole_run_has_by_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(capsys, "--output", tmp_path / "whole.csv")
    cut = run(capsys, "--horizon", 3, "--output", tmp_path / "cut.csv")
    assert whole["horizon_s"] is None and whole["completed"] == 60
    assert cut["horizon_s"] == 3.0 and not cut["interrupted"]
    assert 0 < cut["completed"] < 60 and cut["completed"] + cut["unfinished"] == 60
    assert set(cut["invariants"].values()) == {"ok"}
    every, some = rows(tmp_path / "whole.csv"), rows(tmp_path / "cut.csv")
    assert some == {name: row for name, row in every.items() if int(row["end_time"]) <= 3 * 10**9}


def test_a_horizon_behind_the_end_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--horizon", 1000) == run(capsys)


def test_clients_with_nothing_left_to_do_do_not_reach_the_horizon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Timeouts of requests that were answered, and thinking after the last answers, would come
    behind the horizon.
    """
    for options in (
        ["--request-timeout", 2000],
        ["--max-concurrency", 60, "--think-time", 2_000_000],
    ):
        assert run(capsys, "--horizon", 1000, *options) == run(capsys, *options)
        assert run(capsys, "--horizon", 1000, *options)["horizon_s"] is None


def test_before_the_first_arrival_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "--horizon", 0.000001)
    assert (result["completed"], result["unfinished"], result["steps"]) == (0, 60, 0)
    assert result["mean_ttft_ms"] is None


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_a_bad_horizon_is_one_sentence(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_main(["--cluster-config", str(CLUSTER), "--dataset", TRACE, "--horizon", seconds]) == 2
    )
    assert "--horizon is " in capsys.readouterr().err


@pytest.mark.parametrize("horizon_s", [0.4, 2.0, 2.5])
def test_the_series_of_a_run_that_is_cut_go_to_its_end(horizon_s: float) -> None:
    """Also where that is within an interval of the log."""
    result = llmsim.run(CLUSTER, TRACE, cost_source="roofline", horizon=horizon_s)
    series = result.series
    assert series["time_ps"].max() == round(horizon_s * 1e12)
    emitted = result.requests["emitted_tokens"].sum()
    assert series["generation_tokens"].sum() == emitted > 0


def test_the_series_of_an_interrupted_run_have_all_its_tokens() -> None:
    def stop(simulation: Any) -> None:
        if simulation.num_finished >= 5:
            raise KeyboardInterrupt

    prepared = llmsim.run(CLUSTER, TRACE, cost_source="roofline")._prepared
    parts = (prepared.lowered, prepared.workload, prepared.simulation)
    results = simulate(*parts, stop)
    assert results.interrupted
    assert results.series["generation_tokens"].sum() == results.requests.emitted_tokens.sum() > 0
