"""Steps at the clock that a card's power limit leaves, against the law by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import llmsim
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import iteration_graph
from llmsim.export.step_graph.run_times import in_run
from llmsim.export.step_graph.streams import POWER_LIMIT
from llmsim.lowering.adjust.sustained_clock import Limited
from llmsim.model import load_hardware
from llmsim.model.hardware import HARDWARE_DIR
from llmsim.rounds import steps_until
from tests.engine.command import build_command, run_case

pytest.importorskip("aiconfigurator_core", reason="the silicon database is not installed")
LIMIT_W, IDLE_W, WINDOW_S = 700, 78, 0.1
PROMPT = 4096
QUEUE = f"synthetic:n=32,rate=100000,input=fixed:{PROMPT},output=fixed:1,seed=3"
NO_HOST = {"launch_ns": 0, "prepare_ns": 0, "prepare_sequence_ns": 0}
LIMITED = Limited(LIMIT_W, IDLE_W, 942, 127_000, 100)


MODEL = "meta-llama/Llama-3.1-8B"


def fields(**instance: Any) -> dict[str, Any]:
    cluster = llmsim.Cluster.build(MODEL, "H200").fields()
    (one,) = cluster["nodes"][0]["instances"]
    one.update(instance)
    one["num_npus"] = one.get("tp_size", 1) * one.get("pp_size", 1)
    cluster["engine"] = {"max_num_batched_tokens": 2 * PROMPT, **NO_HOST}
    return cluster


def ran(cluster: dict[str, Any], load: str = QUEUE, **options: Any) -> Any:
    return llmsim.run(cluster, load, cost_source="silicon", **options)


@pytest.fixture
def weak(tmp_path: Path) -> str:
    """A card whose limit ranks reach that wait for collectives, too."""
    sheet = json.loads((HARDWARE_DIR / "h200_sxm.json").read_text("utf-8"))
    path = tmp_path / "weak.json"
    path.write_text(json.dumps(sheet | {"name": "weak", "aliases": [], "tdp_w": 400}), "utf-8")
    return str(path)


def seconds(steps: Any) -> "np.ndarray[Any, Any]":
    return np.asarray(steps["end_ps"] - steps["start_ps"]) / 1e12


def test_the_data_sheet_says_what_was_recorded() -> None:
    for name in ("H100", "H200"):
        assert Limited.of(load_hardware(name)) == LIMITED
    sheet = load_hardware("H200")
    assert sheet is not None
    for field in ("tdp_w", "idle_w", "switching_fj_per_flop", "traffic_fj_per_byte"):
        assert Limited.of(replace(sheet, **{field: None})) is None
    assert Limited.of(replace(sheet, power_window_ms=None)) is Limited.of(None) is None


def test_a_queue_of_prompts_runs_at_the_clock_of_the_limit() -> None:
    """In the end each step draws the limit: S phi^2 + M + idle x D = limit x D."""
    result = ran(fields())
    full = ran(fields(), disable_term="sustained_clock")
    took, burst = seconds(result.steps), seconds(full.steps)
    assert took[0] == burst[0], "the first step finds a rested card"
    program = result._prepared.lowered.groups[0].program
    batch = [(PROMPT, 0), (PROMPT, 0)]
    switching_j, traffic_j, clocked_s = (one / 1e12 for one in program.device_work(batch))
    last = took[-3]
    clock = clocked_s / (clocked_s + last - burst[-3])
    energy_j = switching_j * clock**2 + traffic_j + IDLE_W * last
    assert 0.9 < clock < 1
    assert energy_j / last == pytest.approx(LIMIT_W, rel=1e-3)
    assert np.all(np.diff(took[1:-1]) > -1e-9), "the clock does not rise in between"


def test_the_mean_power_of_each_step_follows_from_the_one_before() -> None:
    """The same by hand, step by step, with pauses in which the card rests."""
    load = f"synthetic:n=24,rate=14,input=fixed:{PROMPT},output=fixed:1,seed=3"
    result, full = (ran(fields(), load, **off) for off in ({}, {"disable_term": "sustained_clock"}))
    program = result._prepared.lowered.groups[0].program
    step_ps = full._prepared.lowered.groups[0].program.step_ps
    mean_w, until = float(IDLE_W), 0.0
    slowed = kept = 0
    for step in result.steps.itertuples():
        batch = [(PROMPT, 0)] * (int(step.tokens) // PROMPT)
        start, took = step.start_ps / 1e12, (step.end_ps - step.start_ps) / 1e12
        if until:
            pause = start - until
            mean_w = (mean_w * WINDOW_S + IDLE_W * pause) / (WINDOW_S + pause)
        switching_j, traffic_j, clocked_s = (one / 1e12 for one in program.device_work(batch))
        longer = took - step_ps(batch) / 1e12
        clock = clocked_s / (clocked_s + longer)
        energy_j = switching_j * clock**2 + traffic_j + IDLE_W * took
        mean_w = (mean_w * WINDOW_S + energy_j) / (WINDOW_S + took)
        assert mean_w <= LIMIT_W + 0.1
        if longer > 1e-9:
            assert mean_w == pytest.approx(LIMIT_W, rel=1e-3), "no slower than the limit asks"
            slowed += 1
        else:
            kept += 1
        until = step.end_ps / 1e12
    assert slowed and kept


def test_decodes_and_lone_prompts_keep_the_full_clock() -> None:
    load = "synthetic:n=12,rate=2,input=fixed:2048,output=fixed:32,seed=3"
    limited, full = (
        ran(fields(), load, **off) for off in ({}, {"disable_term": "sustained_clock"})
    )
    assert np.array_equal(limited.steps["end_ps"], full.steps["end_ps"])
    assert "slowed_s" not in limited.summary


@pytest.mark.parametrize(
    "instance",
    [{}, {"tp_size": 2}, {"pp_size": 2}, {"pp_size": 2, "tp_size": 2}],
    ids=["alone", "ranks", "stages", "stages of ranks"],
)
def test_all_executors_give_the_same_steps(instance: dict[str, Any], weak: str) -> None:
    cluster = fields(hardware=weak, **instance)
    runs = [ran(cluster, exact=exact) for exact in (False, True)]
    for name in ("schedule_ps", "start_ps", "end_ps"):
        assert np.array_equal(runs[0].steps[name], runs[1].steps[name])
    assert runs[0].summary["slowed_s"] == runs[1].summary["slowed_s"] > 0


def test_the_time_that_the_limit_adds_has_a_source_of_its_own() -> None:
    result = ran(fields())
    sources = result.summary["sources"]["by_source"]
    share = sources[LIMITED.source]
    busy_s = result.summary["sources"]["busy_time_s"]
    assert share == pytest.approx(result.summary["slowed_s"] / busy_s, abs=2e-6)


def test_a_roofline_is_not_slowed() -> None:
    """It is no time of bursts."""
    result = llmsim.run(fields(), QUEUE, cost_source="roofline")
    assert "slowed_s" not in result.summary


@pytest.mark.parametrize("exact", [False, True], ids=["folded", "expanded"])
@pytest.mark.parametrize("instance", [{}, {"tp_size": 2}], ids=["alone", "ranks"])
def test_the_graph_of_a_step_has_what_the_limit_added(
    instance: dict[str, Any], exact: bool, weak: str, tmp_path: Path
) -> None:
    """Another program that runs it takes as long, too."""
    prepared = ran(fields(hardware=weak, **instance), exact=exact)._prepared
    steps = steps_until(prepared.lowered, prepared.workload, prepared.simulation, 0, 6)
    names = []
    for iteration in (0, 6):
        batch = steps.round(iteration)
        graph = iteration_graph(steps.groups, 0, batch)
        ((start_ps, end_ps),) = batch.times_ps
        assert in_run(graph, batch).duration_ps == graph.duration_ps == end_ps - start_ps
        names.append({node.name for node in graph.of_rank(0)})
        folder = tmp_path / f"case{iteration}"
        write_chakra(graph, list(range(graph.ranks)), folder)
        found = run_case(build_command(), folder, tmp_path, rules="default")
        assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps
    assert POWER_LIMIT in names[1]


def test_each_stage_of_a_pipeline_has_what_the_limit_added(weak: str) -> None:
    prepared = ran(fields(hardware=weak, pp_size=2))._prepared
    steps = steps_until(prepared.lowered, prepared.workload, prepared.simulation, 0, 6)
    batch = steps.round(6)
    graph = iteration_graph(steps.groups, 0, batch)
    added = [node.duration_ps for node in graph.nodes if node.name == POWER_LIMIT]
    assert len(added) == 2 and added[0] == added[1] == batch.spans[0].slowed_ps > 0
