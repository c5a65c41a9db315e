"""`llmsim run` as a person or a script meets it: outputs, exit codes, refusals, and errors of one
sentence.
"""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import ENDLESS, HANGS_S, wait_until_it_simulates, wait_until_it_worked

from llmsim.cli import main, run_main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
TRACE = ROOT / "dataset" / "example_10.jsonl"
ROOFLINE = ("--cost-source", "roofline")


def run(*options: object, cluster: Path = CLUSTER, dataset: object = TRACE) -> int:
    return run_main(
        [str(o) for o in ("--cluster-config", cluster, "--dataset", dataset, *ROOFLINE, *options)]
    )


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("llmsim: error: ")
    return lines[0]


def test_json_has_vllms_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    out = capsys.readouterr()
    assert out.err == ""
    summary = json.loads(out.out)
    assert summary["completed"] == 10
    names = ["duration", "request_throughput", "output_throughput", "total_token_throughput"]
    names += [
        f"{s}_{m}_ms"
        for s in ("mean", "median", "std", "p90", "p95", "p99")
        for m in ("ttft", "tpot", "itl", "e2el")
    ]
    assert all(summary[name] > 0 for name in names)
    assert set(summary["invariants"].values()) == {"ok"}
    assert summary["kv_cache"][0]["ledger"]
    assert abs(sum(summary["sources"]["by_provenance"].values()) - 1) < 1e-5


def test_csv_and_run_folder_agree_and_repeat_byte_for_byte(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for name in ("a", "b"):
        assert run("--output", tmp_path / f"{name}.csv", "--run-dir", tmp_path / name) == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").open(encoding="utf-8")))
    table = pq.read_table(tmp_path / "a" / "requests.parquet")
    assert len(rows) == table.num_rows == 10
    ttft = sorted(int(row["TTFT"]) for row in rows)
    first, arrival = table["first_token_ps"].to_numpy(), table["arrival_ps"].to_numpy()
    assert ttft == sorted(((first + 500) // 1000 - (arrival + 500) // 1000).tolist())
    for file in ("requests.parquet", "steps.parquet", "series.parquet", "summary.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    steps = pq.read_table(tmp_path / "a" / "steps.parquet")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text(encoding="utf-8"))
    assert steps.num_rows == summary["steps"]
    assert int(steps["tokens"].to_numpy().sum()) >= summary["total_input_tokens"]
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text(encoding="utf-8"))
    assert [Path(entry["path"]).name for entry in manifest["inputs"]] == [CLUSTER.name, TRACE.name]


def test_a_run_that_replaces_another_one_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again replaces its own run without a word."""

    def told(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["llmsim", "run", *options])
        assert run("--run-dir", tmp_path / "run", *options) == 0
        return capsys.readouterr().err

    assert told() == told() == ""
    assert "holds the run of `llmsim run`; this run replaces it" in told("--max-num-seqs", "4")
    assert told("--max-num-seqs", "4") == ""
    assert "holds the run of `llmsim run --max-num-seqs 4`" in told()
    assert told("--max-num-seqs", "8", "--quiet") == ""
    (tmp_path / "run" / "manifest.json").write_text("[]")
    assert told() == ""


def test_exact_evaluation_changes_nothing(tmp_path: Path) -> None:
    cluster = ROOT / "cluster_config" / "h100_llama31_70b_tp4.json"
    for option in ((), ("--exact",)):
        assert run("--output", tmp_path / f"{len(option)}.csv", *option, cluster=cluster) == 0
    assert (tmp_path / "0.csv").read_bytes() == (tmp_path / "1.csv").read_bytes()


def test_what_holds_for_each_distinct_group_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of three alike is not printed; the third differs in its queue alone. Nothing is in
    picoseconds.
    """
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    node = cluster["nodes"][0]
    node["num_instances"] = 3
    node["instances"] = [
        *node["instances"] * 2,
        {**node["instances"][0], "scheduling_policy": "sjf"},
    ]
    (tmp_path / "c.json").write_text(json.dumps(cluster), encoding="utf-8")
    assert run("--launch-ns", "0.5", "-v", cluster=tmp_path / "c.json") == 0
    text = capsys.readouterr().out
    assert re.findall(r"Memory per device, group (\d)", text) == ["0", "2"]
    assert (
        text.count("scheduling_policy=fcfs")
        == text.count("options (cluster file): scheduling_policy=sjf")
        == 1
    )
    assert (
        "api_latency=1.5 ms, host_gap=0" in text and "launch=500 ps" in text and "_ps=" not in text
    )
    assert max(len(line) for line in text.split("Requests:")[0].splitlines()) <= 118


def test_heartbeats_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--log-level", "INFO", "--log-interval", "0.5") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines and all("tok/s" in line and "running" in line for line in lines)


def test_sessions_and_synthetic_traces_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", dataset=ROOT / "dataset" / "sessions_20.jsonl") == 0
    sessions = json.loads(capsys.readouterr().out)
    assert sessions["completed"] > 20
    assert (
        run("--json", dataset="synthetic:n=50,rate=20,input=fixed:100,output=fixed:10,seed=3") == 0
    )
    assert json.loads(capsys.readouterr().out)["total_output_tokens"] == 500


@pytest.mark.parametrize("router", ["RR", "RAND", "LOAD"])
def test_routers_use_every_group(router: str, tmp_path: Path) -> None:
    cluster = ROOT / "cluster_config" / "h100_multi_instance.json"
    assert (
        run(
            "--request-routing-policy",
            router,
            "--output",
            tmp_path / "o.csv",
            cluster=cluster,
            dataset="synthetic:n=40,rate=50,input=fixed:200,output=fixed:50,seed=3",
        )
        == 0
    )
    groups = [
        row["instance id"] for row in csv.DictReader((tmp_path / "o.csv").open(encoding="utf-8"))
    ]
    assert set(groups) == {"0", "1"}
    if router == "RR":
        assert groups.count("0") == 20


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--enable-attn-offloading"], 2, "enable_attn_offloading"),
        (["--prefix-storage", "CXL"], 2, "--prefix-storage"),
        (["--prefix-storage", "TAPE"], 2, "None, CPU, CXL, SSD, NVMEOF"),
        (["--network-backend", "ns3"], 2, "ns3"),
        (["--network-backend", "smoke"], 2, "congestion-unaware"),
        (["--request-routing-policy", "CUSTOM"], 2, "CUSTOM"),
        (["--request-routing-policy", "best"], 2, "LOAD, RR or RAND"),
        (["--expert-routing-policy", "FASTER"], 2, "FAST"),
        (["--fp", "12"], 2, "8, 16 or 32"),
        (["--fp", "16", "--dtype", "float16"], 2, "twice"),
        (["--dtype", "float17"], 2, "dtype"),
        (["--max-num-seqs", "-1"], 2, "max-num-seqs"),
        (["--max-num-seqs", "x"], 2, "max-num-seqs"),
        (["--max-num-batched-tokens", "0"], 2, "max-num-batched-tokens"),
        (["--block-size", "0"], 2, "block-size"),
        (["--gpu-memory-utilization", "1.5"], 2, "gpu-memory-utilization"),
        (["--gpu-memory-utilization", "nan"], 2, "gpu-memory-utilization"),
        (["--max-model-len", "999999999"], 2, "max_model_len"),
        (["--num-gpu-blocks-override", "1"], 3, "at least 2"),
        (["--num-gpu-blocks-override", "99999999"], 3, "num_gpu_blocks_override"),
        (["--engine-profile", "vlm-0.23"], 2, "vllm-0.24"),
        (["--num-reqs", "-3"], 2, "--num-reqs"),
        (["--seed", "-3"], 2, "--seed"),
        (["--log-interval", "0"], 2, "--log-interval"),
        (["--log-interval", "nan"], 2, "--log-interval"),
        (["--log-level", "LOUD"], 2, "--log-level"),
        (["--cost-source", "guess"], 2, "--cost-source"),
        (["--cost-source", "bundle"], 2, "bundle"),
        (["--collective-costs", "x"], 2, "--collective-costs"),
        (["--profile-dir", "/nonexistent"], 2, "--profile-dir"),
        (["--output", str(CLUSTER / "x.csv")], 2, "x.csv"),
        (["--output", str(ROOT)], 2, "folder"),
        (["--run-dir", str(CLUSTER)], 2, "h100_llama31_8b.json"),
        (["--no-such-option"], 2, "--no-such-option"),
        (["--gpu-memory-utilization", "0.1"], 3, "GiB"),
    ],
)
def test_bad_options(
    options: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*options) == code
    assert words in sentence(capsys)


def changed(tmp_path: Path, **instance: Any) -> Path:
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    cluster["nodes"][0]["instances"][0].update(instance)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("instance", "code", "words"),
    [
        ({"model_name": "meta-llama/Llama-3.1-9B"}, 2, "Llama-3.1-8B"),
        ({"model_name": "no/such/config.json"}, 2, "no/such/config.json"),
        ({"model_name": "meta-llama/Llama-3.1-70B"}, 3, "GiB"),
        ({"hardware": "Abacus"}, 2, "Abacus"),
        ({"hardware": ""}, 2, "hardware"),
        ({"pd_type": "prefill"}, 2, "pd_type"),
        ({"num_npus": 3, "tp_size": 3}, 2, "3"),
        ({"num_npus": 4, "tp_size": 2, "pp_size": 3}, 2, "num_npus"),
        ({"tp_sise": 1}, 2, "tp_size"),
    ],
)
def test_bad_clusters(
    tmp_path: Path,
    instance: dict[str, Any],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = changed(tmp_path, **instance)
    arguments = ["--cluster-config", str(cluster), "--dataset", str(TRACE)]
    assert run_main(arguments) == code
    assert words in sentence(capsys)


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cluster=tmp_path / "absent.json") == 2
    assert "absent.json" in sentence(capsys)
    assert run(dataset=tmp_path / "absent.jsonl") == 2
    assert "absent.jsonl" in sentence(capsys)
    assert run_main(["--dataset", "x"]) == 2
    assert "--cluster-config" in sentence(capsys)


def test_a_bad_trace_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"input_toks": 5, "output_toks": 2, "arrival_time_ns": 0}\n{"input_toks": 5, \n',
        encoding="utf-8",
    )
    assert run(dataset=trace) == 2
    assert "t.jsonl:2" in sentence(capsys)


def test_requests_that_can_never_run_cost_exit_3_and_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    rows = [(100, 5), (200_000, 5), (50, 7)]
    trace.write_text(
        "".join(
            f'{{"input_toks": {i}, "output_toks": {o}, "arrival_time_ns": {n}}}\n'
            for n, (i, o) in enumerate(rows)
        ),
        encoding="utf-8",
    )
    output = tmp_path / "o.csv"
    assert run("--output", output, "--json", dataset=trace) == 3
    captured = capsys.readouterr()
    assert "1 of 3 requests can never run" in captured.err and "200000 prompt" in captured.err
    summary = json.loads(captured.out)
    assert (summary["completed"], summary["rejected"]) == (2, 1)
    assert len(output.read_text(encoding="utf-8").splitlines()) == 3


def test_the_longest_request_that_can_never_run_says_how_long_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fifth request needs most; the first three are named, and two answers are cut."""
    trace = tmp_path / "t.csv"
    rows = [(200, 5), (210, 5), (220, 5), (230, 5), (900, 7), (90, 80), (80, 90)]
    lines = [f"{n},{i},{o}" for n, (i, o) in enumerate(rows)]
    trace.write_text("\n".join(["arrival,input,output", *lines]), encoding="utf-8")
    assert run("--max-model-len", "100", dataset=trace) == 3
    captured = capsys.readouterr()
    assert "and 2 more; the others were simulated; raise max_model_len to 907, or shorten " in (
        captured.err
    )
    assert captured.err.count("raise max_model_len") == 1
    assert "the answers of 2 requests were cut" in captured.out


def test_an_interrupted_run_writes_what_it_has(tmp_path: Path) -> None:
    output = tmp_path / "o.csv"
    command = [
        sys.executable,
        str(ROOT / "main.py"),
        "--cluster-config",
        str(CLUSTER),
        *ROOFLINE,
        "--output",
        str(output),
        "--json",
        *ENDLESS,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until_it_simulates(process.pid)
    wait_until_it_worked(process.pid, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    summary = json.loads(out)
    assert summary["interrupted"] and summary["completed"] > 0
    assert len(output.read_text(encoding="utf-8").splitlines()) == summary["completed"] + 1


def test_schema_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert "nodes" in json.loads(capsys.readouterr().out)["properties"]
    assert run_main(["--help"]) == 0
    assert "--num-gpu-blocks-override" in capsys.readouterr().out


def test_main_py_is_the_run_verb() -> None:
    environment = {**os.environ, "COLUMNS": "200"}
    for command in ([str(ROOT / "main.py")], ["-m", "llmsim", "run"]):
        done = subprocess.run(
            [
                sys.executable,
                *command,
                "--cluster-config",
                str(CLUSTER),
                "--dataset",
                str(TRACE),
                *ROOFLINE,
            ],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
            timeout=HANGS_S,
        )
        assert done.returncode == 0, done.stderr
        assert "10 of 10 requests in " in done.stdout
