"""Logs of vLLM: its own engine, scheduler and statistics, with a model executor that computes
nothing.
"""

import itertools
import json
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import main
from llmsim.config.engine.profile import load_profile
from llmsim.config.errors import InputError
from llmsim.profiler.serve import serve_vllm
from llmsim.profiler.serve.serve_log import (
    Job,
    Log,
    ServeOptions,
    jobs_of,
    serve_log,
    summary_of,
    write_log,
)
from tests.profiler.test_host_time import LLAMA

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed (extra llmsim[vllm])"
)
TRACE = "synthetic:n=6,rate=2,input=uniform:20-100,output=uniform:3-9,seed=3"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServeOptions:
    from llmsim.scheduling.conformance.vllm.platform import prepare

    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    prepare()
    from tests.profiler.vllm_double import IdleExecutor

    arguments = serve_vllm.engine_arguments
    double: dict[str, Any] = {"distributed_executor_backend": IdleExecutor}
    monkeypatch.setattr(
        serve_vllm, "engine_arguments", lambda *each: {**arguments(*each), **double}
    )
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA))
    return ServeOptions(
        str(tmp_path / "tiny.json"),
        TRACE,
        tmp_path / "log",
        engine="vllm",
        dtype="fp32",
        max_num_seqs=4,
        max_num_batched_tokens=64,
        hardware="H200",
    )


def replayed(options: ServeOptions, jobs: list[Job]) -> Log:
    logs: list[Log] = []
    serve_vllm.replay(options, [jobs], logs.append)
    [log] = logs
    return log


def test_a_trace_is_replayed_and_can_be_simulated(options: ServeOptions, tmp_path: Path) -> None:
    jobs = jobs_of(options.dataset, 0)
    log = replayed(options, jobs)
    for job, each in zip(jobs, log.stamps, strict=True):
        assert (each.request_id, len(each.tokens)) == (job.request_id, job.output_tokens)
        assert each.queued is not None and each.scheduled is not None
        assert (
            each.arrival <= each.queued + 0.05 <= each.scheduled + 0.05
        )  # two clocks: to within their reading
        assert each.scheduled < each.tokens[0] and each.tokens == sorted(each.tokens)
    late_s = [
        each.arrival - log.stamps[0].arrival - job.arrival_s
        for each, job in zip(log.stamps, jobs, strict=True)
    ]
    assert (
        max(map(abs, late_s)) < 0.4 < jobs[-1].arrival_s / 3
    )  # submitted at their times, on a busy machine too
    summary = summary_of(log)
    assert 0 < summary["mean_ttft_ms"] < 60_000 and 3 < summary["mean_tpot_ms"] < 10_000
    assert_whole_batches(log, jobs)
    instance = log.facts["instance"]
    assert instance["max_num_seqs"] == 4 and instance["enable_prefix_caching"] is False
    assert instance["num_gpu_blocks_override"] == log.facts["num_gpu_blocks"] > 0
    assert load_profile(f"vllm-{version('vllm')}").name == instance["engine_profile"]
    write_log(options, log)
    run = str(tmp_path / "run")
    cluster = str(options.output / "cluster.json")
    assert main(["run", "--cluster-config", cluster, "--dataset", TRACE, "--run-dir", run]) == 0
    assert main(["validate", str(options.output / "requests.jsonl"), run]) == 0


def assert_whole_batches(log: Log, jobs: list[Job]) -> None:
    """Every token of every request is in one step, within the limits, and steps do not overlap."""
    assert sum(new for step in log.steps for new, _ in step.batch) == sum(
        job.input_tokens + job.output_tokens - 1 for job in jobs
    )
    for step in log.steps:
        assert len(step.batch) <= 4 and sum(new for new, _ in step.batch) <= 64
        assert step.start < step.end and 0 < step.extra["kv_cache_usage"] <= 1
    pairs = itertools.pairwise(log.steps)
    assert all(before.end <= after.start for before, after in pairs)
    longest = max(cached + new for step in log.steps for new, cached in step.batch)
    assert longest == max(job.input_tokens + job.output_tokens - 1 for job in jobs)


def test_several_traces_run_on_one_engine(options: ServeOptions) -> None:
    traces = [TRACE, TRACE.replace("seed=3", "seed=4")]
    written = serve_log(options, traces)
    assert [folder for folder, _ in written] == [options.output / "1", options.output / "2"]
    for (folder, log), dataset in zip(written, traces, strict=True):
        assert_whole_batches(log, jobs_of(dataset, 0))
        assert json.loads((folder / "meta.json").read_text())["options"]["dataset"] == dataset
        rows = (folder / "steps.jsonl").read_text().splitlines()
        assert [json.loads(row)["batch"] for row in rows] == [
            [list(pair) for pair in step.batch] for step in log.steps
        ]


def test_further_arguments_of_the_engine_are_vllms(options: ServeOptions) -> None:
    more = replace(options, engine_arguments={"async_scheduling": False, "block_size": 32})
    jobs = jobs_of(options.dataset, 0)
    log = replayed(more, jobs)
    instance = log.facts["instance"]
    assert (instance["async_scheduling"], instance["block_size"]) == (False, 32)
    assert_whole_batches(log, jobs)
    with pytest.raises(InputError, match="vLLM cannot start"):
        replayed(replace(options, engine_arguments={"no_such": 1}), jobs)


def test_what_vllm_refuses_is_one_sentence(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = serve_vllm.engine_arguments
    monkeypatch.setattr(
        serve_vllm, "engine_arguments", lambda *each: {**arguments(*each), "max_model_len": 10**9}
    )
    with pytest.raises(InputError, match="vLLM cannot start"):
        replayed(options, jobs_of(options.dataset, 0))


def test_an_engine_that_dies_is_one_sentence(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.profiler.vllm_double import IdleExecutor

    monkeypatch.setattr(IdleExecutor, "sample_tokens", lambda *_, **__: 1 // 0)
    with pytest.raises(InputError, match="vLLM's engine stopped"):
        replayed(options, jobs_of(options.dataset, 0))
