"""A real vLLM run against its simulation, nothing fitted: the targets of
docs/explanation/accuracy.md.
"""

from pathlib import Path

import pytest
from shared_data import shared

from llmsim.cli import run_main
from llmsim.validation import read_recording
from llmsim.validation.compare.compare import compare

RUN = "groundtruth/rtxpro6000_llama31_8b"


def log() -> Path:
    return shared(f"{RUN}/vllm/requests.jsonl")


def errors(tmp_path: Path, *options: str) -> dict[str, float]:
    output = tmp_path / "out.csv"
    arguments = [
        "--cluster-config",
        shared(f"{RUN}/cluster.json"),
        "--dataset",
        shared("groundtruth/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl"),
        "--arrivals",
        log(),
        "--max-num-seqs",
        128,
        "--max-num-batched-tokens",
        2048,
        "--output",
        output,
        *options,
    ]
    assert run_main([str(argument) for argument in arguments]) == 0
    return compare(read_recording(log()), read_recording(output)).errors()


def bundle() -> tuple[str, str]:
    return "--profile-dir", str(shared("groundtruth/profiler/perf"))


def test_rtx_pro_6000_llama_8b_from_its_bundle(tmp_path: Path) -> None:
    found = errors(tmp_path, *bundle())
    for name in ("mean_tpot", "mean_latency", "output_throughput", "makespan", "paired_mape_tpot"):
        assert abs(found[name]) <= 1.0, (name, found[name])
    assert abs(found["mean_ttft"]) <= 2.5
    assert found["paired_mape_latency"] <= 1.2
    assert found["paired_mape_ttft"] <= 7


@pytest.mark.parametrize(
    ("term", "metric", "worse_by"),
    [
        ("async_lag", "paired_mape_ttft", 4.0),
        ("decode_skew", "paired_mape_tpot", 2.0),
        ("mixed_step", "paired_mape_tpot", 2.0),
        ("prefix_cache", "paired_mape_tpot", 0.4),
    ],
)
def test_each_term_matters(term: str, metric: str, worse_by: float, tmp_path: Path) -> None:
    """Without any of them the same bundle is further off, request by request."""
    full = errors(tmp_path, *bundle())
    assert errors(tmp_path, *bundle(), "--disable-term", term)[metric] > full[metric] + worse_by


@pytest.mark.parametrize("source", ["silicon"])
def test_from_the_silicon_database_nothing_fitted(tmp_path: Path, source: str) -> None:
    """Reported in docs/explanation/accuracy.md; held to the out-of-box bounds of a run that nobody
    profiled.
    """
    found = errors(tmp_path, "--cost-source", source)
    assert abs(found["mean_tpot"]) <= 6
    assert abs(found["output_throughput"]) <= 5
