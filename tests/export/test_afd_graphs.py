"""Graphs of steps whose attention and FFN are on devices apart: they last as long as in the run,
here and in the engine.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, cluster, ffn

import llmsim
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import IterationGraph, Round, iteration_graph
from llmsim.export.step_graph.nodes import LAUNCH, M2N_RECEIVE, M2N_SEND
from llmsim.export.step_graph.run_times import in_run
from llmsim.rounds.recorded import recorded_run
from tests.afd.test_energy_of_rows import run as run_with_power
from tests.engine.command import build_command, run_case
from tests.lowering.clusters import model

LOAD = "synthetic:n=6,rate=20000,input=fixed:40,output=fixed:6,seed=1"
QUIET = {"host_gap_ns": 0, "host_sequence_ns": 0}
LAYERS, ROW = 4, 64 * 8 * 2
Instances = list[dict[str, Any]]
CASES: dict[str, Callable[[str], Instances]] = {
    "one lane": lambda of: [attention(of, afd_micro_batches=1, **QUIET), ffn(of, 1, 2, **QUIET)],
    "lanes": lambda of: [
        attention(of, 2, 2, afd_micro_batches=3, **QUIET),
        ffn(of, 2, 2, **QUIET),
    ],
    "routed": lambda of: [
        attention(of, 1, 2, afd_dispatch="routed", **QUIET),
        ffn(of, 1, 4, **QUIET),
    ],
    "M to N": lambda of: [attention(of, 1, 3, **QUIET), *[ffn(of, 1, 2, **QUIET)] * 2],
    "dense": lambda of: [attention(of, 2, **QUIET), ffn(of, 4, **QUIET)],
    "stages": lambda of: [
        attention(of, pp_size=2, afd_micro_batches=1, **QUIET),
        ffn(of, pp_size=2, **QUIET),
    ],
    "no launches": lambda of: [
        attention(of, launch_ns=0, **QUIET),
        ffn(of, launch_ns=0, **QUIET),
    ],
}


def graphs(folder: Path, name: str) -> list[tuple[Round, IterationGraph]]:
    """The steps of the first attention group, each as a graph."""
    instances = CASES[name](model(folder, layers=LAYERS, experts=0 if name == "dense" else 8))
    options: dict[str, Any] = {"cost_source": "roofline", "async_scheduling": False}
    options["request_routing_policy"] = "RR"
    prepared = llmsim.run(cluster(*instances), LOAD, **options)._prepared
    groups = prepared.lowered.groups
    steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, 0)
    rounds = [steps.round(iteration) for iteration in range(len(steps.worked))]
    return [(batch, iteration_graph(groups, 0, batch)) for batch in rounds]


@pytest.mark.parametrize("name", CASES)
def test_the_graph_lasts_as_long_as_the_step(tmp_path: Path, name: str) -> None:
    """Of attention members; FFN members have nothing behind their last rows."""
    for batch, graph in graphs(tmp_path, name):
        lengths = [end - start for start, end in batch.times_ps]
        attends = batch.attention_members
        assert list(graph.member_ends_ps())[:attends] == lengths[:attends]


@pytest.mark.parametrize("name", CASES)
def test_nodes_follow_what_they_wait_for(tmp_path: Path, name: str) -> None:
    for _, graph in graphs(tmp_path, name)[:3]:
        ends = {node.node: node.end_ps for node in graph.nodes}
        for node in graph.nodes:
            before = max((ends[one] for one in node.depends_on), default=0)
            assert node.start_ps == before or node.kind == LAUNCH, node
        assert {node.rank for node in graph.nodes} == set(range(graph.ranks))


def test_rows_are_nodes_with_bytes_and_routes(tmp_path: Path) -> None:
    """One lane: in each layer each token's 512 numbers of 2 bytes leave the attention's device."""
    for batch, graph in graphs(tmp_path, "one lane")[:2]:
        tokens = sum(item[0] for item in batch.items[0])
        sent = [one for one in graph.nodes if one.kind == M2N_SEND and one.rank == 0]
        assert len(sent) == LAYERS
        assert {one.route for one in sent} == {"attention -> ffn"}
        assert all(one.bytes_moved >= tokens * ROW for one in sent)
        came = [one for one in graph.nodes if one.kind == M2N_RECEIVE and one.rank > 0]
        assert {one.route for one in came} == {"attention -> ffn"}
        assert {one.device_id for one in (*sent, *came)} == {"node0.link"}


@pytest.mark.parametrize("name", CASES)
def test_the_engine_takes_as_long_for_the_traces(name: str, tmp_path: Path) -> None:
    command = build_command()
    for number, (batch, graph) in enumerate(graphs(tmp_path, name)[:3]):
        case = tmp_path / str(number)
        write_chakra(graph, list(range(graph.ranks)), case)
        found = run_case(command, case, tmp_path, backend="unaware", rules="default")
        assert found.exit_code == 0, found.errors
        longest = max(end for _, end in found.times().values())
        assert longest == graph.duration_ps
        assert longest == max(end for _, end in batch.times_ps) - batch.times_ps[0][0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_energies_of_nodes_add_up(nodes: int) -> None:
    """Those of rows, with the links' or the cards' energy; steps add up to the run."""
    result = run_with_power(nodes)
    prepared = result._prepared
    steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, 0)
    link_aj = 0
    for iteration in range(len(steps.worked)):
        graph = iteration_graph(prepared.lowered.groups, 0, steps.round(iteration))
        assert all(one is not None for one in graph.energy)
        mine = sum(one.link_aj for one in graph.energy if one is not None)
        assert sum(node.link_aj for node in graph.nodes) == mine > 0
        assert all(not node.link_aj or node.kind == M2N_SEND for node in graph.nodes)
        link_aj += mine
    [row] = result.summary["afd"]
    assert link_aj == nodes * row["m2n_bytes"] * 8 * 4 * 10**6  # 4 pJ a bit, at `nodes` ports


@pytest.mark.parametrize("name", ["lanes", "M to N"])
def test_steps_that_overlap_last_as_long_as_in_the_run(tmp_path: Path, name: str) -> None:
    """With a batch ahead, FFN members are free before attention members are."""
    command = build_command()
    instances = CASES[name](model(tmp_path, layers=LAYERS, experts=8))
    options = {"cost_source": "roofline", "async_scheduling": True, "request_routing_policy": "RR"}
    prepared = llmsim.run(cluster(*instances), LOAD, **options)._prepared
    groups = prepared.lowered.groups
    steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, 0)
    for iteration in range(1, 4):
        batch = steps.round(iteration)
        graph = in_run(iteration_graph(groups, 0, batch), batch)
        origin_ps = min(start for start, _ in batch.times_ps)
        ends_ps = [end - origin_ps for _, end in batch.times_ps][: batch.attention_members]
        assert list(graph.member_ends_ps())[: batch.attention_members] == ends_ps
        case = tmp_path / str(iteration)
        write_chakra(graph, list(range(graph.ranks)), case)
        found = run_case(command, case, tmp_path, backend="unaware", rules="default")
        assert max(end for _, end in found.times().values()) == max(ends_ps)
