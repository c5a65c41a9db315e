"""Runs the steps of action.yml as a runner of GitHub does, in an environment of its own.

usage: python evaluation/action.py [--python PYTHON] [--version WHAT_PIP_INSTALLS]

Each gate is run once where it passes, and once where it fails. The exit code is 1 if a gate
ends with another code than it should.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[1]
LOAD = "synthetic:n=300,rate=20,input=lognormal:1000,output=lognormal:200,seed=1"
MODEL = "meta-llama/Llama-3.1-8B"
SIZE = f"--model {MODEL} --device H100 --rate 20 --slo ttft:500,tpot:30 --max-devices "
COMPARED = {"before": "two.json", "after": "two.json", "dataset": LOAD}
RULE = {"fail-if": "p99_tpot_ms>+5%\nmean_ttft_ms>+5%"}
GATES: tuple[tuple[str, Mapping[str, str], int], ...] = (
    ("diff of equal deployments", {"gate": "diff", **COMPARED, **RULE}, 0),
    ("diff with half the devices", {"gate": "diff", **COMPARED, **RULE, "after": "one.json"}, 1),
    ("size within 4 devices", {"gate": "size", "arguments": f"{SIZE}4"}, 0),
    ("size at 10 times the rate", {"gate": "size", "arguments": f"{SIZE}1 --rate 200"}, 5),
    ("validate", {"gate": "validate", "log": "log.json", "after": "two.json", "dataset": LOAD}, 0),
    ("a gate without its inputs", {"gate": "diff", "before": "two.json"}, 2),
    ("an unknown gate", {"gate": "dif"}, 2),
)


def environment_of(step: Mapping[str, Any], inputs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables of a step, with the inputs in place of `${{ inputs.NAME }}`."""
    for name, text in step.get("env", {}).items():
        yield name, re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda m: inputs.get(m[1], ""), text)


def run_step(
    step: Mapping[str, Any], inputs: Mapping[str, str], python: Path, folder: Path
) -> subprocess.CompletedProcess[str]:
    """A shell step, as `shell: bash` runs it."""
    environment = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_OUTPUT": str(folder / "output.txt"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "RUNNER_TEMP": str(folder),
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        **dict(environment_of(step, inputs)),
    }
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


def prepared(folder: Path, python: Path, given: argparse.Namespace) -> list[Mapping[str, Any]]:
    """Installs by the action's own step and writes the inputs of the gates; gives what remains."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    shells = [step for step in steps if "run" in step]
    subprocess.run([given.python, "-m", "venv", str(python.parents[1])], check=True)
    install = run_step(shells[0], {"version": given.version}, python, folder)
    if install.returncode:
        sys.exit(f"action: error: the step that installs failed: {install.stderr[-2000:]}")
    start = ["init", "--model", MODEL, "--device", "H100", "-o"]
    for words in (
        [*start, "one.json"],
        [*start, "two.json", "--instances", "2"],
        ["run", "--cluster-config", "two.json", "--dataset", LOAD, "--run-dir", "run", "--quiet"],
        ["export", "run", "--format", "vllm-bench", "-o", "log.json"],
    ):
        command = [str(python.parent / "llmsim"), *words]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return shells[1:]


def main() -> int:
    """Runs every gate, and prints its exit code beside the expected one."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment")
    parser.add_argument("--version", default="", help="what pip installs; this checkout if empty")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="llmsim-action-"))
    python, wrong = folder / "env" / "bin" / "python", 0
    steps = prepared(folder, python, given)
    for title, inputs, wanted in GATES:
        done = [run_step(step, inputs, python, folder) for step in steps][-1]
        outputs = (folder / "output.txt").read_text(encoding="utf-8").splitlines()
        right = done.returncode == wanted and f"exit-code={wanted}" in outputs[-2:]
        wrong += not right
        print(f"{'ok' if right else 'WRONG'}  {title}: exit code {done.returncode} ({wanted})")
        print("\n".join(f"    {line}" for line in done.stdout.splitlines()[:3]), flush=True)
    shutil.rmtree(folder)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
