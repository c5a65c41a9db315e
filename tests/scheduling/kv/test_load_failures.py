"""Loads of KV that fail: what real schedulers did, what can be said in advance, and refusals."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from connector_cases import connector_case

import llmsim
from llmsim import _native
from llmsim.cli import run_main
from llmsim.scheduling.conformance.cases import run_groups
from llmsim.scheduling.conformance.compare import _goes_on_beside
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.recorded import load_recording, replay

ROOT = Path(__file__).resolve().parents[3]
RECORDINGS = ROOT / "tests" / "conformance" / "recordings" / "load_failures"
PAIR = str(ROOT / "cluster_config" / "h100_llama31_8b_pd.json")
POOL = str(ROOT / "cluster_config" / "h100_cpu_prefix_pool.json")
FEW = "synthetic:n=20,rate=40,input=fixed:200,output=fixed:5,seed=2"
PREFIXES = "synthetic:n=40,rate=50,input=fixed:20,output=fixed:5,prefixes=4:tokens=1024,seed=1"
ALWAYS = 1 << 53
FAILING_PAIR = ("--cluster-config", PAIR, "--kv-load-failure-rate", "0.1")


@pytest.mark.parametrize("release", ["0.24.0", "0.28.0", "0.33.0"])
def test_recordings_with_failed_loads_are_identical(release: str) -> None:
    paths = sorted(RECORDINGS.glob(f"vllm_{release}_*.json.gz"))
    connectors = [load_recording(path)["config"]["connector"] for path in paths]
    assert {one["kind"] for one in connectors} == {"handover", "pool"}
    assert {one["load_failures"]["policy"] for one in connectors} == {"recompute", "fail"}
    assert [replay(path).difference for path in paths] == [""] * len(paths)


def test_the_failures_decide_the_recorded_schedules(tmp_path: Path) -> None:
    for path in RECORDINGS.glob("vllm_0.33.0_*.json.gz"):
        case = load_recording(path)
        del case["config"]["connector"]["load_failures"]
        without = tmp_path / path.name
        without.write_bytes(gzip.compress(json.dumps(case).encode()))
        assert not replay(without).identical


def test_random_cases_have_failed_loads_of_both_policies() -> None:
    drawn = [random_case(seed, 5)["config"].get("connector", {}) for seed in range(400)]
    failing = [one for one in drawn if "load_failures" in one]
    assert {one["kind"] for one in failing} == {"handover", "pool"}
    assert {one["load_failures"]["policy"] for one in failing} == {"recompute", "fail"}
    assert all(one.get("parks", True) for one in failing)


def test_what_is_lost_begins_with_a_piece_and_repeats() -> None:
    config = _native.LoadFailuresConfig()
    config.chance, config.seed = ALWAYS // 2, 7
    first, second = _native.LoadFailures(config), _native.LoadFailures(config)
    found = [first.next(request, 16, 100, 32) for request in range(400)]
    assert found == [second.next(request, 16, 100, 32) for request in range(400)]
    assert set(found) == {16, 32, 64, 96, 100}
    assert 150 < found.count(100) < 250
    assert [first.next(3, 16, 100, 32) for _ in range(40)].count(100) not in (0, 40)
    whole = [first.next(request, 16, 100, 100) for request in range(50)]
    assert set(whole) == {16, 100}
    assert first.next(0, 100, 100, 32) == 100


def a_pair(**more: Any) -> dict[str, Any]:
    """Two prompts of 40 tokens that another group computes; blocks have 4 tokens."""
    connector = {
        "kind": "handover",
        "prefill_blocks": 50,
        "bytes_per_s": 10**8,
        "latency_ns": 0,
        "load_failures": {"chance": ALWAYS, "policy": "recompute"},
        **more,
    }
    return connector_case(connector, segments=(1, 2))


def decoded(case: dict[str, Any]) -> list[Any]:
    ran = run_groups(case)
    assert ran.stalled is None
    return [step for step in ran.groups[1] if step["scheduled"]]


def test_a_prompt_that_does_not_come_is_computed_again() -> None:
    """What has come needs one more token; what has not, all of the prompt."""
    came = decoded(a_pair(load_failures={"chance": 0, "policy": "recompute"}))
    lost = decoded(a_pair())
    assert came[0]["scheduled"][0] == ("r0", 1, 39)
    assert lost[0]["scheduled"][0] == ("r0", 40, 0)
    assert [name for step in lost for name in step["finished"]] == ["r0", "r1"]


def test_a_request_that_fails_gives_its_blocks_back() -> None:
    case = a_pair(load_failures={"chance": ALWAYS, "policy": "fail"})
    assert decoded(case) == []
    case["config"]["num_gpu_blocks"] = 12  # one prompt at a time
    assert run_groups(case).stalled is None


def test_comparisons_end_where_only_vllm_waits_for_somebody() -> None:
    class Still:
        stood_still_ps = frozenset({10, 30})

    ours = run_groups(a_pair())
    steps = [{"schedule_ps": at} for at in (0, 10, 20)]
    groups = type(ours)([steps, steps[:1]], None)
    assert _goes_on_beside(groups, [Still(), Still()]) == 10  # type: ignore[list-item]
    groups = type(ours)([steps[2:], steps[:1]], None)
    assert _goes_on_beside(groups, [Still(), Still()]) > 10**15  # type: ignore[list-item]


def run(cluster: str, dataset: str, **options: Any) -> llmsim.Result:
    return llmsim.run(cluster, dataset, cost_source="roofline", **options)


def test_failed_requests_are_counted_and_the_others_answered() -> None:
    result = run(PAIR, FEW, kv_load_failure_rate=0.5)
    summary = result.summary
    errored = list(result.requests["status"]).count("failed")
    assert 0 < errored < 20
    assert (summary["errored"], summary["failed"]) == (errored, errored)
    assert summary["completed"] == 20 - errored
    assert summary["load_failures"] == {"failed_loads": errored, "lost_tokens": 200 * errored}
    assert set(summary["invariants"].values()) == {"ok"}


def test_recomputing_answers_all_and_takes_longer() -> None:
    without = run(PAIR, FEW)
    never = run(PAIR, FEW, kv_load_failure_rate=0, kv_load_failure_policy="recompute")
    always = run(PAIR, FEW, kv_load_failure_rate=1, kv_load_failure_policy="recompute")
    assert "load_failures" not in never.summary
    assert never.summary["mean_ttft_ms"] == without.summary["mean_ttft_ms"]
    assert always.summary["completed"] == 20
    assert always.summary["mean_ttft_ms"] > without.summary["mean_ttft_ms"]
    assert set(always.summary["invariants"].values()) == {"ok"}


def test_pools_lose_chunks_and_the_seed_says_which() -> None:
    options = {"prefix_storage": "CPU", "kv_tier_recall": "async", "num_gpu_blocks_override": 150}
    failing = {"kv_load_failure_rate": 0.5, "kv_load_failure_policy": "recompute"}
    runs = [
        run(POOL, PREFIXES, max_model_len=2048, seed=seed, **options, **failing)
        for seed in (1, 1, 2)
    ]
    lost = [one.summary["load_failures"]["lost_tokens"] for one in runs]
    assert lost[0] == lost[1] != lost[2] > 0
    assert all(one.summary["completed"] == 40 for one in runs)
    assert all(set(one.summary["invariants"].values()) == {"ok"} for one in runs)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster-config", PAIR, "--kv-load-failure-policy", "recompute"], ""),
        (
            ["--cluster-config", POOL, "--kv-load-failure-rate", "0.1"],
            "has an effect only where KV is loaded: give a decode instance",
        ),
        (
            ["--cluster-config", POOL, "--kv-load-failure-rate", "0.1", "--prefix-storage", "CPU"],
            "kv_load_failure_rate with --kv-tier-recall sync does not run",
        ),
        (
            [*FAILING_PAIR, "--scheduling-policy", "h2q_br"],
            "does not go with the ranking h2q_br; choose scheduling_policy fcfs",
        ),
        (
            [*FAILING_PAIR, "--scheduler", "sarathi"],
            "is an option of the scheduler vllm_v1, not of sarathi; remove it",
        ),
        (
            ["--cluster-config", PAIR, "--kv-load-failure-rate", "1.1"],
            "--kv-load-failure-rate is 1.1; expected a number from 0 to 1",
        ),
    ],
)
def test_where_loads_may_fail(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_main([*arguments, "--cost-source", "roofline", "--dataset", FEW])
    assert code == (2 if said else 0)
    error = capsys.readouterr().err.strip()
    assert said in error and error.count("\n") == 0
