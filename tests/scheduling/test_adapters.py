"""LoRA adapters of a trace: prefixes of their own, and the slots of a step."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim.api.workload import workload_source
from llmsim.cli import run_main
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.export.jsonl import write_jsonl
from llmsim.scheduling.conformance.vllm_installed import live_requests
from llmsim.workload import load_dataset, load_trace
from llmsim.workload.columns import with_adapters

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
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
    capsys: pytest.CaptureFixture[str], dataset: Path, *options: str, output: Path | None = None
) -> Any:
    arguments = ["--cluster-config", str(CLUSTER), "--dataset", str(dataset), *VLLM_033]
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


def test_the_run_says_what_it_does_with_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "t.jsonl", "a", "b", "")
    free, limited = run(capsys, path)["notes"], run(capsys, path, "--max-loras", "1")["notes"]
    assert limited[0].startswith("2 LoRA adapters share no prefixes; their slots are in the memory")
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
        ({"engine_profile": "vllm-0.28"}, r"max_loras is no option of vllm-0.28.*vllm-0\.33"),
        ({"max_loras": None, "max_lora_rank": 8}, "max_lora_rank is given, but max_loras is not"),
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
