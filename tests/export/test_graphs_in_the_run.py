"""Graphs of steps whose copies or rows met other traffic, or ran ahead of the step, and of ranks on
unequal routes: each member's end is that of the run, and the engine takes its time, to the
picosecond.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, ffn

import llmsim
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import IterationGraph, Round, iteration_graph
from llmsim.export.step_graph.nodes import M2N_RECEIVE
from llmsim.export.step_graph.run_times import in_run
from llmsim.rounds.recorded import recorded_run
from tests.engine.command import build_command, run_case
from tests.lowering.clusters import model
from tests.lowering.network.test_groups_share_links import cluster as pcie_server

LOAD = "synthetic:n=10,rate=20000,input=uniform:min=50:max=700,output=fixed:6,seed={}"
QUIET = {"host_gap_ns": 0, "host_sequence_ns": 0}
BUT_EMBEDDING = {
    "placement": {"default": {"weights": "cpu"}, "layers": {"embedding": {"weights": "npu"}}}
}
"""Rows of an embedding depend on the batch, so that nothing behind their copy runs ahead."""
PIM = {"enable_attn_offloading": True}
HALVES = {"enable_sub_batch_interleaving": True, "sub_batch_rule": "always"}
POOL = {"placement": {"default": {"weights": "cxl:0"}}}
HOST = {"placement": {"default": {"weights": "cpu"}}}


def offloading(path: str, count: int = 1, tp: int = 1, pp: int = 1, **keys: Any) -> dict[str, Any]:
    one = {"model_name": path, "hardware": "A6000", "num_npus": tp * pp, "tp_size": tp, **keys}
    if pp > 1:
        one["pp_size"] = pp
    memory: dict[str, Any] = {"mem_size": 512, "mem_bw": 100}
    if "enable_attn_offloading" in keys:
        memory["pim_config"] = "HBM2_1GB_2000_pim"
    pool = {"mem_size": 1024, "mem_bw": 20, "mem_latency": 250, "num_devices": 4}
    node = {"cpu_mem": memory, "instances": [{**one, **QUIET}] * count}
    return {"link_bw": [112, 32], "link_latency": [0, 1000], "cxl_mem": pool, "nodes": [node]}


def lock_step(path: str) -> dict[str, Any]:
    document = offloading(path, 2, 2, **HOST)
    for one in document["nodes"][0]["instances"]:
        one["dp_group"] = "one"
    return document


def met_members(path: str) -> dict[str, Any]:
    """Two lock-step members whose hand-overs cross one downlink, which the run leaves to the
    engine.
    """
    document = server(path, [3, 6], [5, 7], tp_size=1, pp_size=2)
    for one in document["nodes"][0]["instances"]:
        one["dp_group"] = "one"
    return document


def apart(path: str, nodes: int) -> dict[str, Any]:
    """A prefill instance, two attention and an FFN instance; KV meets rows on thin links."""
    prompts = {"model_name": path, "hardware": "H100", "pd_type": "prefill", **QUIET}
    keys = {"afd_micro_batches": 2, **QUIET}
    instances = [prompts, *[attention(path, 2, **keys)] * 2, ffn(path, 1, 2, **QUIET)]
    placed = [[one] for one in instances] if nodes > 1 else [instances]
    listed = [{"instances": each} for each in placed]
    return {"link_bw": [450, 5, 2], "link_latency": [1000, 1000, 3000], "nodes": listed}


def server(path: str, *devices: list[int], **keys: Any) -> dict[str, Any]:
    """Instances on devices of a PCIe server whose rings take routes of unequal lengths."""
    document = deepcopy(pcie_server(*devices, **keys))
    for one in document["nodes"][0]["instances"]:
        one |= {"model_name": path, **QUIET}
    return document


UNEQUAL = [5, 7, 0, 1, 4, 6, 3, 2]
CASES: dict[str, Any] = {
    "copies from a pool": lambda of, _: offloading(of, 2, **POOL),
    "copies of ranks": lambda of, _: offloading(of, 2, 2, **POOL),
    "copies of stages": lambda of, _: offloading(of, 2, 1, 2, **HOST),
    "copies alone": lambda of, _: offloading(of, **HOST),
    "copies ahead": lambda of, _: offloading(of, **BUT_EMBEDDING),
    "copies of two ahead": lambda of, _: offloading(of, 2, 2, **BUT_EMBEDDING),
    "copies in lock-step": lambda _, experts: lock_step(experts),
    "attention in memory": lambda of, _: offloading(of, 2, 2, **PIM),
    "halves in memory": lambda of, _: offloading(of, 3, **PIM, **HALVES),
    "rows beside KV": lambda _, experts: apart(experts, 1),
    "rows between nodes": lambda _, experts: apart(experts, 2),
    "unequal routes": lambda of, _: server(of, [5, 7, 0, 1]),
    "stages on unequal routes": lambda of, _: server(of, UNEQUAL, tp_size=4, pp_size=2),
    "stages in lock-step on unequal routes": lambda _, experts: met_members(experts),
    "two on unequal routes": lambda of, _: server(of, [6, 0, 3, 5], [4, 2, 7, 1]),
}
MEETS = (
    "copies from a pool", "copies ahead", "copies of two ahead", "copies of ranks",
    "copies of stages", "copies in lock-step", "halves in memory", "rows beside KV",
    "rows between nodes", "two on unequal routes", "stages in lock-step on unequal routes",
)  # fmt: skip
"""Cases in which the run takes another time than the step alone."""
Step = tuple[Round, IterationGraph, IterationGraph]


def steps_of(folder: Path, name: str, ahead: bool) -> list[Step]:
    """The batch, the graph alone and the graph in the run, of up to six steps of each group."""
    document = CASES[name](model(folder, layers=3), model(folder, layers=3, experts=8))
    options: dict[str, Any] = {
        "cost_source": "roofline", "collective_costs": "links", "async_scheduling": ahead,
        "request_routing_policy": "RR",
    }  # fmt: skip
    if name.startswith("rows"):
        options["kv_transfer"] = "layerwise"
    prepared = llmsim.run(document, LOAD.format(len(name)), **options)._prepared
    groups, found = prepared.lowered.groups, []
    for group in range(len(groups)):
        if groups[group].layout.domain == "ffn":
            continue
        steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, group)
        for iteration in range(len(steps.worked))[:6]:
            batch = steps.round(iteration)
            alone = iteration_graph(groups, group, batch)
            found.append((batch, alone, in_run(alone, batch)))
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_engine_takes_the_time_of_the_run(name: str, tmp_path: Path) -> None:
    command, otherwise = build_command(), 0
    steps = steps_of(tmp_path, name, ahead="stages" not in name and "lock-step" not in name)
    for number, (batch, alone, graph) in enumerate(steps):
        origin_ps = min(start for start, _ in batch.times_ps)
        attends = batch.attention_members or len(batch.members)
        ends_ps = [end - origin_ps for _, end in batch.times_ps][:attends]
        assert list(graph.member_ends_ps())[:attends] == ends_ps
        case = tmp_path / str(number)
        write_chakra(graph, list(range(graph.ranks)), case)
        backend = "unaware" if graph.topology is None else "fair-share"
        found = run_case(command, case, tmp_path, backend=backend, rules="default")
        assert found.exit_code == 0, found.errors
        assert max(end for _, end in found.times().values()) == graph.duration_ps
        otherwise += graph.nodes != alone.nodes
    assert (otherwise > 0) or name not in MEETS


def test_copies_ahead_of_a_step_begin_before_it(tmp_path: Path) -> None:
    """They are nodes of the step that needs them, with all of their bytes; traces have what was
    left of them.
    """
    ahead = 0
    for number, (_, alone, graph) in enumerate(steps_of(tmp_path, "copies ahead", ahead=False)):
        early = [node for node in graph.nodes if node.start_ps < 0]
        ahead += len(early)
        assert all(node.kind == "copy" and node.route == "cpu -> npu" for node in early)
        assert sum(n.bytes_moved for n in graph.nodes) == sum(n.bytes_moved for n in alone.nodes)
        write_chakra(graph, [0], tmp_path / str(number))
        trace = read_trace(tmp_path / str(number) / "workload.0.et")
        left = [one.attributes["duration_ps"] for one in trace if "route" in one.attributes]
        copies = [node for node in graph.nodes if node.kind == "copy"]
        assert left == [max(0, one.end_ps) - max(0, one.start_ps) for one in copies]
    assert ahead > 0


def test_rows_that_kv_slowed_say_what_it_cost(tmp_path: Path) -> None:
    slowed = [
        node
        for _, _, graph in steps_of(tmp_path, "rows beside KV", ahead=False)
        for node in graph.nodes
        if node.lost_ps
    ]
    assert slowed and {node.kind for node in slowed} <= {M2N_RECEIVE, "m2n_send"}
    assert all(node.lost_ps is not None and node.lost_ps > 0 for node in slowed)
