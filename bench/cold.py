"""`python -m bench.cold`: CPU seconds of a fresh process that simulates 300 requests, by
`llmsim.run` and by `llmsim run`.

Nearly all of that time goes into imports. A process before the measured ones compiles bytecode and
cost tables, as a user's first run does.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[1]
CLUSTER, TRACE = "cluster_config/h100_llama31_8b.json", "dataset/chat_h100_300.jsonl"
PROCESSES = {
    "python": ("-c", "pass"),
    "imports": ("-c", "import numpy, pydantic.main, msgspec"),
    "llmsim.run": ("-c", f"import llmsim; llmsim.run({CLUSTER!r}, {TRACE!r})"),
    "llmsim run": ("-m", "llmsim", "run", "--cluster-config", CLUSTER, "--dataset", TRACE),
}
"""What is measured: Python alone and the libraries below us are the floor."""


def cpu_s(arguments: tuple[str, ...]) -> float:
    """User and system seconds of one process."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = OneSentenceParser(prog="python -m bench.cold", description=__doc__)
    parser.add_argument("--repeat", type=int, default=10, help="processes of each kind")
    repeat = parser.parse_args().repeat
    if repeat < 1:
        parser.error(f"--repeat is {repeat}; it must be at least 1")
    for arguments in PROCESSES.values():
        cpu_s(arguments)
    rounds = [
        {name: cpu_s(arguments) for name, arguments in PROCESSES.items()} for _ in range(repeat)
    ]
    print(f"{'process':12}{'best CPU s':>12}{'median':>9}")
    for name in PROCESSES:
        found = [one[name] for one in rounds]
        print(f"{name:12}{min(found):12.3f}{statistics.median(found):9.3f}")


if __name__ == "__main__":
    main()
