"""Chakra traces of an iteration on a topology: the engine takes as long on the exported network as
the step program.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.rounds import round_of
from llmsim.routing import parse_router
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import simulate
from llmsim.workload import load_dataset
from tests.engine.command import build_command, run_case
from tests.lowering.clusters import cluster, lowered, model

NO_HOST = {"launch_ns": 0, "fused_moe_ns": 0}
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any], list[list[int]]]] = {
    "one switch": ({}, "dgx_h100", {"tp_size": 4}, [[6, 1, 3, 0]]),
    "PCIe tree, out of order": ({}, "pcie_gen4_8", {"tp_size": 4}, [[0, 5, 2, 7]]),
    "stages on rails": ({}, "h100_rails_32x8", {"tp_size": 2, "pp_size": 2}, [[5, 2, 13, 10]]),
    "planned over two servers": ({}, "h100_rails_32x8", {"tp_size": 4}, [[0, 1, 8, 9]]),
    "experts on a PCIe tree": (
        {"experts": 8},
        "pcie_gen4_8",
        {"dp_group": "a", "tp_size": 2},
        [[0, 4], [5, 1]],
    ),
}
FEW = "synthetic:n=3,rate=100000,input=lognormal:80,output=6,seed=5"


def graph_on(folder: Path, name: str) -> tuple[IterationGraph, list[int]]:
    """The graph of the second step, and how long that step took in the run for each member, without
    the host's gap behind it.
    """
    shape, topology, keys, devices = CASES[name]
    document = cluster(
        model(folder, **shape), members=len(devices), async_scheduling=False, **NO_HOST, **keys
    )
    document["topology"] = topology
    instances = document["nodes"][0]["instances"]
    document["nodes"] = [
        {
            "instances": [
                {**entry, "topology_devices": one}
                for entry, one in zip(instances, devices, strict=True)
            ]
        }
    ]
    deployment = lowered(document)
    workload = load_dataset(FEW, known_models=deployment.models, granularity=deployment.granularity)
    options = SimulationOptions(router=parse_router("RR"), record_steps=True)
    batch = round_of(deployment, workload, options, 0, 1)
    steps = simulate(deployment, workload, options).steps
    most, took = max(len(items) for items in batch.items), []
    for member in batch.members:
        mine = np.flatnonzero(np.asarray(steps["group"]) == member)[batch.step - 1]
        engine = deployment.groups[member].engine
        gap_ps = engine.host_gap_ps + most * engine.host_sequence_ps
        took.append(int(steps["end_ps"][mine] - steps["start_ps"][mine]) - gap_ps)
    return iteration_graph(deployment.groups, 0, batch), took


@pytest.mark.parametrize("name", CASES)
def test_the_engine_takes_as_long_for_traces_on_a_topology(tmp_path: Path, name: str) -> None:
    """To the picosecond, also where members share links, which the run leaves to the engine."""
    graph, took = graph_on(tmp_path, name)
    assert graph.topology is not None and graph.topology.network == "fair-share"
    case = tmp_path / "case"
    write_chakra(graph, list(range(graph.ranks)), case)
    assert not (case / "network.yml").exists()
    found = run_case(build_command(), case, tmp_path, backend="fair-share", rules="default")
    assert found.exit_code == 0, found.errors
    ends = found.finish_ps()
    busy = {device for device, end in enumerate(ends) if end}
    assert busy == set(graph.topology.devices) and len(ends) == graph.topology.num_devices
    of_ranks = [ends[device] or 0 for device in graph.topology.devices]
    share = graph.ranks // len(took)
    assert [max(of_ranks[at : at + share]) for at in range(0, graph.ranks, share)] == took
    assert (max(took) == graph.duration_ps) == (name != "experts on a PCIe tree")
    on_links = sum(node.on_links for node in graph.nodes)
    planned = name == "planned over two servers"  # NCCL's plans are nodes of a known duration
    assert on_links == 0 if planned else on_links >= graph.ranks


def test_some_ranks_alone(tmp_path: Path) -> None:
    graph, _ = graph_on(tmp_path, "one switch")
    written = write_chakra(graph, [1], tmp_path / "case")
    assert [path.name for path in written if path.suffix == ".et"] == ["workload.1.et"]


@pytest.mark.parametrize("word", ["ring", "direct2", "bruck", "doubleBinaryTree"])
def test_all_devices_of_several_dimensions_take_part(tmp_path: Path, word: str) -> None:
    """A collective of all devices is a flat one, as in the run, not one dimension after another."""
    rings = [("ring", 50), ("ring", 10)]
    dimensions = [
        {"kind": kind, "size": 2, "bandwidth_gb_per_s": rate, "latency_ns": 500}
        for kind, rate in rings
    ]
    (tmp_path / "torus.json").write_text(json.dumps({"dimensions": dimensions}))
    document = cluster(
        model(tmp_path), tp_size=4, num_npus=4, **NO_HOST, all_reduce_implementation=word
    )
    deployment = lowered(document | {"topology": str(tmp_path / "torus.json")})
    workload = load_dataset(FEW, known_models=deployment.models, granularity=deployment.granularity)
    options = SimulationOptions(router=parse_router("RR"), record_steps=True)
    graph = iteration_graph(deployment.groups, 0, round_of(deployment, workload, options, 0, 1))
    write_chakra(graph, list(range(4)), tmp_path / "case")
    found = run_case(
        build_command(), tmp_path / "case", tmp_path, backend="fair-share", rules="default"
    )
    assert found.exit_code == 0, found.errors
    assert max(end or 0 for end in found.finish_ps()) == graph.duration_ps
