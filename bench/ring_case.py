"""An all-reduce by rings in every dimension of a torus, as files of the command `astra-sim`, and
what one run of it costs.
"""

import json
import math
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser


def executable_of(module: str, description: str | None) -> str:
    """The engine that a benchmark's command line names; the installed one by default."""
    parser = OneSentenceParser(prog=f"python -m {module}", description=description)
    installed = Path(sysconfig.get_path("scripts")) / "astra-sim"
    parser.add_argument("--executable", default=str(installed))
    return str(parser.parse_args().executable)


def write_case(
    folder: Path, executable: str, sizes: Sequence[int], gb_per_s: float, num_bytes: int
) -> list[str]:
    """Writes traces and files; returns the options that name them."""
    system = {
        "scheduling-policy": "LIFO",
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "endpoint-delay": 10,
        "local-mem-bw": 1600,
        "all-reduce-implementation": ["ring"] * len(sizes),
    }
    network = {
        "topology": ["Ring"] * len(sizes),
        "npus_count": list(sizes),
        "bandwidth": [gb_per_s] * len(sizes),
        "latency": [500.0] * len(sizes),
    }
    rows = "".join(f"{key}: {json.dumps(value)}\n" for key, value in network.items())
    (folder / "network.yml").write_text(rows, encoding="utf-8")
    (folder / "system.json").write_text(json.dumps(system), encoding="utf-8")
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}', encoding="utf-8")
    generate = ["generate", "all-reduce", f"--npus={math.prod(sizes)}", f"--size={num_bytes}"]
    subprocess.run([executable, *generate, f"--output={folder}/step"], check=True)
    return [
        f"--workload-configuration={folder}/step",
        f"--system-configuration={folder}/system.json",
        f"--network-configuration={folder}/network.yml",
        f"--remote-memory-configuration={folder}/memory.json",
    ]


def measure(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak MB of one process."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
