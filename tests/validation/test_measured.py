"""Published measurements are simulated as their pages describe them, or skipped with a reason."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "evaluation"))

from measured.intervals import (  # noqa: E402
    KINDS,
    error_bars_json,
    intervals,
    intervals_markdown,
)
from measured.points import Skipped, read_points  # noqa: E402
from measured.report import Row, points_markdown  # noqa: E402
from measured.runs import profile_of, simulate  # noqa: E402

from llmsim.results.error_bars import FIGURES, kind_of, learnt, system_error  # noqa: E402

HEADER = (
    "id,source,engine,engine_version,model,hardware,gpus_tp,layout,n_requests,input_tokens,"
    "output_tokens,arrivals,max_concurrency,serve_options,sim_options,real_output_tok_s,"
    "real_mean_ttft_ms,real_mean_tpot_ms,real_median_itl_ms,grade,note"
)
ROWS = (
    "one,page,vLLM,0.11.0,meta-llama/Llama-3.1-8B,H100,1,TP,4,100,20,all at t=0,2,"
    "vllm serve x --max-model-len 4096,,250,30,7.5,,A,",
    "two,page,vLLM,unknown 2025-04,meta-llama/Llama-3.1-8B,H100,1,TP,,100,20,all,inf,,,9,,,,B,",
    "kv_three,page,vLLM,2025,meta-llama/Llama-3.1-8B,H100,1,TP,,,,,,,,,,,,A,KV capacity",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text("\n".join((HEADER, *ROWS)) + "\n", encoding="utf-8")
    return path


def test_rows_become_points(table: Path) -> None:
    one, two = read_points(table)
    assert (one.requests, one.concurrency, one.options) == (4, 2, ("--max-model-len", "4096"))
    assert one.real == {"throughput": 250, "ttft": 0.03, "tpot": 0.0075}
    assert (profile_of(one), profile_of(two)) == ("vllm-0.11.0", "vllm-0.8.4")
    assert two.real == {"throughput": 9}


def test_rows_that_contradict_themselves_or_gave_a_constant_do_not_count(table: Path) -> None:
    """250 tokens/s of 7.5 ms are 1.9 decoding sequences; a client of 2 allows 2.1, one of 1 does
    not.
    """
    one = read_points(table)[0]
    assert one.counted and not one.contradiction
    alone = replace(one, concurrency=1)
    assert alone.contradiction == "2 sequences decode by its throughput and TPOT, of at most 1"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("at t=0,2,", "at t=0,inf,"), encoding="utf-8")
    assert read_points(table)[0].grade == "A"
    stated = text.replace("at t=0,2,vllm", "at t=0,inf,max-num-seq 1 vllm")
    table.write_text(stated, encoding="utf-8")
    (lone, _) = read_points(table)
    assert (lone.running, lone.grade, lone.counted) == (1, "C", False)
    source = replace(one, name="q8_h100_bs1")
    assert source.gave and not source.counted
    shown = points_markdown([Row(source, {"tpot": 1.0}), Row(lone, {"tpot": 2.0})])
    assert "q8_h100_bs1: not counted" in shown and "one: grade C, 2 sequences" in shown
    assert "| tpot | 0" not in shown and "| tpot | 1" not in shown


def test_a_point_is_simulated_and_tabulated(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiconfigurator_core")
    one, two = read_points(table)
    found = simulate(one, tmp_path, tmp_path)
    assert set(found.errors(one)) == {"throughput", "ttft", "tpot"}
    assert 0.005 < found.metrics["tpot"] < 0.01
    with pytest.raises(Skipped, match="how many requests"):
        simulate(two, tmp_path, tmp_path)
    text = points_markdown([Row(one, found.errors(one)), Row(two, {}, "no count")])
    assert "| throughput | 1 |" in text and "- two: skipped, no count" in text


def test_error_bars_hold_on_systems_that_were_left_out(table: Path) -> None:
    point = read_points(table)[0]
    rows = [
        Row(replace(point, name=str(i), model=f"model {i // 2}"), {"tpot": 1.5 * i - 20.0})
        for i in range(20)
    ]
    (found,) = intervals(rows)
    assert (found.metric, found.points) == ("tpot", 20)
    kind = found.kinds["dense_queued"]
    ratios = [100 * (1 / (1 + row.errors["tpot"] / 100) - 1) for row in rows]
    assert sum(kind.low <= ratio <= kind.high for ratio in ratios) >= 18
    assert 0.7 <= found.covered <= 1 and kind.covered == found.covered
    assert "| tpot | 20 |" in intervals_markdown([found])
    assert intervals(rows[:5]) == []


def test_kinds_of_runs_have_intervals_of_their_own(table: Path) -> None:
    """One that is three times as far from its systems has one almost three times as wide."""
    point = read_points(table)[0]
    rows = [
        Row(
            replace(point, name=f"{kind} {i}", model=f"model {i} {kind}"),
            {"tpot": factor * (i - 9.5)},
            kind=kind,
        )
        for kind, factor in (("dense_queued", 1.0), ("experts_unqueued", 3.0))
        for i in range(20)
    ]
    (found,) = intervals(rows)
    narrow, wide = found.kinds["dense_queued"], found.kinds["experts_unqueued"]
    assert 2.2 < (wide.high - wide.low) / (narrow.high - narrow.low) < 3.2
    assert narrow.points == wide.points == 20 and min(narrow.covered, wide.covered) >= 0.8
    assert "| tpot | dense models, requests wait | 20 |" in intervals_markdown([found])


def test_runs_are_queued_where_waiting_is_most_of_the_first_token() -> None:
    assert kind_of(60.0, 100.0, experts=False) == "dense_queued"
    assert kind_of(60.0, 100.0, experts=True) == "experts_queued"
    for waited, ttft in ((50.0, 100.0), (None, 100.0), (0.0, None)):
        assert kind_of(waited, ttft, experts=False) == "dense_unqueued"


def test_learnt_error_bars_are_those_that_a_run_reads(table: Path) -> None:
    """A file of the tool's shape has every figure that `system_error` asks for."""
    point = read_points(table)[0]
    errors = {"throughput": 10.0, "ttft": -20.0, "tpot": 5.0}
    rows = [
        Row(replace(point, name=str(i), model=f"model {i}"), {k: v + i for k, v in errors.items()})
        for i in range(20)
    ]
    made = json.loads(error_bars_json(intervals(rows), rows))
    assert made.keys() == learnt().keys() and made["systems"] == 20
    assert made["figures"].keys() == learnt()["figures"].keys() == FIGURES.keys()
    for bar in learnt()["figures"].values():
        assert 0.85 <= bar["covered"] <= 0.95
        assert bar["kinds"].keys() == KINDS.keys()
        for edges in bar["kinds"].values():
            assert 0 < edges["low"] < 1 < edges["high"] and 0.8 <= edges["covered"] <= 1


OWN = "aiconfigurator-core 0.12 x"
FROM_ANOTHER = f"{OWN}, scaled from L40S by data sheets"
FIGURES_OF_A_RUN = {"output_throughput": 1000.0, "mean_ttft_ms": 50.0, "mean_tpot_ms": None}


def error_of(
    by_source: dict[str, float],
    unlike: tuple[str, ...] = (),
    waited_ms: float = 1.0,
    operator: str = "gate_up_proj",
) -> tuple[Any, str]:
    block = {
        **FIGURES_OF_A_RUN,
        "sources": {"by_source": by_source, "operators": [{"operator": operator}]},
        "blame": {"queue": {"mean_ms": waited_ms}},
    }
    return system_error(block, unlike)


def test_error_bars_belong_to_times_of_the_silicon_database() -> None:
    error, reason = error_of({OWN: 0.97, "roofline": 0.03})
    assert error is not None and "mean_tpot_ms" not in error and not reason
    bars = learnt()["figures"]["output_throughput"]["kinds"]
    assert error["output_throughput"]["low"] == pytest.approx(1000 * bars["dense_unqueued"]["low"])
    queued, _ = error_of({OWN: 1.0}, waited_ms=40.0)
    assert (error["kind"], queued["kind"]) == ("dense_unqueued", "dense_queued")
    assert error_of({OWN: 1.0}, operator="moe")[0]["kind"] == "experts_unqueued"
    assert queued["output_throughput"]["low"] == pytest.approx(1000 * bars["dense_queued"]["low"])
    assert error_of({OWN: 0.4, "profile y": 0.6}) == (None, "")


def test_scaled_and_modelled_times_have_no_error_bars() -> None:
    """No published system rested on them to that degree."""
    for other in (FROM_ANOTHER, "roofline"):
        error, reason = error_of({OWN: 0.8, other: 0.2})
        assert error is None and reason.startswith("80.0 % of the times are measured on this")


def test_features_without_a_published_system_have_no_error_bars() -> None:
    error, reason = error_of({OWN: 1.0}, ("pipeline stages", "KV tiers"))
    assert (error, reason) == (None, "no published system has pipeline stages or KV tiers")
