"""What a careless or unlucky user meets: nothing lost, nothing overwritten, no silence, one
sentence.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from package import PRESETS
from processes import ENDLESS, HANGS_S, wait_until_it_simulates
from shared_data import shared

from llmsim.cli import main, run_main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
TRACE = ROOT / "dataset" / "example_10.jsonl"
ROOFLINE = ("--cost-source", "roofline")
MANY_ROWS = "synthetic:n=30000,rate=40,input=lognormal:220,output=lognormal:190,seed=1"


def run(*options: object, cluster: Path = CLUSTER, dataset: object = TRACE) -> int:
    return run_main([str(o) for o in ("--cluster-config", cluster, "--dataset", dataset, *options)])


def command(*options: object) -> list[str]:
    return [
        sys.executable,
        str(ROOT / "main.py"),
        "--cluster-config",
        str(CLUSTER),
        *map(str, (*ROOFLINE, *options)),
    ]


def changed(tmp_path: Path, **instance: object) -> Path:
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    cluster["nodes"][0]["instances"][0].update(instance)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("option", "said"),
    [("--cluster-config", "the path is empty"), ("--dataset", "--dataset is empty")],
)
def test_an_empty_path_is_not_the_current_folder(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"--cluster-config": str(CLUSTER), "--dataset": str(TRACE), option: ""}
    assert run_main([word for pair in given.items() for word in pair]) == 2
    error = capsys.readouterr().err
    assert said in error and option in error
    assert error.count("\n") == 1


def test_an_output_never_replaces_an_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    shutil.copy(TRACE, trace)
    assert run(*ROOFLINE, "--output", trace, dataset=trace) == 2
    assert "overwritten" in capsys.readouterr().err
    assert run(*ROOFLINE, "--output", trace, dataset=f"trace:{trace},limit=3") == 2
    assert main(["trace", "convert", str(trace), str(trace), "--to", "mooncake"]) == 2
    assert run(*ROOFLINE, "--output", tmp_path / "a", "--timeline", tmp_path / "a") == 2
    assert "name two files" in capsys.readouterr().err
    assert trace.read_bytes() == TRACE.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_one_output_that_fails_does_not_cost_the_others(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--dataset", TRACE, "--json", "--output", "/dev/full", "--run-dir", tmp_path / "r"),
        capture_output=True, text=True, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 2 and "/dev/full" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["completed"] == 10
    assert (tmp_path / "r" / "manifest.json").exists()
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command("--dataset", TRACE),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANGS_S,
        )
    assert done.returncode == 2 and "standard output cannot be written" in done.stderr
    with open("/dev/full", "w", encoding="utf-8") as full:  # the code alone can say it
        done = subprocess.run(command("--dataset", "absent.jsonl"), stderr=full, timeout=HANGS_S)
    assert done.returncode == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_closed_streams(closed: str) -> None:
    line = " ".join(f"'{part}'" for part in command("--dataset", TRACE, "--json"))
    done = subprocess.run(
        ["sh", "-c", f"{line} {closed}"], capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0 and done.stderr == ""
    line = " ".join(f"'{part}'" for part in command("--dataset", "absent.jsonl"))
    done = subprocess.run(
        ["sh", "-c", f"{line} 2>&-"], capture_output=True, text=True, timeout=HANGS_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize(
    ("line", "code"), [("schema", 0), ("run", 0), ("run --max-model-len 20", 3)]
)
def test_a_reader_that_has_seen_enough_is_no_error(line: str, code: int) -> None:
    """`llmsim ... | head`: the exit code is that of the work done."""
    verb, *options = line.split()
    run_options = command("--dataset", TRACE, "--json", *options)[2:] if verb == "run" else options
    process = subprocess.Popen(
        [sys.executable, "-m", "llmsim", verb, *run_options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=HANGS_S) == code
    assert err.count("\n") == (code != 0) and "Broken" not in err


@pytest.mark.parametrize("module", ["llmsim.cli", "typer", "llmsim.cli.app"])
def test_an_interrupt_while_python_imports_is_one_sentence(module: str) -> None:
    """The function behind the command `llmsim`, interrupted as its first import of
    `module` begins.
    """
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    home, function = scripts["llmsim"].split(":")
    program = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from {home} import {function}
sys.exit({function}())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANGS_S
    )
    assert (done.returncode, done.stderr) == (
        130,
        "llmsim: error: interrupted before anything was computed\n",
    )


def test_an_interrupt_while_the_core_is_imported_is_one_sentence() -> None:
    """Its enumerations are made by Python, whose interrupt C++ cannot hand on from there."""
    program = """
import enum, os, signal, sys
make = enum.EnumMeta.__call__
def interrupted(*given, **named):
    if str(named.get("module")).startswith("llmsim._native"):
        os.kill(os.getpid(), signal.SIGINT)
    return make(*given, **named)
from llmsim.__main__ import main
enum.EnumMeta.__call__ = interrupted
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANGS_S
    )
    assert (done.returncode, done.stderr) == (
        130,
        "llmsim: error: interrupted before anything was computed\n",
    )


def test_outputs_that_a_command_does_not_write_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--cluster-config", str(CLUSTER), "--dataset", str(TRACE), *ROOFLINE]
    graph = ["graph", "step", "--graph", str(tmp_path / "g.dot"), *arguments]
    assert (
        main([*graph, "--run-dir", str(tmp_path / "r"), "--output", str(tmp_path / "o.csv")]) == 0
    )
    assert "--output, --run-dir: this command writes no such output" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["g.dot"]
    assert main([*graph, "--require", "measured"]) == 2


def test_the_help_lists_every_option_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    sections = re.findall(r"^(\S.*):$", capsys.readouterr().out, re.M)
    assert sections == [
        "Input",
        "Engine (vLLM's names)",
        "Costs and network",
        "Output",
        "LLMServingSim",
        "Other",
    ]


@pytest.mark.parametrize(
    ("number", "delay"), [(signal.SIGINT, 1.0), (signal.SIGTERM, 1.0), (signal.SIGINT, 0.1)]
)
def test_whenever_it_is_stopped_it_says_so(
    tmp_path: Path, number: signal.Signals, delay: float
) -> None:
    process = subprocess.Popen(
        command(*ENDLESS, "--json", "--output", tmp_path / "o.csv"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if delay >= 1:
        wait_until_it_simulates(process.pid)
    time.sleep(delay)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_S)
    assert "Traceback" not in err or delay < 1  # while Python itself starts, nobody can catch it
    if delay >= 1:
        assert process.returncode == 130 and "interrupted" in err
        assert json.loads(out)["interrupted"] and (tmp_path / "o.csv").exists()


def being_written(folder: Path) -> bool:
    """Whether the temporary file of an output has content."""
    try:
        return any(path.stat().st_size > 0 for path in folder.glob(".o.csv.*"))
    except FileNotFoundError:
        return False


def test_writing_the_results_is_not_interrupted(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--dataset", MANY_ROWS, "--json", "--output", tmp_path / "o.csv"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not being_written(tmp_path):
        time.sleep(0.002)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err
    assert (
        len((tmp_path / "o.csv").read_text(encoding="utf-8").splitlines())
        == json.loads(out)["completed"] + 1
    )


def test_data_sheets_and_models_beside_the_cluster_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parts").mkdir()
    sheet = json.loads((PRESETS / "hardware/h100_sxm.json").read_text(encoding="utf-8"))
    sheet |= {"name": "Mine", "silicon_system": None}
    (tmp_path / "parts" / "mine.json").write_text(json.dumps(sheet), encoding="utf-8")
    model = json.loads(
        (PRESETS / "models/meta-llama/Llama-3.1-8B.json").read_text(encoding="utf-8")
    )
    (tmp_path / "parts" / "config.json").write_text(json.dumps(model), encoding="utf-8")
    cluster = changed(tmp_path, hardware="parts/mine.json", model_name="parts/config.json")
    assert run("--json", cluster=cluster) == 0
    assert "data sheet of Mine" in next(
        iter(json.loads(capsys.readouterr().out)["sources"]["by_source"])
    )


def test_a_folder_called_like_a_device_is_no_data_sheet(tmp_path: Path) -> None:
    cluster = changed(tmp_path)
    (
        tmp_path
        / json.loads(cluster.read_text(encoding="utf-8"))["nodes"][0]["instances"][0]["hardware"]
    ).mkdir()
    assert run("--json", cluster=cluster) == 0


def test_a_bandwidth_that_is_not_used_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = changed(tmp_path, npu_mem={"mem_size": 80, "mem_bw": 1000, "mem_latency": 0})
    tpot = {}
    for source in ("silicon", "roofline"):
        for cluster in (CLUSTER, slow):
            assert run("--cost-source", source, "--json", cluster=cluster) == 0
            summary = json.loads(capsys.readouterr().out)
            tpot[source, cluster] = summary["mean_tpot_ms"]
            assert any("mem_bw" in note for note in summary["notes"]) == (
                source == "silicon" and cluster == slow
            )
    assert tpot["silicon", slow] == tpot["silicon", CLUSTER]
    assert tpot["roofline", slow] > 2 * tpot["roofline", CLUSTER]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_trace_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    """The manifest does not open it again, which would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(
        command("--dataset", tmp_path / "pipe", "--run-dir", tmp_path / "r"),
        stdout=subprocess.DEVNULL,
    )
    (tmp_path / "pipe").write_bytes(TRACE.read_bytes())
    try:
        assert reader.wait(timeout=HANGS_S) == 0
    finally:
        reader.kill()
    _, trace = json.loads((tmp_path / "r" / "manifest.json").read_text())["inputs"]
    assert (trace["sha256"], trace["bytes"]) == (None, None)


def test_a_run_folder_holds_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    power = ROOT / "cluster_config" / "single_node_power_instance.json"
    assert run(*ROOFLINE, "--run-dir", tmp_path / "r", cluster=power) == 0
    assert (tmp_path / "r" / "power.parquet").exists()
    assert run(*ROOFLINE, "--run-dir", tmp_path / "r") == 0
    assert not (tmp_path / "r" / "power.parquet").exists()


def test_what_changes_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = {"mem_size": 79.1, "mem_bw": 3350, "mem_latency": 400}
    given = ("--decode-routing-policy", "RR", "--expert-routing-policy", "ZIPF:s=2")
    assert run(*ROOFLINE, "--json", *given, cluster=changed(tmp_path, npu_mem=memory)) == 0
    notes = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert "--decode-routing-policy RR changes nothing: no instance has the pd_type decode" in notes
    assert (
        "--expert-routing-policy ZIPF:s=2 changes nothing: no model of the cluster has experts"
        in notes
    )
    assert "npu_mem.mem_latency of the cluster file (400 ns) is not used" in notes
    assert (
        run(
            *ROOFLINE,
            "--json",
            "--enable-local-offloading",
            cluster=changed(tmp_path, npu_mem=memory),
        )
        == 0
    )
    assert "mem_latency" not in capsys.readouterr().out
    assert run(*ROOFLINE, "--json") == 0
    assert "changes nothing" not in capsys.readouterr().out


def test_errors_name_the_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for instance in (
        {"hardware": "Abacus"},
        {"model_name": "no/model"},
        {"model_name": "meta-llama/Llama-3.1-405B"},
    ):
        assert run(cluster=changed(tmp_path, **instance)) in (2, 3)
        assert "cluster.json: nodes[0].instances[0]: " in capsys.readouterr().err


def test_answers_cut_by_the_context_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"input_toks": 3, "output_toks": 900, "arrival_time_ns": 0}\n', encoding="utf-8"
    )
    assert run(*ROOFLINE, "--max-model-len", 500, "--json", dataset=trace) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["total_output_tokens"] == 497
    assert any("cut at max_model_len" in note for note in summary["notes"])


def bundle(tmp_path: Path, scale: float) -> Path:
    """The shared bundle with all dense times multiplied."""
    target = tmp_path / "perf"
    shutil.copytree(shared("groundtruth/profiler/perf"), target)
    path = next(target.rglob("tp1/dense.csv"))
    path.chmod(0o644)
    rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [",".join(rows[0]), *(f"{a},{b},{float(c) * scale!r}" for a, b, c in rows[1:])]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


@pytest.mark.parametrize(
    ("scale", "code", "words"), [(1e15, 2, "dense.csv:2"), (1e4, 3, "53 days")]
)
def test_times_out_of_all_proportion(
    tmp_path: Path, scale: float, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = shared("groundtruth/rtxpro6000_llama31_8b/cluster.json")
    dataset = "synthetic:n=3000,rate=10,input=fixed:20,output=fixed:2000,seed=1"
    profile = bundle(tmp_path, scale)
    options = ("--profile-dir", profile, "--max-num-seqs", 1, "--max-num-batched-tokens", 64)
    assert run(*options, cluster=cluster, dataset=dataset) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--exact",)])
def test_links_slower_than_the_clock_reaches(
    flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Collectives of seventeen minutes: the engine that runs every rank's nodes is at its clock's
    end first.
    """
    memory = {"mem_size": 79, "mem_bw": 3350, "mem_latency": 0}
    one = {"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100", "npu_mem": memory}
    document = {
        "link_bw": 0.001, "link_latency": 1e12,
        "nodes": [{"instances": [{**one, "num_npus": 4, "tp_size": 2, "pp_size": 2}]}],
    }  # fmt: skip
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert (
        run(
            *ROOFLINE,
            *flags,
            cluster=path,
            dataset="synthetic:n=6,rate=5,input=fixed:9000,output=fixed:90",
        )
        == 3
    )
    assert "53 days" in capsys.readouterr().err


def test_a_given_profile_folder_has_to_be_of_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--profile-dir", tmp_path) == 2
    assert "--profile-dir" in capsys.readouterr().err
    cluster = shared("groundtruth/rtxpro6000_llama31_8b/cluster.json")
    broken = bundle(tmp_path, 1.0)
    next(broken.rglob("tp1")).chmod(0o755)
    os.remove(next(broken.rglob("tp1/per_sequence.csv")))
    assert run("--profile-dir", broken, "--json", cluster=cluster) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("has no lm_head rows" in note and "next cost source" in note for note in notes)
    assert run("--profile-dir", broken, "--cost-source", "bundle", cluster=cluster) == 2
    assert "lm_head" in capsys.readouterr().err


REFUSED = {
    "run": ["run", "--cluster-config", "none.json", "--dataset", "x", "--output", "new/at/a.csv"],
    "run folder": ["run", "--cluster-config", "none.json", "--dataset", "x", "--run-dir", "new/at"],
    "graph step": [
        *("graph", "step", "--graph", "new/at", "--rank", "7"),
        *("--cluster-config", CLUSTER, "--dataset", "synthetic:n=1,rate=1,input=9,output=2"),
    ],
    "size": [
        *("size", "--model", "./none", "--device", "H100", "--slo", "ttft:500", "--rate", "1"),
        *("--emit", "new/at", "--plot", "new/at/a.png", "--html", "new/at/a.html"),
    ],
    "convert": ["trace", "convert", "none.csv", "new/at/trace.jsonl"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_command_leaves_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(word) for word in REFUSED[name]]) == 2
    assert list(tmp_path.iterdir()) == []
