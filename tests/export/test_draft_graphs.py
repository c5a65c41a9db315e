"""Graphs of steps with a drafter: the operators of its passes, with the time and the energy of the
run.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmsim.api.preparation.prepare import prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Results
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json
from llmsim.export.step_graph.graph import IterationGraph, Round, iteration_graph
from llmsim.lowering import LoweredDeployment
from llmsim.rounds import RecordedSteps
from llmsim.simulation.run import simulate
from tests.engine.command import build_command, run_case

ROOT = Path(__file__).resolve().parents[2]
TRACE = "synthetic:n=4,rate=50,input=lognormal:300,output=fixed:9,seed=2"
SMALL = "meta-llama/Llama-3.2-1B"
LAUNCH_NS = 60_000
"""Of the host for each kernel: some steps and passes end before theirs have been launched."""
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "draft model, one rank": ({"method": "draft_model", "model": SMALL}, {}),
    "draft model, all ranks": ({"method": "draft_model", "model": SMALL}, {"tp_size": 2}),
    "draft model on each rank": (
        {"method": "draft_model", "model": SMALL, "draft_tensor_parallel_size": 1},
        {"tp_size": 2},
    ),
    "eagle": ({"method": "eagle"}, {"tp_size": 2}),
    "eagle3, two stages": ({"method": "eagle3"}, {"tp_size": 2, "pp_size": 2}),
    "mtp of experts": (
        {"method": "mtp"},
        {"tp_size": 4, "model_name": "deepseek-ai/DeepSeek-V2-Lite"},
    ),
}


def given(folder: Path, name: str, launch_ns: int = LAUNCH_NS) -> list[str]:
    """A run with links that price collectives."""
    speculation, keys = METHODS[name]
    document = json.loads((ROOT / "cluster_config/single_node_power_instance.json").read_text())
    (one,) = document["nodes"][0]["instances"]
    one.update(keys)
    one["fused_moe_ns"] = launch_ns
    one["num_npus"] = one.get("tp_size", 1) * one.get("pp_size", 1)
    path = folder / "cluster.json"
    path.write_text(json.dumps({**document, "link_bw": 50}), encoding="utf-8")
    section = {"num_speculative_tokens": 3, "acceptance_rate": 0.7, **speculation}
    options = ["--cluster-config", str(path), "--dataset", TRACE, "--cost-source", "roofline"]
    return [*options, "--launch-ns", str(launch_ns), "--speculative-config", json.dumps(section)]


def ran(folder: Path, name: str, launch_ns: int = LAUNCH_NS) -> tuple[LoweredDeployment, Results]:
    prepared = prepare(checked_options(given(folder, name, launch_ns)))
    options = replace(
        prepared.simulation, record_steps=True, record_rounds=True, record_transfers=True
    )
    return prepared.lowered, simulate(prepared.lowered, prepared.workload, options)


def graphs(lowered: LoweredDeployment, results: Results) -> list[tuple[Round, IterationGraph]]:
    assert results.simulation is not None
    steps = RecordedSteps(results.simulation, lowered, 0)
    rounds = [steps.round(iteration) for iteration in range(len(steps.worked))]
    return [(one, iteration_graph(lowered.groups, 0, one)) for one in rounds]


@pytest.mark.parametrize("name", METHODS)
def test_passes_have_the_time_and_the_energy_of_the_run(name: str, tmp_path: Path) -> None:
    lowered, results = ran(tmp_path, name)
    assert results.energy is not None
    group = lowered.groups[0]
    stages = group.layout.pp
    total_aj = 0
    for batch, graph in graphs(lowered, results):
        ((start_ps, end_ps),) = batch.times_ps
        if stages == 1:  # else a stage may wait for the batch before
            assert graph.duration_ps == end_ps - start_ps - group.engine.host_gap_ps
        drafts = [node for node in graph.nodes if node.name.startswith("draft ")]
        ranks = range(graph.ranks - graph.ranks // stages, graph.ranks)
        assert {node.rank for node in drafts} == set(ranks)
        assert len({node.part // 3 for node in drafts}) == 3  # passes
        (energy,) = graph.energy
        assert energy is not None
        own_aj = sum(node.energy_aj for node in graph.nodes)
        assert own_aj + energy.waiting_aj == energy.total_aj
        total_aj += energy.total_aj
    of_group = results.energy.groups[0]
    assert of_group is not None
    assert total_aj == of_group.active_aj + of_group.traffic_aj


@pytest.mark.parametrize("launch_ns", [0, LAUNCH_NS])
@pytest.mark.parametrize("name", METHODS)
def test_the_engine_takes_as_long_for_the_traces(name: str, launch_ns: int, tmp_path: Path) -> None:
    """Also where the host's launches decide when the drafter begins, or the next pass."""
    lowered, results = ran(tmp_path, name, launch_ns)
    for place in (0, 3):
        _, graph = graphs(lowered, results)[place]
        launches = [node for node in graph.nodes if node.name.endswith("launches")]
        passes = len({node.part for node in graph.nodes if node.name == "draft launches"})
        drafting = graph.ranks // lowered.groups[0].layout.pp
        assert len(launches) == (graph.ranks + drafting * passes if launch_ns else 0)
        folder = tmp_path / f"case{place}"
        write_chakra(graph, list(range(graph.ranks)), folder)
        found = run_case(build_command(), folder, tmp_path, rules="default")
        assert found.exit_code == 0, found.errors
        assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps


def test_every_format_has_the_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lowered, results = ran(tmp_path, "eagle")
    _, graph = graphs(lowered, results)[3]
    document = json.loads(as_json(graph, graph.nodes))
    assert "draft draft_fc" in {node["name"] for node in document["nodes"]}
    assert any(item.get("drafts") == 3 for item in document["items"])
    for text in (as_dot(graph, graph.nodes), as_graphml(graph, graph.nodes)):
        assert "draft draft_fc" in text
    options = ["graph", "step", "--graph", str(tmp_path / "step.json"), "--iteration", "3"]
    assert main([*options, *given(tmp_path, "eagle")]) == 0
    assert f"{graph.duration_ps / 1e6:.1f} us" in capsys.readouterr().out
