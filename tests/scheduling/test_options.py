"""The schedulers and queue orders as a person asks for them: options, defaults, contradictions, the
trace's field.
"""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduling.tiny import SCHEDULERS

from llmsim.cli import run_main
from llmsim.config import EngineArgs, EngineOverrides, load_cluster, resolve
from llmsim.config.engine.rankings import POLICIES
from llmsim.config.engine.schedulers import SCHEDULERS as NAMES
from llmsim.config.errors import InputError
from llmsim.lowering.scheduler import ORDERS
from llmsim.scheduling.conformance.cases import run_case
from llmsim.workload import load_trace

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"


def engine(**overrides: Any) -> EngineArgs:
    return resolve(load_cluster(CLUSTER), EngineOverrides(**overrides)).groups[0].engine


def summary(capsys: pytest.CaptureFixture[str], *options: object, dataset: object) -> Any:
    arguments = (
        "--cluster-config",
        CLUSTER,
        "--dataset",
        dataset,
        "--cost-source",
        "roofline",
        "--json",
        *options,
    )
    assert run_main([str(option) for option in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_configuration_and_core_know_the_same_names() -> None:
    assert sorted(set(NAMES) - {"vllm"}) == sorted(SCHEDULERS)
    assert set(POLICIES) == set(ORDERS)


def test_each_scheduler_brings_its_defaults() -> None:
    vllm, orca, sglang = engine(), engine(scheduler="orca"), engine(scheduler="sglang")
    assert (vllm.scheduler, vllm.async_scheduling, vllm.enable_chunked_prefill) == (
        "vllm_v1",
        True,
        True,
    )
    assert (orca.async_scheduling, orca.enable_chunked_prefill, orca.enable_prefix_caching) == (
        False,
        False,
        False,
    )
    assert (sglang.async_scheduling, sglang.block_size, sglang.enable_prefix_caching) == (
        False,
        1,
        True,
    )
    assert orca.origin["enable_chunked_prefill"] == "scheduler orca"
    assert engine(scheduler="sglang", block_size=16).block_size == 16
    assert engine(scheduling_policy="slack", ttft_target_ns=5).ttft_target_ps == 5000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheduler": "sarathy"}, "--scheduler is"),
        (
            {"scheduler": "sarathi", "async_scheduling": True},
            "--async-scheduling is an option of the scheduler vllm_v1",
        ),
        (
            {"scheduler": "orca", "prioritize_prefill": True},
            "--prioritize-prefill is an option of the scheduler",
        ),
        (
            {"scheduler": "mlfq", "reserve_full_isl": True},
            "--reserve-full-isl is an option of the scheduler",
        ),
        (
            {"scheduler": "orca", "long_prefill_token_threshold": 5},
            "--long-prefill-token-threshold is an option",
        ),
        (
            {"scheduler": "sglang", "watermark": 0.1},
            "--watermark does not go with the scheduler sglang",
        ),
        (
            {"scheduler": "static", "enable_chunked_prefill": True},
            "static batching computes a prompt in one iteration",
        ),
        ({"scheduler": "sglang", "enable_chunked_prefill": False}, "always cuts prompts"),
        ({"scheduler": "static", "enable_prefix_caching": True}, "has no prefix cache"),
        ({"scheduler": "mlfq", "scheduling_policy": "sjf"}, "orders by its levels"),
        (
            {"scheduler": "srpt", "kv_load_failure_rate": 0.5},
            "--kv-load-failure-rate does not go with the scheduler srpt: the scheduler srpt orders",
        ),
        (
            {"scheduler": "srpt", "engine_profile": "vllm-0.33", "kv_offloading_size": 2},
            "--kv-offloading-size does not go with the scheduler srpt",
        ),
        ({"prioritize_prefill": True, "skip_prefill": True}, "contradicts skip_prefill"),
        ({"ttft_target_ns": 5}, 'only with scheduling_policy "slack"'),
    ],
)
def test_what_means_nothing_to_a_scheduler_is_refused_never_ignored(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        engine(**options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_priorities_of_a_trace_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One place: while the first runs, the urgent one overtakes the one that came before it."""
    rows = [{**REQUEST, "arrival_time_ns": n, "priority": p} for n, p in enumerate((0, 5, 1))]
    trace, output = lines(tmp_path / "p.jsonl", *rows), tmp_path / "o.csv"
    for policy, order in (("priority", ["0", "2", "1"]), ("fcfs", ["0", "1", "2"])):
        summary(
            capsys,
            "--scheduling-policy",
            policy,
            "--max-num-seqs",
            1,
            "--output",
            output,
            dataset=trace,
        )
        finished = [row["request id"] for row in csv.DictReader(output.open(encoding="utf-8"))]
        assert finished == order


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_runs_a_trace_to_the_end(
    scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = "synthetic:n=60,rate=40,input=fixed:300,output=fixed:30,seed=1"
    options = ("--scheduler", scheduler, "--max-model-len", 2048, "--num-gpu-blocks-override", 3000)
    result = summary(capsys, *options, dataset=trace)
    assert result["completed"] == 60
    assert set(result["invariants"].values()) == {"ok"}


def test_decode_only_skips_the_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    trace = "synthetic:n=20,rate=5,input=fixed:4000,output=fixed:20,seed=1"
    whole = summary(capsys, dataset=trace)
    for option in ("--gen", "--skip-prefill"):
        decodes = summary(capsys, option, dataset=trace)
        assert decodes["mean_ttft_ms"] < whole["mean_ttft_ms"] / 2
        assert decodes["completed"] == 20
        assert set(decodes["invariants"].values()) == {"ok"}


def test_prioritizing_prefill_lowers_ttft_and_lengthens_the_longest_gap(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = "synthetic:n=50,rate=5,input=fixed:3000,output=fixed:100,seed=1"
    mixed = summary(capsys, "--max-num-batched-tokens", 512, dataset=trace)
    first = summary(capsys, "--max-num-batched-tokens", 512, "--prioritize-prefill", dataset=trace)
    assert first["mean_ttft_ms"] < mixed["mean_ttft_ms"]
    assert first["p99_itl_ms"] > mixed["p99_itl_ms"]


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def load(path: Path) -> Any:
    return load_trace(path, known_models=(), granularity=16)


REQUEST = {"input_toks": 5, "output_toks": 2, "arrival_time_ns": 0}


def test_a_trace_may_give_priorities(tmp_path: Path) -> None:
    call = {"input_toks": 5, "output_toks": 2}
    path = lines(
        tmp_path / "t.jsonl",
        {**REQUEST, "arrival_time_ns": 9, "priority": -3},
        {**REQUEST, "arrival_time_ns": 5},
        {"arrival_time_ns": 1, "priority": 7, "sub_requests": [call, {**call, "priority": 1}]},
    )
    workload = load(path)
    assert workload.priority.tolist() == [
        7,
        1,
        0,
        -3,
    ]  # in order of arrival, a session's calls together
    assert workload.priority.dtype == np.int32
    assert not any("priority" in note for note in workload.notes)
    assert load(lines(tmp_path / "u.jsonl", REQUEST)).priority is None


@pytest.mark.parametrize("bad", [1.5, "high", None, 1 << 31, True])
def test_a_bad_priority_is_named(bad: object, tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", REQUEST, {**REQUEST, "priority": bad})
    with pytest.raises(
        InputError, match=r't\.jsonl:2:\d+: "priority" is .*must be an integer from -2147483648'
    ):
        load(path)
    session = {
        "arrival_time_ns": 1,
        "sub_requests": [{"input_toks": 5, "output_toks": 2, "priority": bad}],
    }
    with pytest.raises(InputError, match=r'"sub_requests\[0\]\.priority" is'):
        load(lines(tmp_path / "u.jsonl", session))


def test_behind_a_stop_token_asynchronous_scheduling_computes_one_token_more() -> None:
    """Three tokens of one request: a step each; and where their end is not foreseen, one that
    nobody receives.
    """
    requests = [{"id": "0", "arrival": 0.0, "segments": [[1, 8]], "output_len": 3}]
    config = {
        "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 200, "num_gpu_blocks": 50,
        "async_scheduling": True,
    }  # fmt: skip
    resolved = {
        "max_num_scheduled_tokens": 16,
        "max_concurrent_batches": 2,
        "reserve_full_isl": True,
        "watermark": 0.0,
        "num_spec_tokens": 0,
        "num_lookahead_tokens": 0,
    }

    def tokens(**more: Any) -> list[int]:
        steps = run_case({"config": config | more, "requests": requests, "resolved": resolved})
        return [sum(tokens for _, tokens, _ in step["scheduled"]) for step in steps]

    assert tokens() == [8, 1, 1]
    assert tokens(ends_with_stop_token=True) == [8, 1, 1, 1]
    assert tokens(ends_with_stop_token=True, async_scheduling=False)[:3] == [8, 1, 1]
