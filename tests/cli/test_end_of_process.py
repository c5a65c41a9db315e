"""A run as a process of its own: it ends without tidying up, and nothing of that is seen."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import llmsim

ROOT = Path(__file__).resolve().parents[2]


def test_what_a_run_leaves_at_its_end_is_not_reported() -> None:
    cluster = ROOT / "cluster_config" / "h100_llama31_8b.json"
    given = [
        "--cluster-config",
        str(cluster),
        "--dataset",
        "synthetic:n=5,rate=10,input=fixed:50,output=fixed:5,seed=1",
    ]
    command = [sys.executable, str(ROOT / "main.py"), *given, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["completed"] == 5
    assert "nanobind" not in done.stderr


def exported(folder: Path) -> str:
    target = str(folder / "exported")
    return f'main(["export", {str(folder)!r}, "--format", "mlperf", "-o", {target!r}])'


def compared(folder: Path) -> str:
    return f'main(["diff", {str(folder)!r}, {str(folder)!r}])'


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads by /proc")
@pytest.mark.parametrize("reading", [exported, compared])
def test_reading_a_run_folder_begins_no_thread(
    reading: Callable[[Path], str], tmp_path: Path
) -> None:
    """A thread of pyarrow's pools that began while the process ended has aborted it."""
    cluster = ROOT / "cluster_config" / "h100_llama31_8b.json"
    load = "synthetic:n=5,rate=10,input=fixed:50,output=fixed:5,seed=1"
    llmsim.run(cluster, load, cost_source="roofline").save(tmp_path)
    lines = (
        "import contextlib, io, os, scipy.stats, pyarrow.parquet",
        "from llmsim.cli import main",
        "before = len(os.listdir('/proc/self/task'))",
        f"with contextlib.redirect_stdout(io.StringIO()): code = {reading(tmp_path)}",
        "print(code, len(os.listdir('/proc/self/task')) - before)",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"], done.stderr
