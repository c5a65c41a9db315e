"""KV that moves while a step runs is in its graph: layers, whole prompts, recalls and writes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.export.step_graph.nodes import GraphNode
from llmsim.export.step_graph.transfers import KINDS, Window, kv_nodes
from llmsim.rounds import RecordedSteps, members_of_round
from llmsim.simulation.run import native_simulation
from tests.engine.command import build_command, run_case

ROOT = Path(__file__).resolve().parents[2]
PD = "h100_llama31_8b_pd_2p1d.json"
LAYERS, KV_BYTES_PER_TOKEN = 32, 32 * 2 * 8 * 128 * 2
BUSY = "synthetic:n=24,rate=80,input=lognormal:1500:max=4000,output=fixed:40,seed=3"


def prepared(cluster: str | Path, *options: str) -> Prepared:
    given = ["--cluster-config", str(ROOT / "cluster_config" / cluster), *options]
    return prepare(checked_options([*given, "--cost-source", "roofline"]))


def graphs(what: Prepared, group: int) -> Iterator[IterationGraph]:
    """Of all iterations of a group, after the run."""
    options = replace(what.simulation, record_steps=True, record_transfers=True)
    members = members_of_round(what.lowered, group)
    simulation = native_simulation(what.lowered, what.workload, options, recorded=members)
    while not simulation.run(100_000):
        pass
    steps = RecordedSteps(simulation, what.lowered, group)
    for iteration in range(len(steps.worked)):
        yield iteration_graph(what.lowered.groups, group, steps.round(iteration))


def transfers(what: Prepared, group: int) -> list[GraphNode]:
    """The KV of all steps of a group, without the other nodes."""
    options = replace(what.simulation, record_steps=True, record_transfers=True)
    simulation = native_simulation(what.lowered, what.workload, options, recorded=(group,))
    while not simulation.run(100_000):
        pass
    steps = RecordedSteps(simulation, what.lowered, group)
    assert what.lowered.network is not None
    columns, found = simulation.transfers(), []
    for iteration in range(len(steps.worked)):
        window = Window(*steps.times_ps(iteration))
        found += kv_nodes(
            columns, what.lowered.network, (group,), window, (), what.lowered.accounting
        )
    return found


def moved(graph: IterationGraph) -> list[GraphNode]:
    return [node for node in graph.nodes if node.kind in KINDS]


def test_each_layer_leaves_when_its_attention_has_ended() -> None:
    what = prepared(PD, "--dataset", BUSY, "--kv-transfer", "layerwise")
    graph = next(graphs(what, 0))
    sent, by_number = moved(graph), {node.node: node for node in graph.nodes}
    assert {node.kind for node in sent} == {"kv_send"} and len(sent) % LAYERS == 0
    for node in sent:
        (before,) = node.depends_on
        attention = by_number[before]
        assert attention.kind == "attention" and attention.rank == node.rank
        assert node.start_ps == attention.end_ps and node.layer == attention.layer
        assert node.route.startswith("group0.rank0 -> group2.rank0")
    tokens = sum(new for new, _ in graph.items)
    assert tokens * KV_BYTES_PER_TOKEN - sum(node.bytes_moved for node in sent) >= 0
    assert {node.layer for node in sent} == set(range(LAYERS))


def test_what_one_side_sends_the_other_receives() -> None:
    what = prepared(PD, "--dataset", BUSY)
    received = {
        (node.route, node.bytes_moved) for node in transfers(what, 2) if node.kind == "kv_receive"
    }
    sent = {
        (node.route, node.bytes_moved)
        for group in (0, 1)
        for node in transfers(what, group)
        if node.kind == "kv_send"
    }
    assert len(received) > 5 and received & sent
    assert all(" -> group2.rank0" in route for route, _ in received | sent)


def test_recalls_and_writes_of_tiers() -> None:
    shared = str(ROOT / "dataset" / "shared_prefix_200.jsonl")
    what = prepared(
        "h100_multi_shared_prefix_pool.json",
        *("--dataset", shared, "--enable-prefix-sharing", "--num-gpu-blocks-override", "400"),
        *("--max-model-len", "4096", "--prefix-storage", "CPU+CXL"),
    )
    found = transfers(what, 0)
    routes = {(node.kind, node.route) for node in found}
    assert ("kv_write", "npu -> cpu") in routes and ("kv_recall", "cpu -> npu") in routes
    assert all(node.bytes_moved > 0 and node.end_ps > 0 for node in found)


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    """KV takes longer than a step of the decode instance."""
    document = json.loads((ROOT / "cluster_config" / PD).read_text())
    document["link_bw"] = [450, 5]
    path = tmp_path / "thin.json"
    path.write_text(json.dumps(document))
    return path


def test_kv_on_its_way_before_starts_below_0(thin: Path, tmp_path: Path) -> None:
    """The step does not wait for it: traces have the part of it that moves in the step."""
    what = prepared(thin, "--dataset", BUSY)
    graph = next(
        graph for graph in graphs(what, 2) if any(node.start_ps < 0 for node in moved(graph))
    )
    assert max(node.end_ps for node in graph.nodes) >= graph.duration_ps > 0
    write_chakra(graph, [0], tmp_path / "case")
    found = run_case(build_command(), tmp_path / "case", tmp_path, rules="default")
    assert found.exit_code == 0, found.errors
    assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps
    text = as_json(graph, graph.nodes)
    assert {"kv_receive"} <= {node["kind"] for node in json.loads(text)["nodes"]}
    assert "group2.rank0" in as_dot(graph, graph.nodes)
    assert "kv_receive" in as_graphml(graph, graph.nodes)
