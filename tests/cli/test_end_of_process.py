"""A run as a process of its own: it ends without tidying up, and nothing of that is seen."""

import json
import subprocess
import sys
from pathlib import Path

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
