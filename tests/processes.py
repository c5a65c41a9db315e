"""Other processes, as tests see them."""

import os
import signal
import time
from pathlib import Path

# After so long a process hangs; however busy the machine is, what tests start takes seconds.
HANGS_S = 300

# Options of a `run` that nobody waits for: one request after the other, each of its 100 million
# steps priced alone. It takes a quarter of an hour and little memory, so it still simulates
# whenever a test stops it.
ENDLESS = (
    "--dataset",
    "synthetic:n=100000,rate=40,input=fixed:200,output=fixed:1000,seed=1",
    "--max-num-seqs",
    "1",
    "--exact",
)


def wait_until_it_simulates(pid: int) -> None:
    """Returns when a `run` has begun to simulate, however long it takes to start: from then on it
    catches SIGTERM. Returns at once when it has ended, which its caller sees by its exit code.
    """
    status, bit = Path(f"/proc/{pid}/status"), 1 << (signal.SIGTERM - 1)
    deadline = time.monotonic() + HANGS_S
    while time.monotonic() < deadline and status.exists():
        now = dict(line.split(":", 1) for line in status.read_text().splitlines())
        ended = now["State"].split()[0] == "Z"
        if ended or int(now.get("SigCgt", "0"), 16) & bit:
            return
        time.sleep(0.02)


def wait_until_it_worked(pid: int, cpu_s: float) -> None:
    """Returns when the process has used so much more CPU time, or has ended."""
    stat = Path(f"/proc/{pid}/stat")

    def used_s() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    deadline = time.monotonic() + HANGS_S
    enough = used_s() + cpu_s
    while time.monotonic() < deadline and stat.exists() and used_s() < enough:
        time.sleep(0.02)
