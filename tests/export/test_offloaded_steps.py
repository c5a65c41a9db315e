"""Graphs of steps that keep something elsewhere: they last as long as the step, and say what runs
and moves where.
"""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.api.preparation.prepare import prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.rounds import round_of
from llmsim.simulation.run import simulate
from tests.engine.command import build_command, run_case
from tests.offload.test_combinations import COMBINATIONS, with_node
from tests.offload.test_placement import HEAD_BYTES, LAYER_BYTES, cluster

ONE = "synthetic:n=1,rate=1,input=fixed:300,output=fixed:8,seed=1"
SOME = "synthetic:n=6,rate=10000,input=fixed:100,output=fixed:8,seed=1"


def made(
    folder: Path, document: dict[str, Any], trace: str, iteration: int, group: int = 0
) -> tuple[Any, ...]:
    """The graph of an iteration, and (start, end) of each member's step of that number."""
    path = folder / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    given = ["--cluster-config", str(path), "--dataset", trace, "--cost-source", "roofline"]
    prepared = prepare(checked_options([*given, "--run-dir", str(folder / "run")]))
    batch = round_of(prepared.lowered, prepared.workload, prepared.simulation, group, iteration)
    graph = iteration_graph(prepared.lowered.groups, group, batch)
    results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
    steps = {name: np.asarray(column) for name, column in results.steps.items()}
    found = []
    for member in graph.members:
        mine = steps["group"] == member
        found.append(
            int(steps["end_ps"][mine][batch.step - 1] - steps["start_ps"][mine][batch.step - 1])
        )
    return graph, found, prepared.lowered.groups[group].engine.host_gap_ps


def ends(graph: IterationGraph) -> list[int]:
    """Of each member; KV of prompts may still be on its way to the memory when the
    step has ended.
    """
    share = graph.ranks // len(graph.members)
    return [
        max(
            n.end_ps for n in graph.nodes if n.rank // share == member and n.name != "KV of prompts"
        )
        for member in range(len(graph.members))
    ]


MEMBERS_COPY_AT_ONCE = ("ranks, experts touched",)
"""Copies by batch of two members share the host's memory; a graph prices them on an idle link."""


@pytest.mark.parametrize("name", [one for one in COMBINATIONS if one not in MEMBERS_COPY_AT_ONCE])
def test_the_graph_of_the_first_step_lasts_as_long_as_it(name: str, tmp_path: Path) -> None:
    decodes = "roles" in name
    graph, lengths, gap = made(tmp_path, COMBINATIONS[name], ONE, 0, int(decodes))
    found = ends(graph)
    for member, length in enumerate(lengths):
        if graph.batches[member]:  # what others wait for at the end is not in a dummy's own step
            assert found[member] + gap == length


@pytest.mark.parametrize("name", MEMBERS_COPY_AT_ONCE)
def test_the_graph_is_shorter_where_members_share_the_memory_they_copy_from(
    name: str, tmp_path: Path
) -> None:
    graph, lengths, gap = made(tmp_path, COMBINATIONS[name], ONE, 0)
    busy = [member for member, batch in enumerate(graph.batches) if batch]
    assert busy
    found = ends(graph)
    assert all(lengths[member] / 2 < found[member] + gap < lengths[member] for member in busy)


@pytest.mark.parametrize(
    "name", ["stages, memory", "attention on processors", "norms and head on processors"]
)
def test_later_steps_without_copies_of_weights_too(name: str, tmp_path: Path) -> None:
    graph, lengths, gap = made(tmp_path, COMBINATIONS[name], SOME, 3)
    assert [end + gap for end in ends(graph)] == lengths


@pytest.mark.parametrize("name", COMBINATIONS)
def test_devices_do_one_thing_at_a_time_and_nothing_starts_before_what_it_waits_for(
    name: str, tmp_path: Path
) -> None:
    graph, _, _ = made(tmp_path, COMBINATIONS[name], SOME, 1)
    by_number = {node.node: node for node in graph.nodes}
    busy = defaultdict(list)
    for node in graph.nodes:
        assert all(by_number[before].end_ps <= node.start_ps for before in node.depends_on)
        if node.device != "link" and node.kind not in ("send", "receive"):
            busy[node.rank, node.device].append((node.start_ps, node.end_ps))
    for times in busy.values():
        times.sort()
        assert all(a_end <= b_start for (_, a_end), (b_start, _) in pairwise(times))


def test_copies_are_the_weights_and_processors_run_what_they_are_given(tmp_path: Path) -> None:
    placement = {
        "default": {"weights": "cpu"},
        "blocks": [{"blocks": "0-3", "weights": "cxl:1"}],
        "layers": {"embedding": {"weights": "npu"}},
    }
    graph, _, _ = made(tmp_path, cluster(placement=placement), SOME, 1)
    moved: dict[str, int] = defaultdict(int)
    for node in graph.nodes:
        moved[node.route] += node.bytes_moved if node.kind == "copy" else 0
    assert moved["cxl:1 -> npu"] == 4 * LAYER_BYTES
    assert moved["cpu -> npu"] == 28 * LAYER_BYTES + HEAD_BYTES + 2 * 4096
    graph, _, _ = made(tmp_path, COMBINATIONS["norms and head on processors"], SOME, 1)
    there = {node.name for node in graph.nodes if node.device == "cpu"}
    assert there == {"layernorm", "final_layernorm", "lm_head", "sampler"}


def test_prompts_attend_on_the_device_and_decodes_in_memory(tmp_path: Path) -> None:
    document = with_node(cluster(enable_attn_offloading=True), pim=True)
    first, _, _ = made(tmp_path, document, SOME, 0)
    later, _, _ = made(tmp_path, document, SOME, 3)

    def attention(graph: IterationGraph) -> set[str]:
        return {node.device for node in graph.nodes if node.kind == "attention"}

    assert (attention(first), attention(later)) == ({"npu"}, {"pim"})
    routes = {node.name: node.route for node in later.nodes if node.kind == "copy"}
    assert routes == {"queries": "npu -> pim", "results": "pim -> npu"}
    assert {node.name for node in first.nodes if node.kind == "copy"} == {"KV of prompts"}


def test_halves_are_told_apart_and_read_all_weights_each(tmp_path: Path) -> None:
    switches = {"enable_sub_batch_interleaving": True, "sub_batch_rule": "always"}
    whole, _, _ = made(tmp_path, with_node(cluster(enable_attn_offloading=True), pim=True), SOME, 3)
    graph, _, _ = made(
        tmp_path, with_node(cluster(enable_attn_offloading=True, **switches), pim=True), SOME, 3
    )
    assert {node.half for node in graph.nodes} == {0, 1, 2}

    def sums(one: IterationGraph, what: str, name: str) -> int:
        return sum(getattr(node, what) for node in one.nodes if node.name == name)

    assert sums(graph, "flops", "attention") == sums(whole, "flops", "attention")
    assert sums(graph, "bytes_moved", "gate_up_proj") > 1.9 * sums(
        whole, "bytes_moved", "gate_up_proj"
    )


def test_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, _, _ = made(tmp_path, COMBINATIONS["memory, weights"], SOME, 3)
    nodes = json.loads(as_json(graph, graph.nodes))["nodes"]
    assert {node["device"] for node in nodes} == {"npu", "pim", "link"}
    assert '<data key="route">cpu -&gt; npu</data>' in as_graphml(graph, graph.nodes)
    text = as_dot(graph, graph.nodes)
    assert "cpu -> npu" in text and "weights of gate_up_proj x 32" in text
    for line in text.splitlines():  # every edge joins boxes that are there
        if "->" in line and "label" not in line:
            left, right = line.strip().rstrip(";").split(" -> ")
            assert f"{left} [label" in text and f"{right} [label" in text
    given = ["--cluster-config", str(tmp_path / "c.json"), "--dataset", SOME]
    assert main(["graph", "step", "--graph", str(tmp_path / "traces"), *given]) == 0
    assert "2 files" not in capsys.readouterr().out
    kinds = {node.type for node in read_trace(tmp_path / "traces" / "workload.0.et")}
    assert kinds == {"COMP", "MEM_LOAD", "MEM_STORE"}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_engine_takes_as_long_for_the_traces_of_a_step(name: str, tmp_path: Path) -> None:
    """To the picosecond; and strict rules read the same files."""
    graph, _, _ = made(tmp_path, COMBINATIONS[name], SOME, 3, int("roles" in name))
    write_chakra(graph, list(range(graph.ranks)), tmp_path / "case")
    executable = build_command()
    found = run_case(executable, tmp_path / "case", tmp_path, rules="default")
    assert found.exit_code == 0, found.errors
    assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps
    strict = run_case(executable, tmp_path / "case", tmp_path)
    assert strict.exit_code == 0, strict.errors
    assert max(end or 0 for end in strict.finish_ns()) > 0
