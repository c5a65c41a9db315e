"""What the first days with the command line show: readable lists, names of outputs, plug-ins that
end the program.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from llmsim.api.preparation.prepare import trial
from llmsim.cli import main, run_main
from llmsim.cli.app import run_app
from llmsim.cli.run.arguments import checked_options

PEERS = shlex.split(
    "--max-num-seqs 128 --max-num-batched-tokens 2048 --long-prefill-token-threshold 0 --dtype "
    "bfloat16 --block-size 16 --request-routing-policy LOAD --expert-routing-policy BALANCED "
    "--enable-block-copy --enable-prefix-caching --enable-chunked-prefill --prefix-storage None "
    "--no-reserve-full-isl --npu-memory-utilization 0.9 --run-id mine --inputs-root inputs "
    "--cleanup-inputs --num-reqs 5 --log-interval 1.0 --log-level WARNING --kv-cache-dtype auto "
    "--network-backend analytical"
)
"""LLMServingSim's command line, each of its options that one instance without memory below the
device can take.
"""

ROOT = Path(__file__).resolve().parents[2]
GIVEN = (
    "--cluster-config", str(ROOT / "cluster_config" / "h100_multi_instance.json"),
    "--dataset", str(ROOT / "dataset" / "example_10.jsonl"), "--cost-source", "roofline",
)  # fmt: skip


def notes(*options: object, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run_main([*GIVEN, *map(str, options), "--json"]) == 0
    found: list[str] = json.loads(capsys.readouterr().out)["notes"]
    return found


@pytest.mark.parametrize(
    "group", [[], ["trace"], ["times"], ["graph"], ["conformance"], ["topology"]]
)
def test_lists_of_verbs_are_not_cut(
    group: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*group, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    verbs = lines[lines.index("Commands:") + 1 :]
    assert verbs and all("..." not in line and len(line) <= 80 for line in verbs)


@pytest.mark.parametrize(
    "option", ["--output", "--run-dir", "--timeline", "--arrivals", "--calibration"]
)
def test_an_empty_path_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main([*GIVEN, option, ""]) == 2
    assert "the path is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb",
    [
        ["graph", "generate", "Qwen/Qwen3-8B", "--output"],
        ["graph", "step", *GIVEN, "--graph"],
        ["topology", "export", "dgx_h100", "--output"],
        ["times", "import", "t.csv", "--output"],
        ["calibrate", "log.jsonl", *GIVEN, "--out"],
    ],
    ids=" ".join,
)
def test_other_verbs_refuse_an_empty_path(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, verb), ""]) == 2
    assert "the path is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "what"),
    [("nowhere.csv", "does not exist"), ("t.xls", "has another ending"), ("", "is a folder")],
)
def test_a_cost_table_that_is_none_is_named_as_the_option(
    tmp_path: Path, name: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.xls").touch()
    assert run_main([*GIVEN, "--cost-table", str(tmp_path / name)]) == 2
    assert f'--cost-table "{tmp_path / name}" {what}' in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"llmsim \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_outputs_are_named_after_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = ("--output", tmp_path / "{run_id}.csv", "--run-dir", tmp_path / "{run_id}")
    said = notes(
        *outputs, "--run-id", "monday", "--inputs-root", "x", "--no-cleanup-inputs", capsys=capsys
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["monday", "monday.csv"]
    assert [note.split(" changes nothing")[0] for note in said if "changes nothing" in note] == [
        "--inputs-root x", "--no-cleanup-inputs",
    ]  # fmt: skip
    notes(*outputs, capsys=capsys)
    assert (
        len({path.stem for path in tmp_path.glob("run_*_*")}) == 1
    )  # both outputs have the name that was made


def test_a_name_of_the_run_that_nothing_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(
        note.startswith("--run-id monday changes nothing")
        for note in notes("--run-id", "monday", capsys=capsys)
    )
    assert run_main([*GIVEN, "--run-id", "a/b"]) == 2
    assert '"a/b"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", *GIVEN, "--cost-source", "silicn"], '(did you mean "silicon"?)'),
        (
            ["graph", "generate", "Qwen/Qwen3-8B", "-o", "x", "--hardware", "H2000"],
            '(did you mean "H200"?)',
        ),
        (
            ["times", "show", "openai/gpt-oss", "H100"],
            "openai/gpt-oss-120b, openai/gpt-oss-20b; for any other",
        ),
    ],
)
def test_wrong_names_are_met_with_near_ones(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving_routers.py").write_text(
        "import sys\n"
        "class Leaves:\n    def route(self, request, groups):\n        sys.exit(3)\n"
        "class Interrupts:\n    def route(self, request, groups):\n        raise "
        "KeyboardInterrupt\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("policies")
def test_a_plug_in_that_ends_the_program_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main([*GIVEN, "--request-routing-policy", "leaving_routers:Leaves"]) == 2
    assert "ended the program (sys.exit(3))" in capsys.readouterr().err


@pytest.mark.usefixtures("policies")
def test_a_part_of_a_run_is_no_trial() -> None:
    """A calibration would otherwise go on with the requests that had finished when it was
    interrupted.
    """
    with pytest.raises(KeyboardInterrupt):
        trial(checked_options([*GIVEN, "--request-routing-policy", "leaving_routers:Interrupts"]))


def test_an_interrupt_among_the_checks_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(text: str, option: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmsim.api.checked.run_options._router", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checked_options(GIVEN)


def test_an_interrupt_inside_of_generated_code_ends_with_its_code(tmp_path: Path) -> None:
    """`python -m` ends itself by the signal where an interrupt met text that it executes, as
    dataclasses make it.
    """
    (tmp_path / "sitecustomize.py").write_text(
        """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "llmsim.cli":
            exec("raise KeyboardInterrupt")
sys.meta_path.insert(0, Interrupt())
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "llmsim", "schema"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (
        130,
        "llmsim: error: interrupted before anything was computed\n",
    )


def test_a_command_line_of_llmservingsim_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes(*PEERS, "--output", tmp_path / "{run_id}.csv", capsys=capsys)
    lines = (tmp_path / "mine.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("instance id,request id,model,input,output,arrival,end_time,latency")
    assert len(lines) == 6


def test_the_page_for_its_users_names_options_that_exist() -> None:
    page = (ROOT / "docs" / "how-to" / "coming_from" / "llmservingsim.md").read_text(
        encoding="utf-8"
    )
    table = page.split("| its files and programs")[0]
    named = set(
        re.findall(
            r"`(--[a-z-]+)`",
            "".join(line.split("|")[1] for line in table.splitlines() if "`--" in line),
        )
    )
    options = typer.main.get_command(run_app).params
    assert named >= {
        word for word in PEERS if word.startswith("--") and not word.startswith("--no-")
    }
    assert named <= {name for option in options for name in option.opts}


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["-m", "bench", "nope"], 2, "no benchmark nope; there are engine, 100k_10rps"),
        (["-m", "bench", "--repeat", "0", "chat_300"], 2, "--repeat is 0"),
        (["dataset/regenerate.py", "--help"], 0, "folder"),
    ],
)
def test_tools_say_what_they_take(command: list[str], code: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == code
    assert words in done.stdout + done.stderr and "Traceback" not in done.stderr
