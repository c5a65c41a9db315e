"""Layer by layer, KV leaves when its layer's attention has ended, also from stages of a pipeline,
lock-step members, and groups that keep something elsewhere, and of models whose layers differ.
"""

from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.api.result import Result
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.export.step_graph.run_times import in_run
from llmsim.export.step_graph.transfers import KINDS, KV_SEND
from llmsim.model import (
    Attention,
    Dtypes,
    Layout,
    Operator,
    StateSpace,
    load_model,
    operators,
)
from llmsim.rounds.recorded import recorded_run
from tests.engine.command import build_command, run_case
from tests.lowering.clusters import cluster, model

TRACE = "synthetic:n=10,rate=400,input=lognormal:300:max=900,output=fixed:4,seed=5"
LAYERS = 4
PREFILL: dict[str, dict[str, Any]] = {
    "stages": {"num_npus": 4, "tp_size": 2, "pp_size": 2, "async_scheduling": False},
    "stages ahead": {"num_npus": 2, "tp_size": 1, "pp_size": 2, "async_scheduling": True},
    "lock-step": {"num_npus": 2, "tp_size": 2, "dp_group": "p"},
    "stages in lock-step": {"num_npus": 2, "pp_size": 2, "dp_group": "p"},
    "weights elsewhere": {"placement": {"default": {"weights": "cpu"}}},
}
MODELS: dict[str, dict[str, Any]] = {
    "alike": {"layers": LAYERS},
    "windows": {"layers": 5, "window": 64},
    "states": {"layers": 4, "linear": True},
    "mixers, MLPs and experts": {"pattern": "ME*-M*"},
}
CASES = [
    (where, what)
    for where in PREFILL
    for what in MODELS
    if not ("lock-step" in where and what == "windows")  # dense: its members do not meet
]


def document(folder: Path, name: str, what: str = "alike") -> dict[str, Any]:
    """Prefill instances on one node, and one that decodes on another."""
    keys = PREFILL[name]
    mixed = what not in ("alike", "windows")
    experts = 8 if "dp_group" in keys or mixed else 0
    shared = int(what == "states" and experts > 0)
    described = model(folder, experts=experts, shared=shared, **MODELS[what])
    found = cluster(described, links=[50, 5])
    (one,) = found["nodes"][0]["instances"]
    prefill = [{**one, "pd_type": "prefill", **keys}] * (2 if "dp_group" in keys else 1)
    nodes = [{"instances": prefill}, {"instances": [{**one, "pd_type": "decode"}]}]
    if "placement" in keys:
        nodes[0]["cpu_mem"] = {"mem_size": 64, "mem_bw": 100, "mem_latency": 0}
    return {**found, "kv_transfer": "layerwise", "nodes": nodes}


def run(folder: Path, name: str, what: str = "alike", **options: Any) -> Result:
    given = {"cost_source": "roofline", "request_routing_policy": "RR", **options}
    return llmsim.run(document(folder, name, what), TRACE, **given)


def graphs(result: Result, group: int) -> list[tuple[int, IterationGraph]]:
    """Of all steps of a group, as they ran, and when each began."""
    what = result._prepared
    steps = recorded_run(what.lowered, what.workload, what.simulation, group)
    groups, found = what.lowered.groups, []
    for iteration in range(len(steps.worked)):
        batch = steps.round(iteration)
        graph = in_run(iteration_graph(groups, group, batch), batch)
        found.append((min(start for start, _ in batch.times_ps), graph))
    return found


@pytest.mark.parametrize("contention", ["on", "off"])
@pytest.mark.parametrize(("name", "what"), CASES)
def test_folded_is_expanded(name: str, what: str, contention: str, tmp_path: Path) -> None:
    results = [
        run(tmp_path, name, what, exact=exact, collective_contention=contention)
        for exact in (False, True)
    ]
    for result in results:
        assert set(result.summary["invariants"].values()) == {"ok"}
    first, second = (one.requests for one in results)
    assert first.equals(second)


@pytest.mark.parametrize(("name", "what"), CASES)
def test_each_layer_leaves_when_its_attention_has_ended(
    name: str, what: str, tmp_path: Path
) -> None:
    sent, behind = set(), set()
    for origin_ps, graph in graphs(run(tmp_path, name, what), 0):
        by_number = {node.node: node for node in graph.nodes}
        for node in graph.nodes:
            if node.kind != KV_SEND or node.rank >= graph.ranks // len(graph.members):
                continue  # other members have steps without this one
            flow = (node.rank, origin_ps + node.start_ps, node.bytes_moved)
            sent.add(flow)  # also of other steps that run meanwhile
            for before in node.depends_on:
                attention = by_number[before]
                assert attention.rank == node.rank and attention.end_ps == node.start_ps
                assert attention.caches
                behind.add(flow)
    assert sent and (behind == sent or (name == "stages ahead" and len(behind) > len(sent) / 2))


@pytest.mark.parametrize(("name", "what"), CASES)
def test_the_engine_lands_kv_when_the_run_does(name: str, what: str, tmp_path: Path) -> None:
    """What lands behind the step is, in its traces, on its way until the step ends."""
    command = build_command()
    for number, (_, graph) in enumerate(graphs(run(tmp_path, name, what), 0)[:4]):
        case = tmp_path / str(number)
        write_chakra(graph, list(range(graph.ranks)), case)
        found = run_case(command, case, tmp_path, rules="default")
        assert found.exit_code == 0, found.errors
        last_ps = graph.duration_ps
        assert max(end or 0 for end in found.finish_ps()) == last_ps
        landed = sorted(min(one.end_ps, last_ps) for one in graph.nodes if one.kind in KINDS)
        times = found.times()
        kv = [
            times[rank, node.id][1]
            for rank in range(graph.ranks)
            for node in read_trace(case / f"workload.{rank}.et")
            if "start_ps" in node.attributes
        ]
        assert sorted(kv) == landed


def test_prompts_are_there_earlier(tmp_path: Path) -> None:
    """By most of what a whole prompt takes on the link, since layers leave while others run."""
    whole = run(tmp_path, "stages", kv_transfer="whole", kv_transfer_mode="push")
    layers = run(tmp_path, "stages")
    means = [float(one.requests["ttft_ps"].mean()) for one in (whole, layers)]
    assert means[1] < means[0]


def names(layers: tuple[str, ...]) -> list[str]:
    """Of the operators that cache something in these layers."""
    found = {"full": "attention", "sliding": "attention_sliding", "linear": "linear_attention"}
    return [found[kind] for kind in layers if kind != "none"]


@pytest.mark.parametrize(("name", "what"), [one for one in CASES if one[1] != "alike"])
def test_layers_run_in_the_order_of_the_model(name: str, what: str, tmp_path: Path) -> None:
    """Also in stages, where it goes on."""
    _, graph = graphs(run(tmp_path, name, what), 0)[0]
    kinds = load_model(document(tmp_path, name, what)["nodes"][0]["instances"][0]["model_name"])
    stages = PREFILL[name].get("pp_size", 1)
    ranks = PREFILL[name].get("num_npus", 1) // stages
    ran = [
        node.name
        for stage in range(stages)
        for node in sorted(graph.of_rank(stage * ranks), key=lambda one: one.start_ps)
        if node.caches
    ]
    assert ran == names(kinds.layer_kinds)


def operators_by_layer(model_path: str) -> list[list[Operator]]:
    """Of one rank, in the order in which they run; what is in front of the layers comes first."""
    described = load_model(model_path)
    program = operators(described, Layout(), Dtypes())
    front = [op for op in program if op.part == "prologue"]
    every = range(described.num_layers)
    layers = [op for op in program if op.part == "layer"]
    return [front, *([op for op in layers if n in (op.in_layers or every)] for n in every)]


@pytest.mark.parametrize("what", MODELS)
def test_a_layer_leaves_behind_the_operators_before_it(what: str, tmp_path: Path) -> None:
    """A group alone in one stage: by hand, from how long each operator takes."""
    described = document(tmp_path, "weights elsewhere", what)
    del described["nodes"][0]["cpu_mem"]
    (prefill,) = described["nodes"][0]["instances"]
    del prefill["placement"]
    load = "synthetic:n=1,rate=1,input=fixed:200,output=fixed:2,seed=1"
    result = llmsim.run(described, load, cost_source="roofline")
    _, graph = graphs(result, 0)[0]
    takes_ps = {node.name: node.duration_ps for node in graph.nodes if node.kind not in KINDS}
    now_ps, leaves_ps = 0, []
    for layer in operators_by_layer(prefill["model_name"]):
        cached_ps = []
        for op in layer:
            now_ps += takes_ps[op.name]
            cached_ps += [now_ps] if isinstance(op, Attention | StateSpace) else []
        leaves_ps += cached_ps[-1:]
    sent = [node.start_ps for node in graph.nodes if node.kind == KV_SEND]
    assert sorted(sent) == leaves_ps
