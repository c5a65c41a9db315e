"""Exports of runs: our readers and prometheus-client read the same figures from them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim.cli import main
from llmsim.export.benchmark_formats.formats import FORMATS
from llmsim.validation import read_recording
from llmsim.validation.logs.recording import Recording

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_multi_instance.json"
LOAD = "synthetic:n=60,rate=30,input=lognormal:300,output=lognormal:40,seed=3"
NAMES = {"aiperf": "", "inference-perf": "", "openmetrics": ".txt", "llmservingsim": ".csv"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder `run`, and beside it the run in every format, by the command line."""
    folder = tmp_path_factory.mktemp("exports")
    arguments = ["run", "--cluster-config", str(CLUSTER), "--dataset", LOAD, "--json"]
    arguments += ["--cost-source", "roofline", "--run-dir", str(folder / "run")]
    assert main([*arguments, "--output", str(folder / "reference.csv")]) == 0
    for name in FORMATS:
        target = folder / f"{name}{NAMES.get(name, '.json')}"
        assert main(["export", str(folder / "run"), "--format", name, "-o", str(target)]) == 0
    return folder


def same(a: Recording, b: Recording, within_s: float) -> None:
    assert len(a) == len(b) == 60
    for name in ("arrival_s", "ttft_s", "latency_s"):
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=0, atol=within_s), name
    assert np.array_equal(a.input_tokens, b.input_tokens)
    assert np.array_equal(a.output_tokens, b.output_tokens)
    if a.itl_s is not None and b.itl_s is not None:
        assert np.allclose(np.sort(a.itl_s), np.sort(b.itl_s), rtol=0, atol=within_s)


@pytest.mark.parametrize(
    ("name", "kind", "within_s"),
    [
        ("vllm-bench.json", "vLLM benchmark", 1e-11),
        ("aiperf/profile_export.jsonl", "aiperf records", 1e-6),
        ("guidellm.json", "GuideLLM report", 1e-6),
        ("inference-perf/per_request_lifecycle_metrics.json", "Inference-Perf records", 2e-6),
    ],
)
def test_what_is_exported_is_read_back_the_same(
    exported: Path, name: str, kind: str, within_s: float
) -> None:
    again = read_recording(exported / name)
    assert again.kind == kind
    same(read_recording(exported / "run"), again, within_s)


@pytest.mark.parametrize("name", ["aiperf", "inference-perf"])
def test_a_folder_that_was_exported_is_read_whole(exported: Path, name: str) -> None:
    same(read_recording(exported / "run"), read_recording(exported / name), 2e-6)


def test_the_csv_is_that_of_the_run(exported: Path) -> None:
    written = (exported / "llmservingsim.csv").read_bytes()
    assert written == (exported / "reference.csv").read_bytes()


def test_statistics_are_those_of_the_summary(exported: Path) -> None:
    summary = json.loads((exported / "run" / "summary.json").read_text())
    bench = json.loads((exported / "vllm-bench.json").read_text())
    for name in ("completed", "duration", "output_throughput", "p99_ttft_ms", "median_itl_ms"):
        assert bench[name] == summary[name]
    assert bench["max_concurrent_requests"] >= 2
    assert 0 < bench["max_output_tokens_per_s"] <= summary["total_output_tokens"]
    aiperf = json.loads((exported / "aiperf" / "profile_export_aiperf.json").read_text())
    assert aiperf["time_to_first_token"]["unit"] == "ms"
    assert aiperf["time_to_first_token"]["p99"] == pytest.approx(summary["p99_ttft_ms"], abs=1e-6)
    assert aiperf["inter_token_latency"]["avg"] == pytest.approx(summary["mean_tpot_ms"], abs=1e-6)
    guide = json.loads((exported / "guidellm.json").read_text())["benchmarks"][0]
    ttft = guide["metrics"]["time_to_first_token_ms"]["successful"]
    assert ttft["mean"] == pytest.approx(summary["mean_ttft_ms"], abs=1e-6)
    assert guide["duration"] == pytest.approx(summary["duration"], abs=1e-6)
    folder = exported / "inference-perf" / "summary_lifecycle_metrics.json"
    latency = json.loads(folder.read_text())["successes"]["latency"]
    assert latency["request_latency"]["p99"] == pytest.approx(summary["p99_e2el_ms"] / 1e3)
    mlperf = json.loads((exported / "mlperf.json").read_text())
    assert mlperf["result_first_token_latency_99.00_percentile_ns"] == pytest.approx(
        summary["p99_ttft_ms"] * 1e6, abs=1
    )
    assert mlperf["result_validity"] == "INVALID"  # of 60 requests, none is the hundredth
    assert "too few for a 99th percentile" in mlperf["invalid_reasons"][0]


def test_openmetrics_is_read_by_prometheus_client_with_its_history(exported: Path) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = (exported / "openmetrics.txt").read_text()
    families = {one.name: one.samples for one in parser.text_string_to_metric_families(text)}
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert sum(map(len, families.values())) == len(lines)  # none was dropped
    run = read_recording(exported / "run")
    buckets = families["vllm:time_to_first_token_seconds_bucket"]
    last = max(float(one.timestamp) for one in buckets)
    for bound in ("0.02", "0.04", "+Inf"):
        final = [one for one in buckets if one.labels["le"] == bound]
        found = sum(one.value for one in final if float(one.timestamp) == last)
        assert found == np.count_nonzero(run.ttft_s <= float(bound))
    assert {one.labels["engine"] for one in buckets} == {"0", "1"}
    for name, expected in (
        ("prompt_tokens", run.input_tokens.sum()),
        ("generation_tokens", run.output_tokens.sum()),
    ):
        totals: dict[str, float] = {}
        for one in families[f"vllm:{name}"]:
            totals[one.labels["engine"]] = max(totals.get(one.labels["engine"], 0), one.value)
        assert sum(totals.values()) == expected
    usage = [one.value for one in families["vllm:kv_cache_usage_perc"]]
    assert 0 < max(usage) <= 1


def test_python_writes_the_same_files(exported: Path, tmp_path: Path) -> None:
    result = llmsim.run(CLUSTER, LOAD, cost_source="roofline")
    result.to_vllm_bench(tmp_path / "bench.json")
    result.to_openmetrics(tmp_path / "metrics.txt")
    result.to_aiperf(tmp_path / "aiperf")
    result.to_guidellm(tmp_path / "guide.json")
    result.to_inference_perf(tmp_path / "perf")
    for mine, theirs in (
        ("bench.json", "vllm-bench.json"),
        ("metrics.txt", "openmetrics.txt"),
        ("aiperf/profile_export.jsonl", "aiperf/profile_export.jsonl"),
        ("guide.json", "guidellm.json"),
        ("perf/summary_lifecycle_metrics.json", "inference-perf/summary_lifecycle_metrics.json"),
    ):
        assert (tmp_path / mine).read_bytes() == (exported / theirs).read_bytes()


def test_a_step_is_written_as_chakra(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="Chakra needs protobuf")
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", tp=2)
    result = llmsim.run(cluster, "synthetic:n=3,rate=9,input=50,output=5", cost_source="roofline")
    written = result.to_chakra(tmp_path / "step", step=2)
    assert len(written) >= 2 and all(path.stat().st_size for path in written)
    with pytest.raises(llmsim.InputError, match="group is 1"):
        result.to_chakra(tmp_path / "step", group=1)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("vllm", 'is "vllm" (did you mean "vllm-bench"?); it may be vllm-bench'),
        ("aiperff", '(did you mean "aiperf"?)'),
    ],
)
def test_an_unknown_format_is_one_sentence(
    exported: Path, form: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(exported / "run"), "--format", form, "-o", str(tmp_path / "x")]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_run_without_finished_requests_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--cluster-config", str(CLUSTER), "--dataset", LOAD, "--json"]
    arguments += ["--cost-source", "roofline", "--run-dir", str(tmp_path / "run")]
    assert main([*arguments, "--horizon", "0.001"]) == 0
    for name in FORMATS:
        capsys.readouterr()
        assert main(["export", str(tmp_path / "run"), "--format", name, "-o", str(tmp_path / name)])
        assert "no request finished" in capsys.readouterr().err
        assert not (tmp_path / name).exists()


def test_damaged_reports_are_refused(exported: Path, tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads((exported / "guidellm.json").read_text())
    bench = report["benchmarks"][0]
    for damaged, said in (
        ({**report, "benchmarks": [bench, bench]}, "holds 2 benchmarks"),
        ({**report, "benchmarks": [{}]}, "must be an object"),
        ({**report, "benchmarks": [{"requests": {"successful": []}}]}, "has no requests"),
        ({**report, "benchmarks": [{"requests": {"successful": [{}]}}]}, "request_start_time"),
    ):
        path = tmp_path / "report.json"
        path.write_text(json.dumps(damaged))
        with pytest.raises(llmsim.InputError, match=said):
            read_recording(path)
    path.write_text(json.dumps([{"start_time": 0, "end_time": 1, "info": {"output_tokens": 1}}]))
    with pytest.raises(llmsim.InputError, match="no output_token_times"):
        read_recording(path)


FAILED = (
    '{"arrival_time_ns": 0, "input_toks": 100, "output_toks": 5}\n'
    '{"arrival_time_ns": 0, "input_toks": 200000, "output_toks": 5}\n'
    '{"arrival_time_ns": 1000000, "input_toks": 300, "output_toks": 9000}\n'
    '{"arrival_time_ns": 2000000, "input_toks": 100, "output_toks": 1}\n'
    '{"arrival_time_ns": 900000000, "input_toks": 700, "output_toks": 9}\n'
)


@pytest.fixture(scope="module")
def with_failures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of which request 1 never ran and the client of request 2 gave up."""
    folder = tmp_path_factory.mktemp("failures")
    (folder / "trace.jsonl").write_text(FAILED)
    arguments = ["run", "--cluster-config", str(CLUSTER), "--dataset", str(folder / "trace.jsonl")]
    arguments += ["--request-timeout", "1", "--quiet", "--run-dir", str(folder / "run")]
    assert main(arguments) == 3
    return folder / "run"


@pytest.mark.parametrize("name", ["vllm-bench", "aiperf", "guidellm", "inference-perf"])
def test_requests_keep_their_places_behind_one_that_failed(
    with_failures: Path, name: str, tmp_path: Path
) -> None:
    target = tmp_path / f"exported{NAMES.get(name, '.json')}"
    assert main(["export", str(with_failures), "--format", name, "-o", str(target)]) == 0
    run, again = read_recording(with_failures), read_recording(target)
    assert again.request_id == run.request_id == ("0", "3", "4")
    assert again.failed.request_id == ("1", "2")
    assert np.allclose(again.failed.arrival_s, [0, 0.001], atol=1e-6)
    assert again.input_tokens.tolist() == [100, 100, 700]
    assert "2 of the log's 5 requests failed" in " ".join(one.sentence for one in again.findings)


def damaged(folder: Path, target: Path, file: str) -> Path:
    """A copy of a run folder whose `file` lacks a name, or holds text in place of numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(folder, target)
    path = target / file
    if file == "summary.json":
        summary = json.loads(path.read_text())
        del summary["median_tpot_ms"]
        path.write_text(json.dumps(summary))
        return target
    table = pq.read_table(path)
    if file == "series.parquet":
        table = table.drop_columns(["group"])
    else:
        text = pa.array(["x"] * len(table))
        table = table.set_column(table.column_names.index("finish_ps"), "finish_ps", text)
    pq.write_table(table, path)
    return target


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("summary.json", 'summary.json: "median_tpot_ms" is missing; `llmsim run --run-dir`'),
        ("series.parquet", 'series.parquet: there is no column "group"; `llmsim run --run-dir`'),
        ("requests.parquet", 'the column "finish_ps" holds string, but must hold int64; `llmsim'),
    ],
)
def test_a_damaged_folder_is_bad_input_and_no_defect(
    exported: Path, file: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = damaged(exported / "run", tmp_path / "damaged", file)
    assert main(["export", str(folder), "--format", "vllm-bench", "-o", str(tmp_path / "a")]) == 2
    assert said in capsys.readouterr().err
    page = ["-o", str(tmp_path / "a.html"), "--why", "none"]
    assert main(["report", str(folder), *page]) == 2
    assert said in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["damaged"]
