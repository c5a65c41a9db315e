"""LoRA adapters of a trace: prefixes of their own, and the slots of a step."""

import csv
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim import _native
from llmsim.api.workload import workload_source
from llmsim.cli import run_main
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.export.jsonl import write_jsonl
from llmsim.model import Dtypes, Layout, LoraKernel, Operator, load_model, operators
from llmsim.model.memory.lora_slots import adapter_bytes
from llmsim.model.operators.lora import copies_of_adapter, with_lora
from llmsim.scheduling.conformance.vllm.installed import live_requests
from llmsim.workload import load_dataset, load_trace
from llmsim.workload.columns import with_adapters

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
LOADS = Path(__file__).parent / "recordings" / "lora_loads_vllm_0.33.0.json"
VLLM_033 = ("--engine-profile", "vllm-0.33")
PROMPT = list(range(64))


def trace(path: Path, *adapters: str, gap_ns: int = 0, output_toks: int = 20) -> Path:
    """Requests with the same prompt; "" for one without the key."""
    rows = [
        {
            "input_toks": len(PROMPT),
            "output_toks": output_toks,
            "arrival_time_ns": place * gap_ns,
            "input_tok_ids": PROMPT,
            **({"adapter": name} if name else {}),
        }
        for place, name in enumerate(adapters)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def keys_of(workload: Workload) -> list[list[int]]:
    bounds = workload.key_offsets.tolist()
    return [workload.keys[start:end].tolist() for start, end in pairwise(bounds)]


def same_blocks(workload: Workload) -> list[list[int]]:
    """For each pair of requests, the blocks at their beginnings that are equal."""
    keys = keys_of(workload)
    return [[_common(one, other) for other in keys] for one in keys]


def _common(one: list[int], other: list[int]) -> int:
    differing = [a != b for a, b in zip(one, other, strict=False)]
    return differing.index(True) if True in differing else len(differing)


def run(
    capsys: pytest.CaptureFixture[str],
    dataset: Path,
    *options: str,
    output: Path | None = None,
    cluster: Path = CLUSTER,
) -> Any:
    arguments = ["--cluster-config", str(cluster), "--dataset", str(dataset), *VLLM_033]
    if output is not None:
        arguments += ["--output", str(output)]
    assert run_main([*arguments, "--cost-source", "roofline", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_trace_names_adapters(tmp_path: Path) -> None:
    one = {"input_toks": 5, "output_toks": 2}
    rows = [
        {**one, "arrival_time_ns": 9, "adapter": "sql"},
        {**one, "arrival_time_ns": 5},
        {
            "arrival_time_ns": 1,
            "adapter": "org/chat",
            "sub_requests": [one, {**one, "adapter": "sql"}, {**one, "adapter": ""}],
        },
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    workload = load_trace(path, known_models=(), granularity=16)
    assert workload.adapter == ["org/chat", "sql", "", "", "sql"]
    assert not any("unknown" in note or "given twice" in note for note in workload.notes)
    first = load_dataset(f"trace:{path},limit=1", known_models=(), granularity=16)
    assert first.adapter == ["sql"]  # the file's first line, whatever its arrival
    late = load_dataset(f"trace:{path},window=0.000000004-", known_models=(), granularity=16)
    assert late.adapter == ["", "sql"]


@pytest.mark.parametrize("bad", [17, None, ["sql"], "x" * 257])
def test_a_bad_name_is_named(bad: object, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = {"input_toks": 5, "output_toks": 2, "arrival_time_ns": 0, "adapter": bad}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r't\.jsonl:1:\d+: "adapter" is .*LoRA adapter in at most'):
        load_trace(path, known_models=(), granularity=16)
    call = {"input_toks": 5, "output_toks": 2, "adapter": bad}
    path.write_text(json.dumps({"arrival_time_ns": 0, "sub_requests": [call]}), encoding="utf-8")
    with pytest.raises(InputError, match=r'"sub_requests\[0\]\.adapter" is'):
        load_trace(path, known_models=(), granularity=16)


def test_content_is_equal_within_an_adapter(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", "a", "b", "", "a", "", "b")
    workload = load_trace(path, known_models=(), granularity=16)
    names = workload.adapter or []
    expected = [[4 if one == other else 0 for other in names] for one in names]
    assert same_blocks(workload) == expected
    written = tmp_path / "again.jsonl"
    write_jsonl(workload, written, token_ids=True)
    again = load_trace(written, known_models=(), granularity=16)
    assert again.adapter == names
    assert same_blocks(again) == [
        [min(common, 4) if one != other else len(keys_of(again)[one]) for other, common in pairs]
        for one, pairs in enumerate(map(list, map(enumerate, expected)))
    ]


def test_keys_of_adapters_are_new() -> None:
    """Three requests with blocks 1 2, 1 3 and 1 2: those of the adapters get keys beyond 3."""
    offsets, keys = np.array([0, 2, 4, 6]), np.array([1, 2, 1, 3, 1, 2], np.uint64)
    assert with_adapters(offsets, keys, ["", "a", "b"]).tolist() == [1, 2, 4, 5, 6, 7]
    assert with_adapters(offsets, keys, ["a", "a", "a"]).tolist() == [4, 5, 4, 6, 4, 5]
    assert keys.tolist() == [1, 2, 1, 3, 1, 2]


def test_a_session_shares_what_its_adapter_computed(tmp_path: Path) -> None:
    """48 tokens, then 80, then 112: with one adapter each call hits the whole of the one before,
    and another adapter hits nothing.
    """
    path = tmp_path / "t.jsonl"
    calls = [{"new_toks": 32, "output_toks": 16, "extends": True} for _ in range(3)]
    for second, common in (("a", 3), ("b", 0)):
        rows = [calls[0], {**calls[1], "adapter": second}, calls[2]]
        row = {"arrival_time_ns": 0, "adapter": "a", "sub_requests": rows}
        path.write_text(json.dumps(row), encoding="utf-8")
        found = same_blocks(load_trace(path, known_models=(), granularity=16))
        assert (found[0][1], found[0][2]) == (common, 3)


@pytest.mark.parametrize(("slots", "hits"), [("1", 0), ("2", 0), ("2", 1)])
def test_prefixes_are_cached_for_each_adapter(
    slots: str, hits: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests a second apart; a hit leaves the last of four blocks to be computed."""
    names = ("a", "a") if hits else ("a", "b", "")
    path = trace(tmp_path / "t.jsonl", *names, gap_ns=10**9)
    assert run(capsys, path, "--max-loras", slots)["prefix_cache"]["hit_tokens"] == 48 * hits


def test_an_adapter_waits_for_a_slot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a, b, a, none and c, with one slot b waits for both a, and c for b; nobody else waits."""
    path, output = trace(tmp_path / "t.jsonl", "a", "b", "a", "", "c"), tmp_path / "out.csv"
    run(capsys, path, "--max-loras", "1", "--no-enable-prefix-caching", output=output)
    with output.open(encoding="utf-8", newline="") as file:
        rows = {row["request id"]: row for row in csv.DictReader(file)}
    starts = {name: int(row["queuing_delay"]) for name, row in rows.items()}
    ends = {name: int(row["end_time"]) for name, row in rows.items()}
    assert starts["0"] == starts["2"] == starts["3"] < starts["1"] < starts["4"]
    assert starts["1"] <= ends["0"] == ends["2"] < ends["1"]
    assert starts["4"] > ends["3"]
    assert sorted(ends, key=ends.__getitem__)[-2:] == ["1", "4"]
    first = output.read_bytes()
    for free in ("3", "9", None):
        given = ("--max-loras", free) if free else ()
        run(capsys, path, *given, "--no-enable-prefix-caching", output=output)
        with output.open(encoding="utf-8", newline="") as file:
            assert len({row["queuing_delay"] for row in csv.DictReader(file)}) == 1
    assert output.read_bytes() != first


@pytest.mark.parametrize(("release", "crowded"), [("0.24", True), ("0.32", True), ("0.33", False)])
def test_a_step_with_too_many_adapters_is_a_note(
    release: str, crowded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder has room for the image of the first request alone, so that a step passes over the
    second one, whose adapter takes no slot before 0.33: the third one starts with another.
    """
    image = {"encoder_inputs": [{"offset": 100, "tokens": 50}]}
    rows: list[dict[str, Any]] = [
        {"input_toks": 300, **image},
        {"input_toks": 300, **image, "adapter": "a"},
        {"input_toks": 300, "adapter": "b"},
    ]
    path = tmp_path / "t.jsonl"
    rows = [{**row, "output_toks": 20, "arrival_time_ns": 0} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    budgets = ("--max-num-encoder-input-tokens", "50", "--long-prefill-token-threshold", "100")
    options = ("--engine-profile", f"vllm-{release}", "--max-loras", "1", *budgets)
    notes = run(capsys, path, *options)["notes"]
    assert any("steps have more LoRA adapters than max_loras" in note for note in notes) is crowded


def test_the_run_says_what_it_does_with_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "t.jsonl", "a", "b", "")
    free, limited = run(capsys, path)["notes"], run(capsys, path, "--max-loras", "1")["notes"]
    assert limited[0].startswith("2 LoRA adapters share no prefixes; their kernels take what the")
    assert free[0].startswith("2 LoRA adapters share no prefixes; their memory, their loads")
    assert "no group has max_loras" in free[1]
    assert free[2:] == limited[1:]
    plain = trace(tmp_path / "plain.jsonl", "")
    unused = "max_loras only takes memory: no request of the trace has an adapter"
    assert unused in run(capsys, plain, "--max-loras", "1")["notes"]
    assert not any("adapter" in note for note in run(capsys, plain)["notes"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine_profile": "vllm-0.19"}, r"max_loras is no option of vllm-0.19.*vllm-0\.33"),
        ({"max_loras": None, "max_lora_rank": 8}, "max_lora_rank is given, but max_loras is not"),
        ({"max_loras": None, "max_cpu_loras": 2}, "max_cpu_loras is given, but max_loras is not"),
        ({"max_loras": 3, "max_cpu_loras": 2}, "max_cpu_loras is 2, less than max_loras, which is"),
        ({"max_loras": None, "fully_sharded_loras": True}, "fully_sharded_loras is given, but max"),
        ({"max_lora_rank": 60}, "max_lora_rank is 60, but vLLM takes one of 1, 8, 16, 32, 64, 128"),
        ({"scheduler": "orca"}, "max_loras is an option of the scheduler vllm_v1, not of orca"),
        (
            {
                "max_num_batched_tokens": 512,
                "max_num_seqs": 129,
                "speculative_config": {
                    "method": "eagle",
                    "num_speculative_tokens": 3,
                    "acceptance_rate": 0.5,
                },
            },
            "max_loras is given, but .* is 512, holds the 516 tokens",
        ),
    ],
)
def test_where_adapters_are_refused(options: dict[str, Any], sentence: str) -> None:
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    given = {"engine_profile": "vllm-0.33", "max_loras": 1, **options}
    with pytest.raises(InputError, match=sentence):
        resolve(parse_cluster(json.dumps({**cluster, "engine": given})), EngineOverrides())


def test_requests_of_python_have_adapters() -> None:
    requests = [llmsim.Request(0.0, 64, 2, adapter=name) for name in ("a", None, "b")]
    workload = workload_source(requests).load((), 16, 0)
    assert workload.adapter == ["a", "", "b"]
    live = live_requests(workload, stops=False, slots=True)
    assert [one.lora for one in live] == [1, 0, 2]
    assert [one.lora for one in live_requests(workload, stops=False)] == [0, 0, 0]


def test_loads_are_those_of_vllms_manager() -> None:
    """Recorded from `LRUCacheWorkerLoRAManager` of vLLM 0.33.0, without files and devices: adapters
    of each step, how many it copied to a slot, and how many it read.
    """
    for case in json.loads(LOADS.read_text(encoding="utf-8")):
        config = _native.LoraSlotsConfig()
        config.slots, config.host_slots = case["slots"], case["host_slots"]
        slots = _native.LoraSlots(config)
        for adapters, loads, reads in case["steps"]:
            use = slots.begin_step([(adapter, 2, 1) for adapter in adapters for _ in range(2)])
            count = len(adapters)
            assert use == [4 * count, 2 * count, count, 0, loads, reads]


def test_a_step_needs_experts_of_each_of_its_adapters() -> None:
    config = _native.LoraSlotsConfig()
    config.slots = config.host_slots = 2
    config.experts = [0, 8, 15, 20]
    slots = _native.LoraSlots(config)
    assert slots.begin_step([(1, 1, 1), (2, 1, 1)])[3] == 16
    assert slots.begin_step([(1, 1, 1), (1, 1, 1), (2, 900, 1)])[3] == 15 + 20
    with pytest.raises(ValueError, match="fewer adapters than the devices"):
        config.host_slots = 1
        _native.LoraSlots(config)


def microseconds(program: Iterable[Operator], use: dict[str, int]) -> float:
    """What adapters add to one step on an H100 whose memory the cluster file describes."""
    total = 0.0
    for op in program:
        if isinstance(op, LoraKernel):
            count = use[op.feature]
            moved = count * (op.read_bytes_per_token + op.write_bytes_per_token)
            computed = count * op.flops_per_token / (0.75 * 989e12)
            each = max(moved / (0.8 * 3350e9), computed) * 1e6 + 3.0 * op.kernels
            total += each * op.repeat
    return total


def test_adapters_take_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One prompt of 64 tokens: the file is read, the adapter copied, and the kernels run; a second
    prompt finds it in its slot.
    """
    ends = []
    for name in ("", "a"):
        path, output = trace(tmp_path / "t.jsonl", name, name, gap_ns=10**9), tmp_path / "out.csv"
        summary = run(capsys, with_tokens(path, 1), "--max-loras", "1", output=output)
        with output.open(encoding="utf-8", newline="") as file:
            ends.append([int(row["latency"]) for row in csv.DictReader(file)])
    assert summary["lora"] == {"adapter_loads": 1, "adapter_reads": 1}
    model = load_model("meta-llama/Llama-3.1-8B")
    plain = operators(model, Layout(), Dtypes())
    program = with_lora(plain, model, Dtypes(), 16)
    use = {"adapter_tokens": 64, "adapter_rows": 1, "adapters": 1}
    kernels_us = microseconds(program, use)
    size = adapter_bytes(model, Layout(), Dtypes(), 16)
    node = json.loads(CLUSTER.read_text(encoding="utf-8"))
    memory = node["nodes"][0]["cpu_mem"]
    rate = min(node["link_bw"], memory["mem_bw"])
    copy_us = size / (rate * 1e3) + (node["link_latency"] + memory["mem_latency"]) / 1e3
    copy_us += 3.0 * 2 * copies_of_adapter(plain, model)
    read_us = size / (memory["mem_bw"] * 1e3) + memory["mem_latency"] / 1e3
    first, second = ((with_it - without) / 1e3 for without, with_it in zip(*ends, strict=True))
    assert first == pytest.approx(kernels_us + copy_us + read_us, rel=1e-4)
    assert second == pytest.approx(kernels_us, rel=1e-4)


def with_tokens(path: Path, output_toks: int) -> Path:
    """The trace without content that a second request could hit, and with other answers."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["output_toks"] = output_toks
        del row["input_tok_ids"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(("kept", "reads"), [("2", 6), ("3", 3), (None, 6)])
def test_host_memory_keeps_adapters(
    kept: str | None, reads: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three adapters in turn never find their slot among two, but perhaps themselves in memory."""
    path = with_tokens(trace(tmp_path / "t.jsonl", *"abcabc", gap_ns=10**9), 1)
    given = ("--max-cpu-loras", kept) if kept else ()
    summary = run(capsys, path, "--max-loras", "2", *given)
    assert summary["lora"] == {"adapter_loads": 6, "adapter_reads": reads}


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"])
@pytest.mark.parametrize("layout", [{"tp_size": 2}, {"tp_size": 2, "pp_size": 2}])
def test_every_way_to_run_a_step_agrees(
    model: str, layout: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folded and node by node; with the exchange of fully sharded adapters where none is whole."""
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    instance = cluster["nodes"][0]["instances"][0]
    instance |= {"model_name": model, "num_npus": 4, "ep_size": 1, **layout}
    instance["num_npus"] = layout["tp_size"] * layout.get("pp_size", 1)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    dataset = trace(tmp_path / "t.jsonl", *"ab", "", *"ca", gap_ns=10**7, output_toks=4)
    rows = []
    for how in ((), ("--exact",)):
        output = tmp_path / f"out{len(how)}.csv"
        options = ("--max-loras", "2", "--fully-sharded-loras", *how)
        summary = run(capsys, dataset, *options, output=output, cluster=path)
        rows.append(output.read_bytes())
    assert rows[0] == rows[1]
    assert summary["lora"]["adapter_loads"] >= 3
    names = {one["operator"] for one in summary["sources"]["operators"]}
    number = "_1" if "pp_size" in layout else ""
    assert {f"lora_load{number}", "qkv_proj_lora", "qkv_proj_lora_gather"} <= names


def test_where_the_time_of_adapters_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    cluster["nodes"][0]["instances"][0] |= {"tp_size": 2, "num_npus": 2}
    cluster["engine"] = {"enable_sequence_parallelism": True}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    summary = run(capsys, trace(tmp_path / "t.jsonl", "a"), "--max-loras", "1", cluster=path)
    assert "are not modelled with sequence parallelism" in summary["notes"][0]
    assert "lora" not in summary
    assert not [one for one in summary["sources"]["operators"] if "lora" in one["operator"]]


def test_graphs_of_a_step_have_the_nodes_of_its_adapters(tmp_path: Path) -> None:
    """As long as the step in the run; and none where the step has no adapter."""
    requests = [llmsim.Request(0.0, 64, 3, adapter="a"), llmsim.Request(1.0, 64, 3)]
    found = llmsim.run(
        str(CLUSTER), requests, engine_profile="vllm-0.33", max_loras=1, cost_source="roofline"
    )
    for step, has in ((0, True), (2, True), (3, False)):
        graph = found.graph(group=0, step=step)
        names = {str(name) for _, name in graph.nodes(data="name")}
        lora = {name for name in names if "lora" in name and graph_time(graph, name)}
        assert bool(lora) == has
        assert ("lora_load" in lora) == (step == 0)


def graph_time(graph: Any, name: str) -> float:
    """Of all nodes of a name, us."""
    nodes = [node for _, node in graph.nodes(data=True) if node["name"] == name]
    return float(sum(node["duration_us"] for node in nodes))
