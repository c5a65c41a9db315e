"""Chakra traces of steps that met other traffic: the engine takes the time of the run for them."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import llmsim
from llmsim.cli import main
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import IterationGraph, Round, iteration_graph
from llmsim.export.step_graph.run_times import in_run, lost_in_exchanges_ps
from llmsim.export.step_graph.transfers import KINDS
from llmsim.rounds.recorded import recorded_run
from tests.engine.command import build_command, run_case
from tests.lowering.clusters import cluster as small_cluster
from tests.lowering.clusters import model
from tests.lowering.network.test_groups_share_links import SPREAD, cluster

TRACE = "synthetic:n=14,rate=60,input=lognormal:700:max=3000,output=fixed:8,seed=5"
PIPELINED = {"tp_size": 2, "pp_size": 2}
MOST = 8
"""Steps of a group that the engine runs."""


def prefill_and_decode() -> dict[str, Any]:
    found = cluster(*SPREAD)
    for one, role in zip(found["nodes"][0]["instances"], ("prefill", "decode"), strict=True):
        one["pd_type"] = role
    return found


def lock_step(folder: Path, **keys: Any) -> dict[str, Any]:
    """Two members of a prefill and two of a decode domain; what they exchange meets KV on the links
    between two nodes.
    """
    found = small_cluster(model(folder, experts=8, layers=4), links=[50, 5], num_npus=2, **keys)
    (one,) = found["nodes"][0]["instances"]
    roles = [{**one, "pd_type": role, "dp_group": role} for role in ("prefill", "decode")]
    return {**found, "nodes": [{"instances": roles}] * 2}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tensor parallel": (cluster(*SPREAD), {}),
    "links": (cluster(*SPREAD), {"collective_costs": "links"}),
    "stages": (cluster(*SPREAD, **PIPELINED), {"async_scheduling": False}),
    "stages ahead": (
        cluster(*SPREAD, **PIPELINED),
        {"async_scheduling": True, "collective_costs": "links"},
    ),
    "beside KV": (prefill_and_decode(), {"kv_transfer": "layerwise"}),
}
LOCK_STEP: dict[str, dict[str, Any]] = {
    "lock-step": {"tp_size": 2},
    "stages in lock-step": {"tp_size": 1, "pp_size": 2},
}
LAYERWISE = {"cost_source": "roofline", "kv_transfer": "layerwise", "collective_costs": "links"}


def steps_of(
    document: dict[str, Any], **options: Any
) -> list[tuple[Round, IterationGraph, IterationGraph, int]]:
    """Of all groups the steps that met most: the batch, its graph alone and in the run, and the
    host's gap behind it.
    """
    options |= {"request_routing_policy": "RR", "launch_ns": 0}
    document = {**document, "engine": {**document.get("engine", {}), "fused_moe_ns": 0}}
    prepared = llmsim.run(document, TRACE, **options)._prepared
    groups, found = prepared.lowered.groups, []
    for group in range(len(groups)):
        steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, group)
        mine = []
        for iteration in range(len(steps.worked)):
            batch = steps.round(iteration)
            alone = iteration_graph(groups, group, batch)
            graph = in_run(alone, batch)
            lost_ps = lost_in_exchanges_ps(alone, batch)
            mine.append((lost_ps, (batch, alone, graph, groups[group].engine.host_gap_ps)))
        mine.sort(key=lambda one: -one[0])
        found += [one for _, one in mine[:MOST]]
    return found


@pytest.mark.parametrize("name", [*CASES, *LOCK_STEP])
def test_the_engine_takes_the_time_of_the_run(name: str, tmp_path: Path) -> None:
    if name in CASES:
        document, options = CASES[name]
    else:
        document, options = lock_step(tmp_path, **LOCK_STEP[name]), LAYERWISE
    command, longer, moved = build_command(), 0, 0
    for number, (batch, alone, graph, gap_ps) in enumerate(steps_of(document, **options)):
        origin_ps = min(start for start, _ in batch.times_ps)
        ends_ps = tuple(end - origin_ps - gap_ps for _, end in batch.times_ps)
        assert graph.member_ends_ps() == ends_ps
        case = tmp_path / str(number)
        write_chakra(graph, list(range(graph.ranks)), case)
        backend = "unaware" if graph.topology is None else "fair-share"
        found = run_case(command, case, tmp_path, backend=backend, rules="default")
        assert found.exit_code == 0, found.errors
        kv, times = kv_of(case, graph), found.times()
        assert max(end for _, end in times.values()) == max(ends_ps)
        last_ps = graph.duration_ps
        expected_ps = sorted(
            min(node.end_ps, last_ps) for node in graph.nodes if node.kind in KINDS
        )
        assert sorted(times[place][1] for place in kv) == expected_ps
        longer += graph.duration_ps > alone.duration_ps
        moved += len(kv)
    assert longer > 4 and (moved > 0) == ("kv_transfer" in options)


def kv_of(case: Path, graph: IterationGraph) -> set[tuple[int, int]]:
    """(device, node) of each trace's KV."""
    devices = range(graph.ranks) if graph.topology is None else graph.topology.devices
    return {
        (device, node.id)
        for device in devices
        for node in read_trace(case / f"workload.{device}.et")
        if node.name.startswith("KV ")
    }


def test_the_index_says_what_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps(cluster(*SPREAD)), encoding="utf-8")
    given = ["run", "--cluster-config", str(path), "--dataset", TRACE, "--run-dir", f"{tmp_path}/r"]
    graphs = f"{tmp_path}/g:format=et"
    assert main([*given, "--request-routing-policy", "RR", "--graphs", graphs]) == 0
    rows = pq.read_table(tmp_path / "g" / "index.parquet").to_pylist()
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert sum(row["lost_ps"] for row in rows) == round(summary["communication"]["lost_s"] * 1e12)
    row = max(rows, key=lambda one: one["lost_ps"])
    trace = read_trace(tmp_path / "g" / row["file"] / "workload.0.et")
    waits = [node.attributes["duration_ps"] for node in trace if node.name.startswith("contention")]
    assert sum(waits) == row["lost_ps"] > 0
    capsys.readouterr()
