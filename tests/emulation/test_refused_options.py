"""Options that the server or the command refuses leave one sentence, and no run folder."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulation.test_emulation import CLUSTER, DATASET

from llmsim.cli import main
from llmsim.cli.commands.emulate import _no_leftovers
from llmsim.config.errors import InputError
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.servers.server import Server, why_refused

OF_PARSER = """WARNING 11-29 [interface.py:222] Triton is not installed
usage: vllm serve [model_tag] [options]
vllm serve: error: unrecognized arguments: --no-such-option 4
"""
OF_CHECKS = """(APIServer pid=12) Traceback (most recent call last):
(APIServer pid=12)   File "arg_utils.py", line 1
(APIServer pid=12) pydantic_core.ValidationError: 1 validation error for SchedulerConfig
(APIServer pid=12) max_num_seqs
(APIServer pid=12)   Input should be greater than or equal to 1 [type=greater_than_equal]
(APIServer pid=12)     For further information visit https://errors.pydantic.dev
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (OF_PARSER, "unrecognized arguments: --no-such-option 4"),
        (
            OF_CHECKS,
            "pydantic_core.ValidationError: 1 validation error for SchedulerConfig max_num_seqs "
            "Input should be greater than or equal to 1",
        ),
        ("INFO: Application startup complete.", ""),
    ],
)
def test_the_reason_of_a_refusal(log: str, said: str) -> None:
    assert why_refused(log) == said


def ended_server(log: Path, extra: list[str]) -> Server:
    log.write_text(OF_PARSER, encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    process.wait()
    return Server(process, 1, log, extra)


def test_options_of_the_user_are_bad_input(tmp_path: Path) -> None:
    server = ended_server(tmp_path / "log", ["--no-such-option", "4"])
    with pytest.raises(InputError, match="the server refuses the options: unrecognized"):
        asyncio.run(server.ready())
    with pytest.raises(NoProgressError, match="before it was ready: unrecognized arguments"):
        asyncio.run(ended_server(tmp_path / "log", []).ready())


def test_what_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    """What was there before stays."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine").write_text("x", encoding="utf-8")
    for folder in (tmp_path / "new", kept):
        with pytest.raises(InputError), _no_leftovers(folder):
            (folder / "model").mkdir(parents=True)
            (folder / "server.log").write_text("x", encoding="utf-8")
            raise InputError("no")
    assert not (tmp_path / "new").exists()
    assert [path.name for path in kept.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster-config", str(CLUSTER)], "--dataset is missing; it names the workload"),
        (["--cluster-config", str(CLUSTER), "--dataset", DATASET, "--no-such"], "emulate --help"),
        (["--dataset", DATASET], "emulate --help"),
    ],
)
def test_errors_name_the_help_of_this_command(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", "vllm", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "llmsim run --help" not in error


def test_errors_of_serve_name_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "serve --help" in capsys.readouterr().err


@pytest.mark.skipif(
    "LLMSIM_ENGINE_PYTHON" not in os.environ,
    reason="LLMSIM_ENGINE_PYTHON names no interpreter with vLLM",
)
@pytest.mark.parametrize("extra", ["--no-such-option 4", "--compilation-config bad"])
def test_vllm_itself_refuses_options(
    extra: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["emulate", "vllm", "--engine-python", os.environ["LLMSIM_ENGINE_PYTHON"]]
    words += ["--cluster-config", str(CLUSTER), "--dataset", DATASET, "--engine-args", extra]
    assert main([*words, "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert extra.split()[0] in said
    assert "Triton" not in said
    assert not (tmp_path / "run").exists()
