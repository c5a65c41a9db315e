"""Collectives of groups whose routes share links slow each other by what the engine says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import llmsim
from llmsim._native import engine
from llmsim.api.result import Result
from llmsim.cli import main
from llmsim.config.topology.file import load_topology
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.export.step_graph.nodes import GraphNode
from llmsim.export.step_graph.run_times import in_run
from llmsim.results.invariants import check_invariants
from llmsim.rounds import round_of
from llmsim.rounds.recorded import recorded_run
from llmsim.rounds.shared_links import shared_links
from llmsim.simulation.run import simulate

ROOT = Path(__file__).resolve().parents[3]
PCIE = json.loads((ROOT / "cluster_config" / "l40s_llama31_8b_tp4_pcie.json").read_text("utf-8"))
SPREAD = ([0, 4, 2, 6], [1, 5, 3, 7])
"""Rings that cross the sockets with every message, over the same uplinks."""
APART = ([0, 1], [2, 3])
"""Pairs below switches of their own."""
LAYERS = 32


def cluster(*devices: list[int], **more: Any) -> dict[str, Any]:
    """An instance on each list of devices of a PCIe server."""
    one = PCIE["nodes"][0]["instances"][0]
    size = {"num_npus": len(devices[0]), "tp_size": len(devices[0])}
    instances = [{**one, **size, "topology_devices": each, **more} for each in devices]
    return {**PCIE, "nodes": [{"num_instances": len(devices), "instances": instances}]}


def prompts(number: int, tokens: int = 4000, answer: int = 50) -> pd.DataFrame:
    """So many requests of different prompts at time 0."""
    rows = [
        {
            "input_toks": tokens,
            "output_toks": answer,
            "arrival_time_ns": 0,
            "input_tok_ids": list(range(at * tokens, (at + 1) * tokens)),
            "output_tok_ids": list(range(answer)),
        }
        for at in range(number)
    ]
    return pd.DataFrame(rows)


def run(document: dict[str, Any], workload: pd.DataFrame, **options: Any) -> Result:
    options.setdefault("request_routing_policy", "RR")
    return llmsim.run(document, workload, **options)


def ttft_ps(result: Result) -> list[int]:
    return [int(ps) for ps in result.requests["ttft_ps"]]


def all_reduce_ps(groups: list[list[int]], num_bytes: int) -> int:
    """Of all groups at once, message by message."""
    durations = engine.ConcurrentDurations(
        load_topology("pcie_gen4_8").build(engine),
        engine.NetworkKind.FAIR_SHARE,
        groups,
        engine.CollectiveKind.ALL_REDUCE,
    )
    return int(durations.durations_ps(np.array([num_bytes], np.int64))[0])


def test_two_instances_take_the_engines_joint_time() -> None:
    alone = ttft_ps(run(cluster(SPREAD[0]), prompts(1)))[0]
    together = run(cluster(*SPREAD), prompts(2))
    first, second = ttft_ps(together)
    assert first == second
    num_bytes = 4000 * 4096 * 2
    one = all_reduce_ps([SPREAD[0]], num_bytes)
    both = all_reduce_ps(list(SPREAD), num_bytes)
    assert both > 1.9 * one
    # Two all-reduces per layer, and one behind the embedding; the rest is the gathered logits'.
    reduces_ps = (2 * LAYERS + 1) * (both - one)
    assert 0 < first - alone - reduces_ps < 20_000_000
    found = together.summary["communication"]
    assert found["slowed_share"] == 1.0
    assert found["lost_s"] >= 2 * (first - alone) / 1e12
    assert together.summary["invariants"]["15 links"] == "ok"
    assert ttft_ps(run(cluster(*SPREAD), prompts(2), exact=True)) == [first, second]


def test_off_times_each_group_alone() -> None:
    alone = ttft_ps(run(cluster(SPREAD[0]), prompts(1)))[0]
    off = run(cluster(*SPREAD), prompts(2), collective_contention="off")
    assert ttft_ps(off) == [alone, alone]
    assert off.summary["communication"]["lost_s"] == 0


def test_a_group_without_company_takes_its_time_alone() -> None:
    """Both share links, but only the first has a request."""
    alone = run(cluster(SPREAD[0]), prompts(1))
    beside = run(cluster(*SPREAD), prompts(1))
    assert ttft_ps(beside) == ttft_ps(alone)
    assert beside.summary["mean_tpot_ms"] == alone.summary["mean_tpot_ms"]


def test_groups_on_links_of_their_own_stay_folded() -> None:
    apart = run(cluster(*APART), prompts(2))
    assert apart._prepared.lowered.network is None
    assert ttft_ps(apart) == [ttft_ps(run(cluster(APART[0]), prompts(1)))[0]] * 2
    assert len(run(cluster(*SPREAD), prompts(2))._prepared.lowered.contended) == 2


@pytest.mark.parametrize("network", ["fair-share", "congestion-aware"])
def test_requests_over_time_wait_for_each_other(network: str) -> None:
    """Company comes and goes; more of it is never faster."""
    trace = "synthetic:n=24,rate=60,input=lognormal:600:max=2000,output=fixed:12,seed=5"
    together = llmsim.run(cluster(*SPREAD), trace, network_backend=network)
    apart = llmsim.run(
        cluster(*SPREAD), trace, network_backend=network, collective_contention="off"
    )
    found = together.summary["communication"]
    assert 0 < found["slowed_share"] <= 1 and found["lost_s"] > 0
    assert set(together.summary["invariants"].values()) == {"ok"}
    assert together.summary["mean_e2el_ms"] > apart.summary["mean_e2el_ms"]
    steps = together.steps
    assert (steps["end_ps"] - steps["start_ps"]).min() > 0


def test_stages_ahead_of_their_steps_take_the_engines_joint_time() -> None:
    """Both groups' stages run the same at the same time."""
    options = {"async_scheduling": True, "collective_costs": "links"}
    pipelined = {"tp_size": 2, "pp_size": 2}
    both = run(cluster(*SPREAD, **pipelined), prompts(2, 2000, 1), **options)
    (alone,) = ttft_ps(run(cluster(SPREAD[0], **pipelined), prompts(1, 2000, 1), **options))
    num_bytes = 2000 * 4096 * 2
    apart, joint = [
        all_reduce_ps([ring[:2] for ring in rings], num_bytes) for rings in (SPREAD[:1], SPREAD)
    ]
    assert joint == all_reduce_ps([ring[2:] for ring in SPREAD], num_bytes) > 1.9 * apart
    prepared = both._prepared
    steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, 0)
    names = [placed.cost.name for placed in prepared.lowered.groups[0].placed]
    reduces = [
        end - start
        for op, spans in steps.round(0).exchanges[0].items()
        for start, end in spans
        if names[op] == "all_reduce"
    ]
    assert reduces == [joint] * (2 * LAYERS + 1)
    first, second = ttft_ps(both)
    assert first == second
    # Beside them the hidden states, and what gathers them and the logits.
    rest_ps = first - alone - len(reduces) * (joint - apart)
    assert 0 < rest_ps < 3 * joint


@pytest.mark.parametrize("ahead", [True, False])
def test_batches_of_a_pipeline_meet_on_links_of_several_stages(ahead: bool) -> None:
    """Whether another group is there or not: the second chunk of a prompt is in the first stage
    while the first one is in the second.
    """
    pipelined = {"tp_size": 2, "pp_size": 2}
    options = {"async_scheduling": ahead}
    alone = run(cluster(SPREAD[0], **pipelined), prompts(1), **options)
    beside = run(cluster(*SPREAD, **pipelined), prompts(1), **options)
    assert alone.summary["communication"]["lost_s"] > 0
    assert alone.summary["communication"] == beside.summary["communication"]
    assert ttft_ps(alone) == ttft_ps(beside)
    off = run(cluster(SPREAD[0], **pipelined), prompts(1), collective_contention="off", **options)
    assert ttft_ps(off) < ttft_ps(alone)


def test_more_bytes_than_a_link_can_carry_break_an_invariant() -> None:
    results = run(cluster(*SPREAD), prompts(2, 100, 2))._results
    assert check_invariants(results, [True, True])["15 links"] == "ok"
    results.links = {**results.links, "bytes_per_s": results.links["bytes_per_s"] // 2}
    found = check_invariants(results, [True, True])["15 links"]
    assert found.startswith("link ") and " carried " in found


def test_bytes_on_their_way_are_not_carried_yet() -> None:
    """A run that is cut while flows move."""
    cut = run(cluster(*SPREAD), prompts(2), horizon=0.05)
    assert cut.summary["invariants"]["15 links"] == "ok"
    assert cut.summary["horizon_s"] == 0.05


def test_what_a_step_lost_is_shared_out_over_the_links_that_it_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine's routes say which links both rings take; nothing is shared alone."""
    host = {"prepare_ns": 900_000, "prepare_sequence_ns": 0}  # lies before the step's start
    fields = cluster(*SPREAD) | {"engine": host}
    prepared = run(fields, prompts(2))._prepared
    batch = round_of(prepared.lowered, prepared.workload, prepared.simulation, 0, 0)
    graph = iteration_graph(prepared.lowered.groups, 0, batch)
    groups = prepared.lowered.groups
    assert min(node.start_ps for node in graph.nodes) == -900_000_000
    found = shared_links(batch, graph, groups, groups[0].engine.host_gap_ps)
    topology = load_topology("pcie_gen4_8").build(engine)

    def crossed(ring: list[int]) -> set[int]:
        hops = zip(ring, ring[1:] + ring[:1], strict=True)
        return {link for hop in hops for link in topology.route(*hop)}

    common = crossed(SPREAD[0]) & crossed(SPREAD[1])
    assert {one.link for one in found} == common  # the topology's links come first
    ((start_ps, end_ps),) = batch.times_ps
    gap_ps = prepared.lowered.groups[0].engine.host_gap_ps
    alone_ps = graph.duration_ps
    assert sum(one.lost_ps for one in found) == end_ps - start_ps - gap_ps - alone_ps > 0
    assert all(one.others == ("group 1",) and one.met_ps > 0 for one in found)
    path = tmp_path / "two.json"
    path.write_text(json.dumps(cluster(*SPREAD)), encoding="utf-8")
    trace = "synthetic:n=4,rate=1000,input=fixed:900,output=fixed:3,seed=1"
    given = ["--cluster-config", str(path), "--dataset", trace, "--request-routing-policy", "RR"]
    assert main(["graph", "step", "--graph", str(tmp_path / "g.json"), "-v", *given]) == 0
    assert f"us on {len(common)} links that it shared:" in capsys.readouterr().out
    alone = [*given, "--collective-contention", "off"]
    assert main(["graph", "step", "--graph", str(tmp_path / "g.json"), "-v", *alone]) == 0
    assert "no link was shared with other traffic" in capsys.readouterr().out


def on_devices(graph: IterationGraph) -> list[GraphNode]:
    """Its nodes but for what the host has done, maybe so long before the step that devices were
    late.
    """
    kept = [node for node in graph.nodes if node.kind != "launch"]
    return [node.changed(lost_ps=None, late_ps=0) for node in kept]


def test_the_graph_of_a_step_has_the_times_of_the_run() -> None:
    """Of a prompt that meets another's collectives, and of decodes with and without company."""
    trace = "synthetic:n=6,rate=30,input=lognormal:500:max=2000,output=fixed:6,seed=4"
    options = {"request_routing_policy": "RR", "launch_ns": 0}
    prepared = llmsim.run(cluster(*SPREAD), trace, **options)._prepared
    groups, longer = prepared.lowered.groups, 0
    for group in (0, 1):
        steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, group)
        for iteration in range(len(steps.worked)):
            batch = steps.round(iteration)
            alone = iteration_graph(groups, group, batch)
            graph = in_run(alone, batch)
            ((start_ps, end_ps),) = batch.times_ps
            gap_ps = groups[group].engine.host_gap_ps
            assert graph.duration_ps == end_ps - start_ps - gap_ps
            longer += graph.duration_ps > alone.duration_ps
            if graph.duration_ps == alone.duration_ps:
                assert {node.lost_ps for node in graph.nodes} <= {None, 0}
                assert on_devices(graph) == on_devices(alone)
            assert [node.energy_aj for node in graph.nodes] == [
                node.energy_aj for node in alone.nodes
            ]
    assert 4 < longer < len(steps.worked) * 2


def test_the_series_of_links_adds_up_to_what_they_carried(tmp_path: Path) -> None:
    trace = "synthetic:n=12,rate=40,input=fixed:400,output=fixed:8,seed=1"
    result = llmsim.run(cluster(*SPREAD), trace, log_interval=0.05)
    result.save(tmp_path / "run")
    series = pd.read_parquet(tmp_path / "run" / "links.parquet")
    totals = series.groupby("link")[["bytes", "busy_ps"]].sum()
    links = result._results.links
    for link, row in totals.iterrows():
        assert (row["bytes"], row["busy_ps"]) == (links["bytes"][link], links["busy_ps"][link])
    assert len(totals) == np.count_nonzero(links["bytes"])
    assert series["busy_ps"].max() <= 50_000_000_000 and series["busy_ps"].min() > 0
    alone = llmsim.run(cluster(*APART), trace)
    alone.save(tmp_path / "run")
    assert not (tmp_path / "run" / "links.parquet").exists()


@pytest.mark.parametrize("way", ["whole", "layerwise"])
def test_cached_shares_give_the_times_of_flows_solved_one_by_one(way: str) -> None:
    """KV comes and goes on the links of collectives, for as long as requests arrive."""
    document = cluster(*SPREAD)
    for one, role in zip(document["nodes"][0]["instances"], ("prefill", "decode"), strict=True):
        one["pd_type"] = role
    trace = "synthetic:n=30,rate=20,input=lognormal:500:max=2500,output=lognormal:12,seed=6"
    prepared = run(document, trace, kv_transfer=way)._prepared
    assert len(prepared.lowered.contended) == 2
    found = []
    for recorded in (False, True):  # transfers that are recorded are solved one by one
        options = replace(prepared.simulation, record_transfers=recorded)
        results = simulate(prepared.lowered, prepared.workload, options)
        assert set(results.invariants.values()) == {"ok"}
        found.append((vars(results.requests), results.links))
    for first, second in zip(*found, strict=True):
        for name, column in first.items():
            assert np.array_equal(column, second[name]), name
