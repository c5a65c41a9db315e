"""Graphs of iterations: what they hold, what other tools read, and the strict executor's time for exported traces."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from llmsim.cli import main
from llmsim.cli.prepare import checked_options, prepare
from llmsim.export.step_chakra import rounded_us, write_chakra
from llmsim.export.step_formats import to_networkx
from llmsim.export.step_graph import IterationGraph, iteration_graph
from llmsim.lowering import LoweredGroup
from llmsim.simulate import batch_of
from tests.engine.command import build_command, run_case

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


def exported(folder: Path, tp: int, iteration: int, model: str = LLAMA) -> tuple[IterationGraph, LoweredGroup]:
    """The graph of an iteration, also written as Chakra to the folder `case`; and the group that it is of."""
    prepared = prepare(checked_options(arguments(folder, tp, model)))
    group = prepared.lowered.groups[0]
    items = batch_of(prepared.lowered, prepared.workload, prepared.simulation, 0, iteration)
    graph = iteration_graph(group, iteration, items)
    write_chakra(graph, list(range(graph.ranks)), folder / "case", prepared.deployment.link)
    return graph, group


@pytest.mark.parametrize(("tp", "model"), [(1, LLAMA), (4, LLAMA), (1, "openai/gpt-oss-20b")])
@pytest.mark.parametrize("iteration", [0, 5])
def test_the_graph_lasts_as_long_as_the_step(tmp_path: Path, tp: int, model: str, iteration: int) -> None:
    graph, group = exported(tmp_path, tp, iteration, model)
    assert graph.duration_ps == group.program.step_ps(list(graph.items)) - group.engine.host_gap_ps
    assert {node.rank for node in graph.nodes} == set(range(tp))
    for rank in range(tp):
        assert [(n.name, n.layer, n.duration_ps) for n in graph.of_rank(rank)] == [
            (n.name, n.layer, n.duration_ps) for n in graph.of_rank(0)
        ]
    layers = sum(node.name.startswith("attention") for node in graph.of_rank(0))
    assert layers == group.model.num_layers


def test_flops_are_the_models(tmp_path: Path) -> None:
    graph, group = exported(tmp_path, 1, 0)
    tokens = graph.padded_tokens
    matrices = sum(op.flops_per_token * op.repeat for op in group.operators if op.kind == "gemm" and op.part == "layer")
    assert sum(n.flops for n in graph.nodes if n.name.endswith("_proj")) == matrices * tokens


def strict_us(folder: Path, executable: Path, scratch: Path) -> float:
    found = run_case(executable, folder, scratch)
    assert found.exit_code == 0, found.errors
    ends = found.finish_ns()
    assert len(set(ends)) == 1
    end = ends[0]
    assert end is not None
    return end / 1000


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_strict_executor_takes_as_long_as_the_step_program(tmp_path: Path, tp: int) -> None:
    """Both by whole microseconds; the program's collectives by what the strict rules say of each alone."""
    executable = build_command()
    graph, _ = exported(tmp_path, tp, 3)
    if tp == 1:  # the executor wants a network of two: the other rank has nothing to do
        (tmp_path / "case" / "workload.1.et").write_bytes((tmp_path / "case" / "workload.0.et").read_bytes())
    whole = strict_us(tmp_path / "case", executable, tmp_path)
    expected, alone = 0.0, {}
    for node in graph.of_rank(0):
        if not (node.kind == "collective" and node.on_links):
            expected += rounded_us(node) or 0.001  # 0 counts as 1 ns there
            continue
        key = (node.collective, node.bytes_moved)
        if key not in alone:
            single = IterationGraph(
                0, graph.model, graph.hardware, tp, 0, (), 0,
                tuple(n.__class__(**{**vars(n), "depends_on": ()}) for n in graph.nodes if n.layer == node.layer
                      and n.name == node.name and n.part == node.part)[:tp],
            )  # fmt: skip
            prepared = prepare(checked_options(arguments(tmp_path, tp)))
            write_chakra(single, list(range(tp)), tmp_path / f"one{len(alone)}", prepared.deployment.link)
            alone[key] = strict_us(tmp_path / f"one{len(alone)}", executable, tmp_path)
        expected += alone[key]
    assert whole == pytest.approx(expected, abs=1e-6 * len(graph.nodes))
    assert len(alone) == (0 if tp == 1 else 2)


def test_dot_has_one_box_per_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.dot"
    assert main(["graph", "step", "--graph", str(out), "--iteration", "2", "--rank", "0", *arguments(tmp_path, 2)]) == 0
    text = out.read_text()
    boxes = [line for line in text.splitlines() if "fillcolor" in line]
    assert len(boxes) == 17
    assert any("qkv_proj x 32" in box and "H100 0: " in box and " us, " in box and "B" in box for box in boxes)
    assert "17 nodes" not in capsys.readouterr().out  # it says what was in the iteration: all layers
    assert main(["graph", "step", "-g", str(out), "--every-layer", *arguments(tmp_path, 2)]) == 0
    assert len([line for line in out.read_text().splitlines() if "fillcolor" in line]) > 2 * 32 * 10


def test_graphml_and_json(tmp_path: Path) -> None:
    for ending in ("graphml", "json"):
        assert main(["graph", "step", "-g", str(tmp_path / f"step.{ending}"), "-i", "1", *arguments(tmp_path, 2)]) == 0
    tree = ElementTree.parse(tmp_path / "step.graphml")
    space = "{http://graphml.graphdrawing.org/xmlns}"
    nodes, edges = tree.findall(f".//{space}node"), tree.findall(f".//{space}edge")
    document = json.loads((tmp_path / "step.json").read_text())
    assert len(nodes) == len(document["nodes"])
    assert len(edges) == len(nodes) - 2  # two chains
    assert document["items"][0]["tokens"] == 1 or document["items"][0]["tokens"] == 300
    assert {"name", "rank", "duration_ps", "bytes_moved", "source"} <= set(document["nodes"][0])


def test_networkx(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    graph, _ = exported(tmp_path, 2, 1)
    found = to_networkx(graph)
    assert networkx.is_directed_acyclic_graph(found)
    assert found.number_of_nodes() == len(graph.nodes)
    path = networkx.dag_longest_path_length(found, weight=None, default_weight=1)
    assert path == len(graph.of_rank(0)) - 1


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
