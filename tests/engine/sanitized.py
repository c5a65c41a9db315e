"""Runs an executable over the recorded cases, under both rules and on every network: only 0, 2 and
3 may come out.

    python -m engine.sanitized EXECUTABLE    from tests/; meant for a build with sanitizers, whose
    findings end with 1

Says so where the recorded cases are not there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from shared_data import SHARED

RUNS = (
    ("strict", "congestion-unaware"),
    ("strict", "congestion-aware"),
    ("default", "congestion-unaware"),
    ("default", "congestion-aware"),
    ("default", "fair-share"),
)
SECONDS = 600


def run(executable: Path, case: Path, rules: str, backend: str) -> str:
    """What is wrong with how the run ends; "" when nothing is."""
    expected = json.loads((case / "expected.json").read_text())
    groups = case / "comm_group.json"
    options = {
        "rules": rules,
        "network-backend": backend,
        "workload-configuration": case / "workload",
        "system-configuration": case / "system.json",
        "network-configuration": case / "network.yml",
        "remote-memory-configuration": case / "memory.json",
        "comm-group-configuration": groups if groups.exists() else "empty",
        "timeline": os.devnull,
    }
    command = [
        str(executable),
        *(f"--{name}={value}" for name, value in options.items()),
        *expected["extra_flags"],
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, cwd=case, check=False
    )
    return (
        ""
        if done.returncode in (0, 2, 3)
        else f"exit code {done.returncode}: {done.stderr[-3000:]}"
    )


def main(executable: Path) -> int:
    cases = sorted(path.parent for path in (SHARED / "astra_conformance").glob("*/expected.json"))
    if not cases:
        print("the recorded cases are not on this machine; nothing was run")
        return 0
    found = [(case.name, *how, run(executable, case, *how)) for case in cases for how in RUNS]
    broken = [row for row in found if row[3]]
    for row in broken:
        print(*row)
    print(f"{len(found)} runs of {len(cases)} cases, {len(broken)} broke the rule")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
