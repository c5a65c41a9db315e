"""What a plain run loads in a fresh process: each module takes time before the first request."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATER = ("difflib", "shutil", "tempfile", "lzma", "pandas", "pyarrow", "networkx", "typer", "rich")
"""Modules that only errors, pipes, tables, graphs and the command line need."""
PROGRAM = f"""
import sys
import llmsim
llmsim.run("cluster_config/h100_llama31_8b.json", "dataset/chat_h100_300.jsonl")
print([name for name in {LATER} if name in sys.modules])
"""


def test_a_run_loads_nothing_that_only_others_need() -> None:
    command = [sys.executable, "-c", PROGRAM]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # compiles cost tables
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
