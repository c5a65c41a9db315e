"""Nodes and waits add up to the energy of their step, and steps and transfers to the run's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace
from shallow import shallow

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Results
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_json, to_networkx
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.export.step_graph.transfers import KINDS, Window, kv_nodes
from llmsim.lowering import LoweredDeployment
from llmsim.rounds import RecordedSteps
from llmsim.simulation.run import simulate

ROOT = Path(__file__).resolve().parents[2]
Document = dict[str, Any]


def bundled(name: str) -> Document:
    document: Document = json.loads((ROOT / "cluster_config" / f"{name}.json").read_text("utf-8"))
    return document


POWER = bundled("single_node_power_instance")["nodes"][0]["power"]


def powered(document: Document, **keys: Any) -> Document:
    """With the bundled power section, and other keys of each instance."""
    for node in document["nodes"]:
        devices = {one["hardware"] for one in node["instances"]}
        first = next(iter(POWER["npu"].values()))
        per_bit = {**first, "memory_energy_per_bit": 3.9}
        node["power"] = {**POWER, "npu": dict.fromkeys(devices, per_bit)}
        for one in node["instances"]:
            one.update(keys)
    return document


CASES: dict[str, Callable[[], Document]] = {
    "one device": lambda: powered(bundled("single_node_power_instance")),
    "four ranks": lambda: powered(bundled("single_node_power_instance"), num_npus=4, tp_size=4),
    "two stages": lambda: powered(
        {**bundled("single_node_power_instance"), "link_bw": 50}, num_npus=2, tp_size=1, pp_size=2
    ),
    "memory that computes": lambda: powered(bundled("single_node_pim_instance")),
    "weights in a pool": lambda: powered(bundled("single_node_cxl_instance")),
    "attention on processors": lambda: powered(bundled("cpu_attention_instance")),
    "KV handed over": lambda: powered(bundled("pd_pim_instance")),
    "lock-step": lambda: powered(bundled("single_node_moe_dp_ep_instance")),
    "two stages in lock-step": lambda: powered(
        bundled("single_node_moe_dp_ep_instance"), num_npus=4, pp_size=2
    ),
}


def ran(folder: Path, document: Document, answer: int = 6) -> tuple[LoweredDeployment, Results]:
    path = folder / "cluster.json"
    in_rounds = any("dp_group" in one for node in document["nodes"] for one in node["instances"])
    fewer = shallow(document, folder) if in_rounds else document
    path.write_text(json.dumps(fewer), encoding="utf-8")
    trace = f"synthetic:n=4,rate=50,input=lognormal:300,output=fixed:{answer},seed=2"
    given = ["--cluster-config", str(path), "--dataset", trace, "--cost-source", "roofline"]
    prepared = prepare(checked_options(given))
    options = replace(
        prepared.simulation, record_steps=True, record_rounds=True, record_transfers=True
    )
    return prepared.lowered, simulate(prepared.lowered, prepared.workload, options)


def graphs(lowered: LoweredDeployment, results: Results, group: int) -> list[IterationGraph]:
    assert results.simulation is not None
    steps = RecordedSteps(results.simulation, lowered, group)
    rounds = [steps.round_at(place) for place in range(len(steps.worked) + len(steps.dummies))]
    return [iteration_graph(lowered.groups, group, one) for one in rounds]


def energy_of_transfers(lowered: LoweredDeployment, results: Results, group: int) -> int:
    """Of all KV that one end of which is the group's, whenever it moved."""
    if lowered.network is None or results.simulation is None:
        return 0
    whole = Window(0, results.simulation.now_ps + 1)
    transfers = results.simulation.transfers()
    nodes = kv_nodes(transfers, lowered.network, (group,), whole, (), lowered.accounting)
    return sum(node.energy_aj for node in nodes)


@pytest.mark.parametrize("name", CASES)
def test_nodes_add_up_to_steps_and_steps_to_the_run(name: str, tmp_path: Path) -> None:
    lowered, results = ran(tmp_path, CASES[name]())
    assert results.energy is not None
    pool_uw = lowered.accounting.power.pool.idle_uw if _has_pool(lowered) else 0
    window_ps = results.energy.end_ps - results.energy.start_ps
    pool_aj = results.energy.pool_aj - pool_uw * window_ps
    expected = found = 0
    for group in range(len(lowered.groups)):
        for graph in graphs(lowered, results, group):
            energies = [one for one in graph.energy if one is not None]
            assert len(energies) == len(graph.members)
            for one in energies:
                # Steps of stages overlap: the time of both is the earlier one's.
                parts = asdict(one) | ({"waiting_aj": 0} if "stages" in name else {})
                assert min(parts.values()) >= 0
            own = [node for node in graph.nodes if node.kind not in KINDS]
            total_aj = sum(node.energy_aj for node in own) + sum(one.waiting_aj for one in energies)
            assert total_aj == sum(one.total_aj for one in energies)
            assert all(node.device_id and node.energy_aj >= 0 for node in graph.nodes)
            found += energies[graph.members.index(group)].total_aj
        found += energy_of_transfers(lowered, results, group)
        of_group = results.energy.groups[group]
        assert of_group is not None
        expected += of_group.active_aj + of_group.traffic_aj
    assert found == expected + pool_aj


def _has_pool(lowered: LoweredDeployment) -> bool:
    return lowered.accounting.power is not None and lowered.accounting.power.pool is not None


def test_formats_show_watts_and_joules(tmp_path: Path) -> None:
    lowered, results = ran(tmp_path, CASES["four ranks"]())
    graph = graphs(lowered, results, 0)[0]
    nodes = json.loads(as_json(graph, graph.nodes))["nodes"]
    active_w = next(iter(POWER["npu"].values()))["active_power"]
    gemm = next(node for node in nodes if node["name"] == "gate_up_proj")
    assert gemm["compute_j"] == pytest.approx(active_w * gemm["duration_ps"] / 1e12)
    assert gemm["memory_j"] > 0 and gemm["link_j"] == 0
    assert gemm["power_w"] == pytest.approx(gemm["energy_j"] * 1e12 / gemm["duration_ps"])
    reduced = next(node for node in nodes if node["name"] == "all_reduce")
    assert reduced["link_j"] > 0 and reduced["memory_j"] == 0
    busy = {node["device_id"] for node in nodes if node["kind"] != "launch"}
    assert busy == {f"group0.rank{rank}" for rank in range(4)}
    launches = [node for node in nodes if node["kind"] == "launch"]
    assert len(launches) == 2 * 4  # each rank's are prepared and launched
    assert all(one["device_id"] == "node0.cpu" and one["energy_j"] == 0 for one in launches)
    attributes = to_networkx(graph).nodes[0]
    assert {"power_w", "energy_j", "device_id"} <= attributes.keys()
    write_chakra(graph, [0], tmp_path / "traces")
    traced = list(read_trace(tmp_path / "traces" / "workload.0.et"))
    assert any(node.attributes.get("energy_nj") for node in traced)


def test_without_power_nothing_is_drawn(tmp_path: Path) -> None:
    document = bundled("single_node_power_instance")
    del document["nodes"][0]["power"]
    lowered, results = ran(tmp_path, document, answer=2)
    graph = graphs(lowered, results, 0)[0]
    assert graph.energy == (None,) and all(node.energy_aj == 0 for node in graph.nodes)
    assert json.loads(as_json(graph, graph.nodes))["energy"] == [None]
