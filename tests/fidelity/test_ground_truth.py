"""A real vLLM run against its simulation from the profile bundle: nothing fitted, the targets of docs/accuracy.md."""

import importlib.util
from pathlib import Path

import pytest
from shared_data import shared

from llmsim.cli import run_main

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("compare_log", ROOT / "evaluation" / "compare_log.py")
assert SPEC is not None and SPEC.loader is not None
compare_log = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compare_log)


def errors(tmp_path: Path, *options: str) -> dict[str, float]:
    run = shared("groundtruth/rtxpro6000_llama31_8b")
    output = tmp_path / "out.csv"
    arguments = [
        "--cluster-config", run / "cluster.json",
        "--dataset", shared("groundtruth/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl"),
        "--max-num-seqs", 128, "--max-num-batched-tokens", 2048, "--output", output, *options,
    ]  # fmt: skip
    assert run_main([str(argument) for argument in arguments]) == 0
    real = compare_log.read_log(run / "vllm" / "requests.jsonl")
    result: dict[str, float] = compare_log.compare(real, compare_log.read_output(output), skip_seconds=2.0)
    return result


def test_rtx_pro_6000_llama_8b_from_its_bundle(tmp_path: Path) -> None:
    found = errors(tmp_path, "--profile-dir", str(shared("groundtruth/profiler/perf")))
    assert abs(found["mean_ttft"]) <= 5
    assert abs(found["mean_tpot"]) <= 1.5
    assert abs(found["output_throughput"]) <= 2
    assert found["paired_mape_ttft"] <= 10
    assert found["paired_mape_tpot"] <= 1.5


def test_each_term_matters(tmp_path: Path) -> None:
    """Without the prefix cache or with a synchronous scheduler the same bundle is further off."""
    bundle = ("--profile-dir", str(shared("groundtruth/profiler/perf")))
    full = errors(tmp_path, *bundle)
    assert errors(tmp_path, *bundle, "--no-async-scheduling")["paired_mape_ttft"] > 1.5 * full["paired_mape_ttft"]
    assert errors(tmp_path, *bundle, "--no-enable-prefix-caching")["mean_tpot"] > full["mean_tpot"] + 0.5


@pytest.mark.parametrize("source", ["silicon"])
def test_from_the_silicon_database_nothing_fitted(tmp_path: Path, source: str) -> None:
    """Reported in docs/accuracy.md; held to the out-of-box bounds of a run that nobody profiled."""
    found = errors(tmp_path, "--cost-source", source)
    assert abs(found["mean_tpot"]) <= 6
    assert abs(found["output_throughput"]) <= 5
