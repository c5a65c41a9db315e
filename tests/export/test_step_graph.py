"""Graphs of iterations: what they hold, what other tools read, and the strict executor's time for
exported traces.
"""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from llmsim.api.preparation.prepare import prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Workload
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import in_step, rounded_ends_ps, rounded_us, write_chakra
from llmsim.export.step_graph.formats import as_dot, to_networkx
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.export.step_graph.nodes import LAUNCH, GraphNode
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.rounds import round_of
from llmsim.routing import parse_router
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import simulate
from llmsim.workload import load_dataset
from tests.engine.command import build_command, run_case
from tests.lowering.clusters import cluster, lowered, model

ROOT = Path(__file__).resolve().parents[2]
LLAMA = "meta-llama/Llama-3.1-8B"
DATASET = "synthetic:n=6,rate=20,input=300,output=20,seed=1"


def arguments(folder: Path, tp: int, model: str = LLAMA) -> list[str]:
    """A run of one instance on `tp` devices, priced by the data sheet and the links."""
    cluster = json.loads((ROOT / "cluster_config" / "h100_llama31_8b.json").read_text())
    cluster["nodes"][0]["instances"][0].update({"model_name": model, "num_npus": tp, "tp_size": tp})
    path = folder / "cluster.json"
    path.write_text(json.dumps(cluster))
    return ["--cluster-config", str(path), "--dataset", DATASET, "--cost-source", "roofline"]


def exported(
    folder: Path, tp: int, iteration: int, model: str = LLAMA
) -> tuple[IterationGraph, LoweredGroup]:
    """The graph of an iteration, also written as Chakra to the folder `case`; and the group that it
    is of.
    """
    prepared = prepare(checked_options(arguments(folder, tp, model)))
    group = prepared.lowered.groups[0]
    batch = round_of(prepared.lowered, prepared.workload, prepared.simulation, 0, iteration)
    graph = iteration_graph(prepared.lowered.groups, 0, batch)
    write_chakra(graph, list(range(graph.ranks)), folder / "case")
    return graph, group


@pytest.mark.parametrize(("tp", "model"), [(1, LLAMA), (4, LLAMA), (1, "openai/gpt-oss-20b")])
@pytest.mark.parametrize("iteration", [0, 5])
def test_the_graph_lasts_as_long_as_the_step(
    tmp_path: Path, tp: int, model: str, iteration: int
) -> None:
    graph, group = exported(tmp_path, tp, iteration, model)
    assert graph.duration_ps == group.program.step_ps(list(graph.items)) - group.engine.host_gap_ps
    assert {node.rank for node in graph.nodes} == set(range(tp))
    for rank in range(tp):
        assert [(n.name, n.layer, n.duration_ps) for n in graph.of_rank(rank)] == [
            (n.name, n.layer, n.duration_ps) for n in graph.of_rank(0)
        ]
    layers = sum(node.name.startswith("attention") for node in graph.of_rank(0))
    assert layers == group.model.num_layers


def test_the_system_file_has_the_memory_of_the_devices(tmp_path: Path) -> None:
    exported(tmp_path, 4, 0)
    given = json.loads((tmp_path / "cluster.json").read_text())["nodes"][0]["instances"][0][
        "npu_mem"
    ]["mem_bw"]
    assert (
        json.loads((tmp_path / "case" / "system.json").read_text())["local-mem-bw"] == given != 1600
    )


def test_flops_are_the_models(tmp_path: Path) -> None:
    graph, group = exported(tmp_path, 1, 0)
    tokens = graph.padded_tokens
    matrices = sum(
        op.flops_per_token * op.repeat
        for op in group.operators
        if op.kind == "gemm" and op.part == "layer"
    )
    assert sum(n.flops for n in graph.nodes if n.name.endswith("_proj")) == matrices * tokens


def strict_us(folder: Path, executable: Path, scratch: Path) -> float:
    found = run_case(executable, folder, scratch)
    assert found.exit_code == 0, found.errors
    ends = [end or 0 for end in found.finish_ns()]
    busy = ends[:1] if idle_rank(folder) else ends
    assert len(set(busy)) == 1 and max(ends) == busy[0]
    return busy[0] / 1000


def idle_rank(folder: Path) -> bool:
    """Whether the traces are one device's, beside which one has nothing to do."""
    return [node.name for node in read_trace(folder / "workload.1.et")] == ["idle"]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_strict_executor_takes_as_long_as_the_step_program(tmp_path: Path, tp: int) -> None:
    """Both by whole microseconds; the program's collectives by what the strict rules say of each
    alone.
    """
    executable = build_command()
    graph, _ = exported(tmp_path, tp, 3)
    whole = strict_us(tmp_path / "case", executable, tmp_path)
    expected, alone = 0.0, {}
    for node in graph.of_rank(0):
        if node.kind == LAUNCH:
            continue  # beside the others, and shorter
        if not (node.kind == "collective" and node.on_links):
            expected += rounded_us(node) or 0.001  # 0 counts as 1 ns there
            continue
        key = (node.collective, node.bytes_moved)
        if key not in alone:
            alike = [
                n
                for n in graph.nodes
                if (n.layer, n.name, n.part) == (node.layer, node.name, node.part)
            ][:tp]
            single = replace(graph, nodes=tuple(n.changed(depends_on=()) for n in alike))
            write_chakra(single, list(range(tp)), tmp_path / f"one{len(alone)}")
            alone[key] = strict_us(tmp_path / f"one{len(alone)}", executable, tmp_path)
        expected += alone[key]
    assert whole == pytest.approx(expected, abs=1e-6 * len(graph.nodes))
    assert len(alone) == (0 if tp == 1 else 2)


@pytest.mark.parametrize("rules", ["default", "strict"])
@pytest.mark.parametrize("model", [LLAMA, "openai/gpt-oss-20b", "Qwen/Qwen3-8B"])
@pytest.mark.parametrize("iteration", [0, 4, 9])
def test_a_step_of_one_device_runs_as_documented(
    tmp_path: Path, model: str, iteration: int, rules: str
) -> None:
    """As long as the graph to the picosecond; under strict rules in whole microseconds, and 1 ns
    for an operator of none.
    """
    executable = build_command()
    graph, _ = exported(tmp_path, 1, iteration, model)
    found = run_case(executable, tmp_path / "case", tmp_path, rules=rules)
    assert found.exit_code == 0, found.errors
    whole_us = [rounded_us(node) for node in graph.nodes if node.kind != LAUNCH]
    assert sum(rounded_us(node) for node in graph.nodes if node.kind == LAUNCH) < sum(whole_us)
    if rules == "default":
        assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps
    else:
        assert max(end or 0 for end in found.finish_ns()) == sum(us * 1000 or 1 for us in whole_us)
    assert max(rounded_ends_ps(in_step(graph)).values()) == sum(whole_us) * 10**6


DOMAINS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tp2": ({}, {"tp_size": 2}),
    "tp4_dcp2": ({"kv_heads": 2}, {"tp_size": 4, "decode_context_parallel_size": 2}),
    "tp2_sp": ({}, {"tp_size": 2, "enable_sequence_parallelism": True}),
    "pcp2": ({"kv_heads": 2}, {"prefill_context_parallel_size": 2}),
    "pp2": ({}, {"pp_size": 2}),
    "tp2_pp3": ({}, {"tp_size": 2, "pp_size": 3}),
    "dp2": ({"experts": 8}, {"dp_group": "a"}),
    "dp3_deepep": ({"experts": 9}, {"dp_group": "a", "all2all_backend": "deepep_low_latency"}),
    "dp2_tp2_cut": ({"experts": 8}, {"dp_group": "a", "tp_size": 2, "ep_size": 2}),
    "dp2_tp2": ({"experts": 8}, {"dp_group": "a", "tp_size": 2}),
    "dp2_pp2": ({"experts": 8, "dense_first": 2}, {"dp_group": "a", "pp_size": 2}),
    "attn1x2_ffn2": ({}, {"attn_dp_size": 2, "ffn_tp_size": 2}),
}
FEW = "synthetic:n=3,rate=100000,input=lognormal:80,output=6,seed=5"
"""So few requests that no step starts before the one before has ended."""


def domain(
    folder: Path, name: str, experts: str = "BALANCED"
) -> tuple[LoweredDeployment, Workload, SimulationOptions]:
    shape, keys = DOMAINS[name]
    members = int(name[2]) if "dp_group" in keys else 1
    # The strict rules are compared with nodes of devices alone.
    document = cluster(
        model(folder, **shape), members=members, async_scheduling=False, launch_ns=0, **keys
    )
    deployment = lowered(document, experts=experts)
    workload = load_dataset(FEW, known_models=deployment.models, granularity=deployment.granularity)
    return deployment, workload, SimulationOptions(router=parse_router("RR"), record_steps=True)


def domain_graph(
    folder: Path, name: str, iteration: int, experts: str = "BALANCED"
) -> IterationGraph:
    deployment, workload, options = domain(folder, name, experts)
    return iteration_graph(
        deployment.groups, 0, round_of(deployment, workload, options, 0, iteration)
    )


@pytest.mark.parametrize("experts", ["BALANCED", "ZIPF:s=1.2"])
@pytest.mark.parametrize("name", [name for name in DOMAINS if name != "dp2_pp2"])
def test_the_graph_of_a_domain_lasts_as_long_as_its_steps(
    tmp_path: Path, name: str, experts: str
) -> None:
    """Of every member, with its waiting for the others. Ranks with stages have dummies in flight
    beside each step, for which its second stage waits.
    """
    deployment, workload, options = domain(tmp_path, name, experts)
    results = simulate(deployment, workload, options)
    steps = {column: np.asarray(values) for column, values in results.steps.items()}
    for iteration in (0, 2):
        graph = domain_graph(tmp_path, name, iteration, experts)
        working = steps["tokens"][steps["group"] == 0] > 0
        place = int(np.flatnonzero(working)[iteration])
        for member, end_ps in zip(graph.members, graph.member_ends_ps(), strict=True):
            mine = steps["group"] == member
            took = int(steps["end_ps"][mine][place] - steps["start_ps"][mine][place])
            assert end_ps == took - deployment.groups[member].engine.host_gap_ps


@pytest.mark.parametrize("name", [name for name in DOMAINS if name != "dp3_deepep"])
def test_the_engine_takes_as_long_for_the_traces(tmp_path: Path, name: str) -> None:
    """Default rules: to the picosecond. Strict rules: by their units, but for 1 ns of rounding for
    each hop and 10 ns of endpoint in groups that are not all ranks.
    """
    executable = build_command()
    graph = domain_graph(tmp_path, name, 1)
    case = tmp_path / "case"
    write_chakra(graph, list(range(graph.ranks)), case)
    default = run_case(executable, case, tmp_path, rules="default")
    assert default.exit_code == 0, default.errors
    ends = [end or 0 for end in default.finish_ps()]
    assert max(ends) == graph.duration_ps
    found = run_case(executable, case, tmp_path)
    assert found.exit_code == 0, found.errors
    found_ns = max(end or 0 for end in found.finish_ns())
    alone: dict[tuple[object, ...], int] = {}
    expected = replace(
        graph, nodes=tuple(strict(node, graph, alone, executable, tmp_path) for node in graph.nodes)
    )
    # Under strict rules others wait whole microseconds.
    meetings = sum(len(node.depends_on) > 1 for node in graph.of_rank(0))
    spare_ns = 2 * len(graph.of_rank(0)) + 1 + meetings * 1000
    assert found_ns * 1000 == pytest.approx(
        max(rounded_ends_ps(expected).values()), abs=spare_ns * 1000
    )


def strict(
    node: GraphNode,
    graph: IterationGraph,
    alone: dict[tuple[object, ...], int],
    executable: Path,
    folder: Path,
) -> GraphNode:
    """The node with the time that strict rules give it alone; a message by hand: 50 GB/s and 2 us,
    as the file of the network says it to readers whose GB have 2^30 bytes.
    """
    if node.kind == "send":
        return node.changed(duration_ps=int(2000 + node.bytes_moved / 50) * 1000)
    if node.kind != "collective" or not node.on_links:
        return node
    key = (node.collective, node.bytes_moved, len(node.group))
    if key not in alone:
        nothing = graph.nodes[0].changed(
            kind="compute", on_links=False, duration_ps=0, depends_on=(), group=()
        )
        turns = {rank: nothing.changed(rank=rank) for rank in range(graph.ranks)}
        alike = [
            n.changed(depends_on=())
            for n in graph.nodes
            if (n.name, n.group) == (node.name, node.group)
        ]
        turns |= {n.rank: n for n in reversed(alike)}
        case = folder / f"alone{len(alone)}"
        write_chakra(replace(graph, nodes=tuple(turns.values())), list(range(graph.ranks)), case)
        found = run_case(executable, case, folder)
        assert found.exit_code == 0, found.errors
        alone[key] = max(end or 0 for end in found.finish_ns()) * 1000
    return node.changed(duration_ps=alone[key])


def test_a_message_joins_two_stages(tmp_path: Path) -> None:
    graph = domain_graph(tmp_path, "tp2_pp3", 0)
    sent = [node for node in graph.nodes if node.kind == "send"]
    received = {node.group: node for node in graph.nodes if node.kind == "receive"}
    assert len(sent) == len(received) == 2 * 2
    for node in sent:
        assert node.group == (node.rank, node.rank + 2)
        assert node.node in received[node.group].depends_on
    text = as_dot(graph, graph.nodes)
    assert text.count("style=dashed") >= 4


def test_dot_has_one_box_per_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.dot"
    assert (
        main(
            [
                "graph",
                "step",
                "--graph",
                str(out),
                "--iteration",
                "2",
                "--rank",
                "0",
                *arguments(tmp_path, 2),
            ]
        )
        == 0
    )
    text = out.read_text()
    boxes = [line for line in text.splitlines() if "fillcolor" in line]
    assert len(boxes) == 19
    assert sum("preparation" in box or "launches" in box for box in boxes) == 2
    assert any(
        "qkv_proj x 32" in box and "H100 0: " in box and " us, " in box and "B" in box
        for box in boxes
    )
    assert (
        "19 nodes" not in capsys.readouterr().out
    )  # it says what was in the iteration: all layers
    assert main(["graph", "step", "-g", str(out), "--every-layer", *arguments(tmp_path, 2)]) == 0
    assert len([line for line in out.read_text().splitlines() if "fillcolor" in line]) > 2 * 32 * 10


def test_graphml_and_json(tmp_path: Path) -> None:
    for ending in ("graphml", "json"):
        assert (
            main(
                [
                    "graph",
                    "step",
                    "-g",
                    str(tmp_path / f"step.{ending}"),
                    "-i",
                    "1",
                    *arguments(tmp_path, 2),
                ]
            )
            == 0
        )
    tree = ElementTree.parse(tmp_path / "step.graphml")
    space = "{http://graphml.graphdrawing.org/xmlns}"
    nodes, edges = tree.findall(f".//{space}node"), tree.findall(f".//{space}edge")
    document = json.loads((tmp_path / "step.json").read_text())
    assert len(nodes) == len(document["nodes"])
    assert len(edges) == len(nodes) - 2  # two chains, which begin with what the host does
    assert document["items"][0]["tokens"] == 1 or document["items"][0]["tokens"] == 300
    assert {"name", "rank", "duration_ps", "bytes_moved", "source"} <= set(document["nodes"][0])


def test_networkx(tmp_path: Path) -> None:
    graph, _ = exported(tmp_path, 2, 1)
    found = to_networkx(graph)
    assert networkx.is_directed_acyclic_graph(found)
    assert found.number_of_nodes() == len(graph.nodes)
    path = networkx.dag_longest_path_length(found, weight=None, default_weight=1)
    assert path == len(graph.of_rank(0)) - 2  # launches are beside the others


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["--iteration", "100000"], "there is no iteration 100000"),
        (["--group", "3"], "--group is 3"),
        (["--rank", "9"], '--rank is "9"'),
        (["-g", "step.png"], "must end in"),
    ],
)
def test_what_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], expected: str
) -> None:
    given = ["graph", "step", "-g", str(tmp_path / "x.dot"), *changes, *arguments(tmp_path, 2)]
    assert main(given) == 2
    assert expected in capsys.readouterr().err
