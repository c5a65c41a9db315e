"""`python -m bench.torus`: an all-reduce of 64 MiB on a 3-D torus of 65,536 NPUs, by the installed
`astra-sim` under default rules; CPU seconds and peak memory of each network.

Another executable (`--executable`) gives the figures of another version.
"""

import json
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser

SIZES = (64, 32, 32)
NETWORKS = ("congestion-unaware", "congestion-aware", "fair-share")


def write_case(folder: Path, executable: str) -> list[str]:
    """Writes traces and files; returns the options that name them."""
    system = {
        "preferred-dataset-splits": 1,
        "endpoint-delay": 10,
        "local-mem-bw": 1600,
        "all-reduce-implementation": ["ring"] * 3,
    }
    network = {
        "topology": ["Ring"] * 3,
        "npus_count": list(SIZES),
        "bandwidth": [50.0] * 3,
        "latency": [500.0] * 3,
    }
    rows = "".join(f"{key}: {json.dumps(value)}\n" for key, value in network.items())
    (folder / "network.yml").write_text(rows, encoding="utf-8")
    (folder / "system.json").write_text(json.dumps(system), encoding="utf-8")
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}', encoding="utf-8")
    npus = SIZES[0] * SIZES[1] * SIZES[2]
    generate = ["generate", "all-reduce", f"--npus={npus}", f"--size={64 << 20}"]
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


def main() -> None:
    """Prints one line per network."""
    parser = OneSentenceParser(prog="python -m bench.torus", description=__doc__)
    installed = Path(sysconfig.get_path("scripts")) / "astra-sim"
    parser.add_argument("--executable", default=str(installed))
    executable = parser.parse_args().executable
    with tempfile.TemporaryDirectory() as folder:
        options = write_case(Path(folder), executable)
        print(f"{'network':20}{'CPU s':>8}{'peak MB':>9}")
        for network in NETWORKS:
            cpu, peak = measure([executable, *options, f"--network-backend={network}"])
            print(f"{network:20}{cpu:8.2f}{peak:9.0f}", flush=True)


if __name__ == "__main__":
    main()
