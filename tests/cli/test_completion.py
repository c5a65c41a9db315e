"""Shell completion: verbs, options and values, and a script that bash runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmsim.cli import main
from llmsim.cli.commands.completion import SCRIPTS, candidates


@pytest.mark.parametrize(
    ("words", "some", "exact"),
    [
        ([""], {"run", "why", "export", "trace"}, False),
        (["wh"], {"why"}, True),
        (["trace", ""], {"inspect", "convert"}, True),
        (["run", "--max-num-se"], {"--max-num-seqs"}, True),
        (["run", "--request-routing-policy", "P"], {"P2C", "PREFIX"}, True),
        (["run", "--scheduler", "s"], {"sarathi", "sglang", "srpt", "static"}, True),
        (["run", "--cudagraph-mode", "FULL_"], {"FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"}, True),
        (["export", "folder", "--format", ""], {"vllm-bench", "openmetrics"}, False),
        (["why", "some/path"], set(), True),
        (["run", "--cluster-config", ""], set(), True),
    ],
)
def test_what_may_stand_there(words: list[str], some: set[str], exact: bool) -> None:
    found = set(candidates(words))
    assert some <= found and (found == some or not exact)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "llmsim completion words" in capsys.readouterr().out


def test_an_unknown_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert '(did you mean "bash"?)' in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_verbs_and_falls_back_to_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    script = (
        f'llmsim() {{ "{sys.executable}" -m llmsim "$@"; }}\n{SCRIPTS["bash"]}'
        "COMP_WORDS=(llmsim expo); COMP_CWORD=1; _llmsim; echo ${COMPREPLY[@]}\n"
        "COMP_WORDS=(llmsim why fol); COMP_CWORD=2; _llmsim; echo ${COMPREPLY[@]}\n"
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout.split() == ["export", "folder"], done.stderr
