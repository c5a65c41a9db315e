"""Plans: what is measured is what `llmsim run` gives for their cluster file."""

import dataclasses
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import llmsim
from llmsim.config import Deployment, EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import FailedRuns
from llmsim.lowering import LoweringOptions
from llmsim.lowering.device_memory import sheet_memory
from llmsim.sizing.emit import emit
from llmsim.sizing.load import CONCURRENCY, RATE, Load
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Option, Plan, Pool, Shape
from llmsim.sizing.shapes import BUDGETS, units
from llmsim.sizing.workers.workers import Workers

SMALL = "Qwen/Qwen3-8B"
EXPERTS = "Qwen/Qwen3-30B-A3B"
ROOFLINE = LoweringOptions(cost_source="roofline")
PLANS = [
    Plan(SMALL, "H100", (Pool(Shape(2), 3),)),
    Plan(SMALL, "H100", (Pool(Shape(2, 2), 3),), (("max_num_seqs", 32),), devices_per_node=4),
    Plan(SMALL, "H100", (Pool(Shape(4), 3, "prefill"), Pool(Shape(2), 5, "decode"))),
    Plan(EXPERTS, "H200", (Pool(Shape(4, ep=4), 2),)),
    Plan(EXPERTS, "H200", (Pool(Shape(4, ep=4, dp=4), 2),)),
    Plan(EXPERTS, "H200", (Pool(Shape(4, ep=4, dp=2), 1),), devices_per_node=4),
    Plan(EXPERTS, "H200", (Pool(Shape(2, ep=4, dp=2, ffn=4), 3),)),
    Plan(
        SMALL,
        "H100",
        (Pool(Shape(2), 3, "prefill"), Pool(Shape(2, ffn=1), 4, "decode")),
    ),
]


@pytest.mark.parametrize(("device", "budgets"), [("L40S", {()}), ("H100", set(BUDGETS))])
def test_a_budget_that_the_engine_takes_unasked_is_no_plan_of_its_own(
    device: str, budgets: set[tuple[Option, ...]]
) -> None:
    """vLLM takes 2,048 tokens a step on devices of less than 70 GiB, and 8,192 on others."""
    found = {plan.engine for plan, _ in units(SMALL, device, "colocated", 1)}
    assert found == budgets


def test_data_parallel_ranks_have_roles_where_they_fill_a_node() -> None:
    """Beside the other role on a node, or between nodes, their rows meet its KV."""
    found = {
        pool.shape
        for plan, _ in units("deepseek-ai/DeepSeek-V3", "H200", "pd", 8)
        for pool in plan.pools
    }
    assert Shape(8, ep=8, dp=8) in found and Shape(8, ep=8, dp=4) in found
    assert Shape(16, ep=16, nodes=2) in found
    assert all(shape.nodes == 1 and shape.devices == 8 for shape in found if shape.dp > 1)
    assert all(shape.pp == 1 for shape in found)


def _script(name: str, pool: Pool, folder: Path) -> str:
    emit(Plan(SMALL, "H100", (pool,)), folder)
    return (folder / name).read_text(encoding="utf-8")


def test_files_say_on_how_many_hosts_they_run(tmp_path: Path) -> None:
    on_one = _script("vllm.sh", Pool(Shape(4), 2), tmp_path)
    assert "# Run all lines on one host; node0 is its name.\n" in on_one
    on_two = _script("vllm.sh", Pool(Shape(8), 2), tmp_path)
    assert "# Run the lines of node 0 on one host, those of node 1 on another;" in on_two


@pytest.mark.parametrize(
    ("name", "server", "router"),
    [
        ("vllm.sh", "vllm serve", "vllm-router"),
        ("sglang.sh", "sglang.launch_server", "sglang_router"),
    ],
)
def test_a_server_that_is_alone_answers_clients_itself(
    name: str, server: str, router: str, tmp_path: Path
) -> None:
    alone = _script(name, Pool(Shape(8), 1), tmp_path)
    assert router not in alone and "node0" not in alone
    last = alone.splitlines()[-1]
    assert server in last and last.endswith("--port 8000")
    beside = _script(name, Pool(Shape(4), 2), tmp_path).splitlines()
    assert router in beside[-1] and "--port 8000" in beside[-1]
    assert all("--port 8000" not in line for line in beside if server in line)


def resolved(plan: Plan) -> Deployment:
    cluster = parse_cluster(json.dumps(plan.fields()), "cluster")
    return resolve(cluster, EngineOverrides(), sheet=sheet_memory("cluster"))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_a_plan_is_what_its_cluster_file_resolves_to(plan: Plan) -> None:
    made, read = plan.deployment(), resolved(plan)
    assert made.nodes == read.nodes and made.link == read.link
    assert made.disaggregation == read.disaggregation
    for one, other in zip(made.groups, read.groups, strict=True):
        assert replace(one, engine=other.engine) == other
        assert one.engine.shown() == other.engine.shown()
    assert sum(group.num_devices for group in read.groups) == plan.devices


@pytest.mark.parametrize(
    "plan", [PLANS[0], PLANS[2], PLANS[5], *PLANS[-2:]], ids=lambda plan: plan.label
)
def test_a_measured_run_has_the_figures_of_llmsim_run(plan: Plan) -> None:
    load = Load(RATE, 1.0, "lognormal:300", "lognormal:60", seed=3)
    bench = Bench(ROOFLINE)
    bench.measure(plan, load, 8.0, 40, (50.0,))  # compiled groups are used again
    found = bench.measure(plan, load, 20.0, 40, (50.0, 99.0))
    workload = load.workload(20.0, 40, 16)
    requests = [
        llmsim.Request(arrival / 1e12, int(prompt), int(answer))
        for arrival, prompt, answer in zip(
            workload.arrival_ps, workload.input_tokens, workload.output_tokens, strict=True
        )
    ]
    summary = llmsim.run(plan.fields(), requests, cost_source="roofline", seed=3).summary
    # A request holds whole nanoseconds, a load picoseconds.
    for metric in ("ttft", "tpot", "e2el"):
        assert found.at(99.0)[metric] == pytest.approx(summary[f"p99_{metric}_ms"], rel=1e-4)
        assert found.at(50.0)[metric] == pytest.approx(summary[f"median_{metric}_ms"], rel=1e-4)
    assert found.output_tok_s == pytest.approx(summary["output_throughput"], rel=1e-4)
    assert found.complete


def test_equal_kinds_are_compiled_once() -> None:
    bench = Bench(ROOFLINE)
    for count in (1, 2, 5):
        bench.lowered(PLANS[0].with_counts(count))
    assert bench.compiled == 1
    bench.lowered(PLANS[2])
    assert bench.compiled == 3


def test_levels_differ_in_the_gaps_alone() -> None:
    load = Load(RATE, 1.0, "lognormal:300", "lognormal:60")
    slow, fast = load.workload(1.0, 50, 16), load.workload(4.0, 50, 16)
    assert (slow.input_tokens == fast.input_tokens).all()
    assert abs(slow.arrival_ps - 4 * fast.arrival_ps).max() <= 2
    closed = dataclasses.replace(load, kind=CONCURRENCY)
    clients = closed.clients(7.0)
    assert clients is not None and clients.count == 7
    assert not closed.workload(7.0, 50, 16).arrival_ps.any()


def double(bench: Bench, task: int) -> int:
    """A task for workers; a negative one ends its process."""
    import os

    if task < 0:
        os._exit(3)
    return 2 * task


def test_answers_do_not_depend_on_the_number_of_workers() -> None:
    tasks = [(PLANS[0].with_counts(n), Load(RATE, 4.0), 4.0, 40, (99.0,)) for n in (1, 2, 3)]
    answers = []
    for jobs in (1, 2):
        with Workers(jobs, ROOFLINE) as workers:
            answers.append(list(workers.map("tests.sizing.test_plans:measured", tasks)))
    assert answers[0] == answers[1]


def measured(bench: Bench, task: tuple) -> object:  # type: ignore[type-arg]
    return bench.measure(*task)


def test_a_process_that_dies_is_tried_once_more_and_then_named() -> None:
    with Workers(2, ROOFLINE) as workers:
        assert list(workers.map("tests.sizing.test_plans:double", [1, 2, 3])) == [2, 4, 6]
        with pytest.raises(FailedRuns, match="code 3, twice"):
            list(workers.map("tests.sizing.test_plans:double", [1, -1, 3]))


def test_sglang_gets_the_options_of_all_ranks(tmp_path: Path) -> None:
    """It divides its own by the ranks of data-parallel attention."""
    engine = (("max_num_batched_tokens", 1024), ("max_num_seqs", 64))
    plan = Plan("deepseek-ai/DeepSeek-V3", "H200", (Pool(Shape(8, ep=8, dp=8), 1),), engine)
    emit(plan, tmp_path)
    line = (tmp_path / "sglang.sh").read_text(encoding="utf-8").splitlines()[-1]
    assert "--chunked-prefill-size 8192 " in line and "--max-running-requests 512" in line
    assert "--max-num-seqs 64" in (tmp_path / "vllm.sh").read_text(encoding="utf-8")
