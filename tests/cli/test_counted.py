"""Commands that simulate many times show on a terminal how far they are, and nothing elsewhere."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from processes import HANGS_S

SEARCH = {
    "model": "Qwen/Qwen3-8B",
    "hardware": "H100",
    "gpus": [1, 2],
    "dataset": "synthetic:n=4,rate=5,input=fixed:200,output=fixed:5",
    "options": {"--cost-source": "roofline"},
    "minimise": ["devices"],
}


def on_a_terminal(folder: Path, *words: str) -> str:
    """What a command prints on a terminal as stderr, without colours and movements."""
    master, slave = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "llmsim", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert done.wait(HANGS_S) == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


@pytest.fixture
def search_file(tmp_path: Path) -> str:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SEARCH))
    return "s.yaml"


def test_a_search_counts_its_points(tmp_path: Path, search_file: str) -> None:
    shown = on_a_terminal(tmp_path, "search", search_file, "-o", "out", "-j", "1")
    assert re.search(r"points +\S+ +5/5 .* left ", shown)
    assert "meets all requirements" in shown


def test_quiet_prints_nothing(tmp_path: Path, search_file: str) -> None:
    assert on_a_terminal(tmp_path, "search", search_file, "-o", "out", "-j", "1", "--quiet") == ""


def test_sizing_counts_deployments(tmp_path: Path) -> None:
    given = ["--model", "Qwen/Qwen3-8B", "--device", "H100", "--rate", "1", "--slo", "tpot:50"]
    shown = on_a_terminal(tmp_path, "size", *given, "--devices-per-node", "1", "-j", "1")
    assert "deployments" in shown
