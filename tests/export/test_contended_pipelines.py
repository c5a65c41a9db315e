"""Graphs of pipelines on shared links: when each stage really ran, and who was on its links."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

import llmsim
from llmsim.cli import main
from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json, to_networkx
from llmsim.export.step_graph.graph import IterationGraph, Round, iteration_graph
from llmsim.export.step_graph.run_times import in_run, lost_in_exchanges_ps
from llmsim.rounds.recorded import recorded_run
from llmsim.rounds.shared_links import shared_links
from tests.lowering.network.test_groups_share_links import SPREAD, cluster

POWER = json.loads(
    (
        Path(__file__).resolve().parents[2] / "cluster_config/single_node_power_instance.json"
    ).read_text("utf-8")
)["nodes"][0]["power"]
TRACE = "synthetic:n=14,rate=60,input=lognormal:700:max=3000,output=fixed:8,seed=5"
PIPELINED = {"tp_size": 2, "pp_size": 2}
BESIDE = ("send", "receive", "launch")
"""Kinds of nodes that keep no device busy."""


def document() -> dict[str, object]:
    found = cluster(*SPREAD, **PIPELINED)
    power = {name: part for name, part in POWER.items() if name != "dram"}
    found["nodes"][0]["power"] = {**power, "npu": {"L40S": next(iter(POWER["npu"].values()))}}
    return found


def check_times(batch: Round, graph: IterationGraph, gap_ps: int) -> None:
    """The graph is as long as the step, and no rank does two things at once."""
    ((start_ps, end_ps),) = batch.times_ps
    assert graph.duration_ps == end_ps - start_ps - gap_ps
    assert batch.spans[0].begin_ps(0) == start_ps
    for rank in range(graph.ranks):
        mine = [node for node in graph.of_rank(rank) if node.kind not in BESIDE]
        stage_ps = batch.spans[0].begin_ps(rank // 2)
        assert mine[0].start_ps == stage_ps - start_ps
        for before, after in pairwise(mine):
            assert before.end_ps == after.start_ps


@pytest.mark.parametrize("ahead", [True, False])
def test_graphs_of_pipelines_have_the_times_of_the_run(ahead: bool) -> None:
    options = {"async_scheduling": ahead, "request_routing_policy": "RR"}
    result = llmsim.run(document(), TRACE, **options)
    prepared = result._prepared
    groups = prepared.lowered.groups
    total_ps = longer = waits = 0
    for group in (0, 1):
        steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, group)
        gap_ps = groups[group].engine.host_gap_ps
        for iteration in range(len(steps.worked)):
            batch = steps.round(iteration)
            alone = iteration_graph(groups, group, batch)
            graph = in_run(alone, batch)
            check_times(batch, graph, gap_ps)
            lost_ps = lost_in_exchanges_ps(alone, batch)
            total_ps += lost_ps
            longer += lost_ps > 0
            waits += graph.duration_ps > alone.duration_ps + lost_ps
            found = shared_links(batch, alone, groups, gap_ps)
            assert sum(one.lost_ps for one in found) == lost_ps
            assert {name for one in found for name in one.others} <= {
                f"group {1 - group}",
                "its other steps",
            }
            (energy,) = graph.energy
            assert energy is not None and energy.waiting_aj >= 0
            own_aj = sum(node.energy_aj for node in graph.nodes)
            assert own_aj + energy.waiting_aj == energy.total_aj
    assert longer > 4 and waits > 0
    assert total_ps == round(result.summary["communication"]["lost_s"] * 1e12)


def test_every_format_and_the_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps(document()), encoding="utf-8")
    prepared = llmsim.run(document(), TRACE, request_routing_policy="RR")._prepared
    steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, 1)
    groups = prepared.lowered.groups
    graph = in_run(iteration_graph(groups, 1, steps.round(2)), steps.round(2))
    given = ["--cluster-config", str(path), "--dataset", TRACE, "--request-routing-policy", "RR"]
    chosen = ["graph", "step", "-v", "--group", "1", "--iteration", "2"]
    for name, text in (
        ("step.json", as_json(graph, graph.nodes)),
        ("step.dot", as_dot(graph, graph.nodes)),
        ("step.graphml", as_graphml(graph, graph.nodes)),
    ):
        assert main([*chosen, "--graph", str(tmp_path / name), *given]) == 0
        assert (tmp_path / name).read_text() == text
        assert f"{graph.duration_ps / 1e6:.1f} us" in capsys.readouterr().out
    longest = max(
        data["start_us"] + data["duration_us"] for _, data in to_networkx(graph).nodes(data=True)
    )
    assert longest == pytest.approx(graph.duration_ps / 1e6, rel=1e-12)
    assert main([*chosen, "--graph", str(tmp_path / "traces"), *given]) == 0
    out = capsys.readouterr().out
    assert "the step lost" in out and "with group 0" in out
