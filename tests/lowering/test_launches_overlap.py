"""The host prepares and launches a step from when it has the batch, while the step before runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import llmsim
from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_json
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.export.step_graph.run_times import in_run
from llmsim.rounds import RecordedSteps, round_of
from llmsim.simulation.run import simulate
from tests.engine.command import build_command, run_case

MODEL = "meta-llama/Llama-3.2-1B"
LOAD = "synthetic:n=6,rate=40,input=lognormal:400,output=fixed:6,seed=3"
PREPARE_NS, SEQUENCE_NS, LAUNCH_NS = 900_000, 50_000, 100_000
"""Launching a prompt takes 4.9 ms, longer than its kernels do."""
HOST = {"prepare_ns": PREPARE_NS, "prepare_sequence_ns": SEQUENCE_NS, "launch_ns": LAUNCH_NS}
NO_HOST = dict.fromkeys(HOST, 0)


def preparing_ps(sequences: int) -> int:
    return 1000 * (PREPARE_NS + sequences * SEQUENCE_NS)


def fields(**instance: Any) -> dict[str, Any]:
    cluster = llmsim.Cluster.build(MODEL, "H200").fields()
    (one,) = cluster["nodes"][0]["instances"]
    one.update(instance)
    one["num_npus"] = one.get("tp_size", 1) * one.get("pp_size", 1)
    cluster["engine"] = dict(HOST)
    return cluster


def ran(cluster: dict[str, Any], **options: Any) -> Any:
    return llmsim.run(cluster, LOAD, cost_source="roofline", **options)


def test_the_device_waits_for_whichever_is_later() -> None:
    """Start and end of each step follow from when its batch was formed and the steps before."""
    result = ran(fields())
    steps = result.steps
    without = ran(fields() | {"engine": NO_HOST})
    assert without.summary["graphs"]["launching_s"] == 0
    launched = free = hidden = late = 0
    for step in steps.itertuples():
        launches = 1 if step.prefill_tokens == 0 else 3 * 16 + 1
        assert step.prefill_tokens <= 512, "larger prompts have no graph"
        prepared = max(int(step.schedule_ps), launched) + preparing_ps(int(step.sequences))
        assert step.start_ps == max(free, prepared)
        hidden += free > prepared
        launched = prepared + launches * LAUNCH_NS * 1000
        assert step.end_ps >= launched
        late += step.end_ps == launched
        free = int(step.end_ps)
    assert hidden > 3, "a decode is prepared behind a prompt"
    assert late > 3, "a prompt ends when it has been launched"
    assert steps["sequences"].max() > 1
    assert result.summary["graphs"]["launching_s"] > 0


@pytest.mark.parametrize(
    "instance",
    [{}, {"tp_size": 2}, {"pp_size": 2}, {"pp_size": 2, "tp_size": 2}],
    ids=["alone", "ranks", "stages", "stages of ranks"],
)
def test_expanded_steps_take_as_long(instance: dict[str, Any]) -> None:
    folded, expanded = (ran(fields(**instance), exact=exact).steps for exact in (False, True))
    for name in ("schedule_ps", "start_ps", "end_ps"):
        assert np.array_equal(folded[name], expanded[name])


def lone_graph(instance: dict[str, Any], *, prepares: bool) -> IterationGraph:
    """Of the first step, which has one sequence, as if nothing ran before."""
    cluster = fields(**instance)
    if not prepares:
        cluster["engine"] |= {"prepare_ns": 0, "prepare_sequence_ns": 0}
    prepared = ran(cluster)._prepared
    batch = round_of(prepared.lowered, prepared.workload, prepared.simulation, 0, 0)
    return iteration_graph(prepared.lowered.groups, 0, batch)


@pytest.mark.parametrize("instance", [{}, {"tp_size": 2}], ids=["alone", "ranks"])
def test_a_lone_step_has_been_prepared_when_it_begins(
    instance: dict[str, Any], tmp_path: Path
) -> None:
    """Its graph is that of a step that needs no preparation, with the host's node before it."""
    plain, graph = (lone_graph(instance, prepares=prepares) for prepares in (False, True))
    ahead = [node for node in graph.nodes if node.name == "preparation"]
    assert [(one.rank, one.start_ps, one.end_ps) for one in ahead] == [
        (rank, -preparing_ps(1), 0) for rank in range(graph.ranks)
    ]
    rest = [node for node in graph.nodes if node.name != "preparation"]
    both = [
        [(node.rank, node.name, node.layer, node.start_ps, node.duration_ps) for node in nodes]
        for nodes in (rest, plain.nodes)
    ]
    assert both[0] == both[1]
    assert graph.duration_ps == plain.duration_ps
    found = json.loads(as_json(graph, graph.nodes))["nodes"]
    assert min(node["start_ps"] for node in found) == -preparing_ps(1)
    write_chakra(graph, list(range(graph.ranks)), tmp_path / "case")
    traced = [node.name for node in read_trace(tmp_path / "case" / "workload.0.et")]
    assert len(traced) == len(rest) // graph.ranks
    assert "launches 0" in traced and "preparation 0" not in traced
    ended = run_case(build_command(), tmp_path / "case", tmp_path, rules="default")
    assert max(end or 0 for end in ended.finish_ps()) == graph.duration_ps


def test_a_later_stage_is_prepared_inside_of_a_lone_step() -> None:
    """Its host begins when the host of the stage before has launched."""
    graph = lone_graph({"pp_size": 2}, prepares=True)
    first, second = (node for node in graph.nodes if node.name == "preparation")
    (launched, _) = (node for node in graph.nodes if node.name == "launches")
    assert (first.start_ps, first.end_ps) == (-preparing_ps(1), 0)
    assert second.start_ps == launched.end_ps > 0
    assert second.duration_ps == PREPARE_NS * 1000, "sequences are scheduled once"
    begins = [node.start_ps for node in graph.of_rank(0) if node.kind != "launch"]
    assert min(begins) == 0


def lockstep() -> dict[str, Any]:
    cluster = fields(model_name="Qwen/Qwen3-30B-A3B", dp_group="one")
    (one,) = cluster["nodes"][0]["instances"]
    cluster["nodes"][0]["instances"] = [one, dict(one)]
    cluster["nodes"][0]["num_instances"] = 2
    return cluster


def test_members_of_a_lockstep_group_have_hosts_of_their_own() -> None:
    folded, expanded = (ran(lockstep(), exact=exact).steps for exact in (False, True))
    assert set(folded["group"]) == {0, 1}
    for name in ("group", "schedule_ps", "start_ps", "end_ps"):
        assert np.array_equal(folded[name], expanded[name])
    first = folded[folded["group"] == 0].iloc[0]
    assert first["start_ps"] == first["schedule_ps"] + preparing_ps(1)


@pytest.mark.parametrize("instance", [{}, {"pp_size": 2, "tp_size": 2}], ids=["alone", "stages"])
def test_the_engine_takes_as_long_for_exported_steps(
    instance: dict[str, Any], tmp_path: Path
) -> None:
    """Launches that began before their step are in its graph, as in the run."""
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(fields(**instance)), encoding="utf-8")
    options = ["--cluster-config", str(path), "--dataset", LOAD, "--cost-source", "roofline"]
    prepared = prepare(checked_options(options))
    recording = replace(
        prepared.simulation, record_steps=True, record_rounds=True, record_transfers=True
    )
    results = simulate(prepared.lowered, prepared.workload, recording)
    assert results.simulation is not None
    steps = RecordedSteps(results.simulation, prepared.lowered, 0)
    before = 0
    for iteration in range(8):
        batch = steps.round(iteration)
        graph = in_run(iteration_graph(prepared.lowered.groups, 0, batch), batch)
        launches = [node for node in graph.nodes if node.kind == "launch"]
        assert {node.name for node in launches} == {"preparation", "launches"}
        before += min(node.start_ps for node in launches) < 0
        ((start_ps, end_ps),) = batch.times_ps
        assert graph.duration_ps == end_ps - start_ps
        folder = tmp_path / f"case{iteration}"
        write_chakra(graph, list(range(graph.ranks)), folder)
        found = run_case(build_command(), folder, tmp_path, rules="default")
        assert found.exit_code == 0, found.errors
        assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps
    assert before > 0


def test_many_decodes_wait_for_the_host_and_the_term_takes_its_time_away() -> None:
    """Two hundred decodes of a small model: steps last as long as the host works on each."""
    load = "synthetic:n=200,rate=100000,input=fixed:16,output=fixed:40,seed=1"
    options = {"cost_source": "roofline"}
    steps = llmsim.run(fields(), load, **options).steps
    full = steps[(steps["sequences"] == 200) & (steps["prefill_tokens"] == 0)]
    assert len(full) > 20
    cycle_ps = preparing_ps(200) + LAUNCH_NS * 1000
    assert set(np.diff(full["start_ps"])[1:]) == {cycle_ps}
    ablated = llmsim.run(fields(), load, disable_term="host_sequence", **options).steps
    assert ablated["end_ps"].max() < full["start_ps"].max()
