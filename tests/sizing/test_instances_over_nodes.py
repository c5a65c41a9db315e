"""Instances that need several servers: their plans, cluster files and answers."""

import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import llmsim
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.lowering import LoweringOptions
from llmsim.lowering.device_memory import sheet_memory
from llmsim.sizing.answer import Answer, text
from llmsim.sizing.bounds import (
    LEAST_GAIN,
    SPLIT,
    SPREAD,
    gain_over_nodes,
    pruned_reason,
    views_of,
)
from llmsim.sizing.capacity import FEWEST_VERIFIED, able
from llmsim.sizing.emit import emit
from llmsim.sizing.load import RATE, Load
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan, Pool, Shape
from llmsim.sizing.shapes import shapes, shapes_over_nodes, units
from llmsim.sizing.size import size
from llmsim.sizing.targets import Targets

DENSE, EXPERTS = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
LARGE = "meta-llama/Llama-3.1-405B"
R1 = "deepseek-ai/DeepSeek-R1"


def plan(model: str, *pools: Pool, each: int = 4, device: str = "H100") -> Plan:
    return Plan(model, device, pools, (("max_num_seqs", 32),), each)


PLANS = {
    "stages on nodes": plan(DENSE, Pool(Shape(4, 2, nodes=2), 2)),
    "ranks over nodes": plan(DENSE, Pool(Shape(2), 1), Pool(Shape(8, nodes=2), 1)),
    "experts over nodes": plan(EXPERTS, Pool(Shape(8, ep=8, dp=8, nodes=2), 2)),
    "attention in nodes": plan(EXPERTS, Pool(Shape(8, ep=8, dp=2, nodes=2), 1)),
    "roles": plan(
        DENSE, Pool(Shape(8, nodes=2), 1, "prefill"), Pool(Shape(4, 2, nodes=2), 2, "decode")
    ),
    "nodes of six": plan(DENSE, Pool(Shape(8, nodes=2), 2), each=6),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_its_cluster_file(name: str) -> None:
    one = PLANS[name]
    written = resolve(
        parse_cluster(json.dumps(one.fields()), "cluster"),
        EngineOverrides(),
        sheet=sheet_memory("cluster"),
    )
    made = one.deployment()
    assert made.nodes == written.nodes and made.link == written.link
    for here, there in zip(made.groups, written.groups, strict=True):
        assert replace_engine(here, there) == there
    assert sum(group.num_devices for group in written.groups) == one.devices
    assert len(written.nodes) == one.nodes


def replace_engine(group: Any, other: Any) -> Any:
    from msgspec.structs import replace as changed

    assert group.engine.shown() == other.engine.shown()
    return changed(group, engine=other.engine)


@pytest.mark.parametrize("name", PLANS)
def test_no_node_has_more_devices_than_there_are(name: str) -> None:
    one = PLANS[name]
    used = dict.fromkeys(range(one.nodes), 0)
    for group in one.deployment().groups:
        for rank in range(group.num_devices):
            used[group.node + rank // group.devices_on_node] += 1
    assert min(used.values()) > 0 and max(used.values()) <= one.devices_per_node


@pytest.mark.parametrize("name", ["stages on nodes", "experts over nodes", "roles"])
def test_a_measured_run_has_the_figures_of_llmsim_run(name: str) -> None:
    bench = Bench(LoweringOptions(cost_source="roofline"))
    load = Load(RATE, 1.0, "fixed:300", "fixed:40", seed=3)
    found = bench.measure(PLANS[name], load, 20.0, 40, (99.0,)).at(99.0)
    given = "synthetic:n=40,rate=20,input=fixed:300,output=fixed:40,seed=3"
    how = {"cost_source": "roofline", "seed": 3, "request_routing_policy": "LOAD"}
    summary = llmsim.run(PLANS[name].fields(), given, **how).summary
    for metric in ("ttft", "tpot", "e2el"):
        assert found[metric] == pytest.approx(summary[f"p99_{metric}_ms"], rel=1e-3)


def test_layouts_are_those_that_engines_run_over_nodes() -> None:
    dense = [shape.label for shape in shapes_over_nodes(DENSE, 8, 2)]
    assert dense == ["TP8 PP2 on 2 nodes", "TP16 on 2 nodes"]
    experts = {shape.label for shape in shapes_over_nodes(EXPERTS, 8, 2)}
    wide = {"TP16 EP16", "TP8 PP2 EP8", "TP8 DP2 EP16", "DP16 EP16"}
    assert experts == set(dense) | {f"{label} on 2 nodes" for label in wide}
    for each, nodes in itertools.product((1, 2, 6, 8), (2, 4)):
        for shape in shapes_over_nodes(EXPERTS, each, nodes):
            assert shape.nodes == nodes and shape.devices // nodes <= each < 2 * shape.devices
    inside = list(shapes(EXPERTS, 8))
    assert inside and all(shape.nodes == 1 for shape in inside)


def test_nodes_are_as_few_as_hold_the_model_and_twice_as_many() -> None:
    """405 billion weights of two bytes need twelve H100."""
    for model, each, nodes in (
        (DENSE, 8, [1, 2, 4]),
        (LARGE, 8, [1, 2, 4]),
        (LARGE, 4, [1, 2, 4, 8]),
    ):
        made = units(model, "H100", "colocated", each)
        assert sorted({one.pools[0].shape.nodes for one, _ in made}) == nodes


def test_layouts_that_the_engine_refuses_are_not_measured() -> None:
    """R1's blocks of 128 quantised weights are not cut over 32 ranks."""
    options, targets = LoweringOptions(), Targets.parse("ttft:1e6", 99)
    reasons = {
        shape.label: pruned_reason(Plan(R1, "H100", (Pool(shape, 1),)), EASY, targets, 10, options)
        for shape in shapes_over_nodes(R1, 8, 4)
    }
    refused = {label for label, reason in reasons.items() if reason.name == SPLIT}
    assert refused == {"TP32 on 4 nodes", "TP32 EP32 on 4 nodes"}
    assert not any(reason.name for label, reason in reasons.items() if label not in refused)


EASY = Load(RATE, 0.01, "fixed:200", "fixed:10")
SHORT: dict[str, Any] = {"input": "fixed:200", "output_tokens": "fixed:10"}


def test_gains_are_those_of_reading_fewer_weights() -> None:
    """With an ideal network a step reads (W / n + K) bytes of a device, in place of W + K."""
    options = LoweringOptions()
    for model, device, gains in ((DENSE, "H100", False), (R1, "H200", True)):
        over = Plan(model, device, (Pool(Shape(16, nodes=2), 1),))
        inside = replace(over, pools=(Pool(Shape(8), 1),))
        ledger = views_of(inside.deployment(), inside.pools[0], 0, options)[0].ledger
        weights = -dict(ledger.lines)["weights"]
        expected = (weights + ledger.kv_bytes) / (weights / 2 + ledger.kv_bytes)
        assert gain_over_nodes(over, options) == pytest.approx(expected)
        assert (expected >= LEAST_GAIN) == gains


def everything(answer: Answer, most: int) -> list[Plan]:
    """Every deployment of at most so many devices that meets the targets, in one architecture."""
    question, bench, found = answer.found.question, Bench(), []
    (architecture,) = question.architectures
    (device,) = question.devices
    split = (question.devices_per_node, question.server)
    made = list(units(question.model, device, architecture, *split))
    wholes = [one for one, role in made if role == "both"]
    prefills, decodes = ([o for o, role in made if role == r] for r in ("prefill", "decode"))
    for one, other in itertools.product(prefills, decodes):
        wholes.append(replace(one, pools=(one.pools[0], other.pools[1])))
    for whole in wholes:
        least = min(pool.shape.devices for pool in whole.pools)
        for counts in itertools.product(range(1, most // least + 1), repeat=len(whole.pools)):
            wanted = whole.with_counts(*counts)
            if wanted.devices <= most and meets(bench, wanted, answer):
                found.append(wanted)
    return found


def meets(bench: Bench, wanted: Plan, answer: Answer) -> bool:
    from llmsim.config.errors import LlmsimError

    question = answer.found.question
    try:
        run, missed, problem = able(
            bench,
            wanted,
            question.load,
            question.targets,
            fewest=FEWEST_VERIFIED,
            stops=question.targets.limits,
        )
    except LlmsimError:
        return False
    return run is not None and run.complete and not missed and not problem


QUESTIONS: dict[str, tuple[str, dict[str, Any], int]] = {
    "experts that need two nodes": (
        EXPERTS,
        {"rate": 2, "slo": "ttft:2000,tpot:30", "architecture": "colocated"},
        2,
    ),
    "dense weights that need two nodes": (
        "Qwen/Qwen3-32B",
        {"rate": 0.3, "slo": "ttft:6000,tpot:80", "architecture": "colocated"},
        2,
    ),
    "both roles need two nodes": (
        "Qwen/Qwen3-32B",
        {"rate": 0.5, "slo": "ttft:6000,tpot:60", "architecture": "pd"},
        2,
    ),
    "a model that fits one node": (
        "Qwen/Qwen3-14B",
        {"rate": 0.5, "slo": "ttft:3000,tpot:60", "architecture": "colocated"},
        1,
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_nothing_with_fewer_devices_meets_the_targets(name: str) -> None:
    """On servers of one L40S, whose memory holds 14 billion weights and not 30."""
    model, asked, nodes = QUESTIONS[name]
    load: dict[str, Any] = {"input": "fixed:1000", "output_tokens": "fixed:50"}
    found = size(model, "L40S", **load, **asked, devices_per_node=1)
    best = found.best
    assert best is not None and best.plan.pools[0].shape.nodes == nodes
    meeting = everything(found, best.plan.devices)
    assert best.plan in meeting
    assert min(plan.devices for plan in meeting) == best.plan.devices
    assert "--devices-per-node" not in text(found)


def test_a_node_is_left_where_no_node_meets_the_targets() -> None:
    """Weights of a node's devices take too long to read; those of two nodes do not."""
    asked: dict[str, Any] = {"rate": 0.05, "architecture": "colocated", "devices_per_node": 1}
    found = size("Qwen/Qwen3-8B", "H100", slo="tpot:5.2", **SHORT, **asked)
    assert found.best is not None and found.best.plan.pools[0].shape.nodes > 1
    easy = size("Qwen/Qwen3-8B", "H100", slo="tpot:12", **SHORT, **asked)
    assert easy.best is not None and easy.best.plan.devices == 1
    assert easy.found.pruned.counts[SPREAD] > 0 and "gain little" in text(easy)


SPANNING = Plan(
    EXPERTS,
    "H100",
    (
        Pool(Shape(16, ep=16, nodes=2), 1, "prefill"),
        Pool(Shape(16, ep=16, dp=16, nodes=2), 2, "decode"),
    ),
)


def test_each_node_has_a_line_of_its_own(tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in emit(SPANNING, tmp_path)}
    serve = [shlex.split(line) for line in files["vllm.sh"].splitlines() if " vllm serve " in line]
    assert len(serve) == 6 and [("--headless" in line) for line in serve] == [False, True] * 3
    value = lambda line, option: line[line.index(option) + 1]  # noqa: E731
    first, second, third, fourth = serve[:4]
    assert [value(line, "--node-rank") for line in (first, second)] == ["0", "1"]
    assert {value(line, "--master-addr") for line in (first, second)} == {"node0"}
    assert {value(line, "--nnodes") for line in (first, second)} == {"2"}
    assert {value(line, "--data-parallel-address") for line in (third, fourth)} == {"node2"}
    assert value(fourth, "--data-parallel-start-rank") == "8"
    assert {value(line, "--data-parallel-size-local") for line in serve[2:]} == {"8"}
    router = files["vllm.sh"].splitlines()[-1]
    assert [word for word in router.split() if word.startswith("http")] == [
        "http://node0:8100", "http://node2:8101", "http://node4:8102",
    ]  # fmt: skip
    sglang = [line for line in files["sglang.sh"].splitlines() if "launch_server" in line]
    assert len(sglang) == 6 and "--nnodes 2 --node-rank 1 --dist-init-addr node0:29500" in sglang[1]
    assert files["sglang.sh"].splitlines()[-1].count("http://") == 3


def test_manifests_have_a_pod_for_each_node(tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in emit(SPANNING, tmp_path)}
    sets = list(yaml.safe_load_all(files["lws.yaml"]))
    pods, gpus = 0, 0
    for one in sets:
        template = one["spec"]["leaderWorkerTemplate"]
        leader, worker = template["leaderTemplate"], template["workerTemplate"]
        assert template["size"] == 2 and "readinessProbe" in leader["spec"]["containers"][0]
        (container,) = worker["spec"]["containers"]
        assert "--headless" in container["args"][0] and "readinessProbe" not in container
        pods += one["spec"]["replicas"] * template["size"]
        gpus += (
            one["spec"]["replicas"]
            * template["size"]
            * int(container["resources"]["limits"]["nvidia.com/gpu"])
        )
    assert pods == SPANNING.nodes and gpus == SPANNING.devices
    services = yaml.safe_load(files["dynamo.yaml"])["spec"]["services"].values()
    workers = [one for one in services if one["componentType"] == "worker"]
    assert [one["multinode"]["nodeCount"] for one in workers] == [2, 2]
    assert [one["resources"]["limits"]["gpu"] for one in workers] == ["8", "8"]
    values = yaml.safe_load(files["llm-d-values.yaml"])
    sizes = {"tensor": 1, "data": 16, "dataLocal": 8, "workers": 2}
    assert values["multinode"] is True and values["decode"]["parallelism"] == sizes
    compose = yaml.safe_load(files["compose.yaml"])["services"]
    assert len(compose) == 6 and compose["decode-1-1"]["profiles"] == ["node3"]
    assert "--headless" in compose["decode-1-1"]["command"]


def test_an_emitted_cluster_file_runs_as_planned(tmp_path: Path) -> None:
    emit(SPANNING, tmp_path)
    load, how = "synthetic:n=20,rate=20,input=200,output=20,seed=1", {"cost_source": "roofline"}
    written = llmsim.run(tmp_path / "cluster.json", load, **how)
    assert written.requests.equals(llmsim.run(SPANNING.fields(), load, **how).requests)
    links = llmsim.Cluster.load(tmp_path / "cluster.json").fields()["link_bw"]
    assert links == [450, 450, 50], "NVLink in a node, a network card between nodes"
