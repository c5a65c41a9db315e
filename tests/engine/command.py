"""Builds the command `astra-sim` and the engine's own tests, once per session, and runs the command
on cases.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import HANGS_S

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "astra-sim-tests"
"""Not `build/astra-sim`: what a user builds there is optimised, and would stay as slow as this."""


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def build_command() -> Path:
    """Path of the executable: the installed one where no source is newer, else one that is built
    (or brought up to date) under the ignored `build/`; skips without cmake.
    """
    installed = Path(sysconfig.get_path("scripts")) / "astra-sim"
    if installed.exists() and installed.stat().st_mtime > _newest_source():
        return installed
    return build_target("astra-sim") / "astra-sim"


def _newest_source() -> float:
    folder = REPOSITORY / "astra-sim"
    sources = [path for name in ("*.cpp", "*.h", "CMakeLists.txt") for path in folder.rglob(name)]
    return max(path.stat().st_mtime for path in sources)


def build_target(target: str) -> Path:
    """The build folder, with a target that is up to date; skips where it cannot be built."""
    cmake = _tool("cmake")
    if cmake is None or (shutil.which("c++") is None and shutil.which("g++") is None):
        pytest.skip("the engine cannot be built alone here: cmake or a C++ compiler is missing")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:  # test processes side by side build it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        package = _package_build()
        if package is None:
            _succeed(_configure(cmake))
        folder = BUILD if package is None else package
        _succeed([cmake, "--build", str(folder), "--target", target, "--parallel", "2"])
    return BUILD if package is None else package / "astra-sim"


def _succeed(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _configure(cmake: str) -> list[str]:
    """Configures the engine alone, quick to compile."""
    ninja = _tool("ninja")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja is not None else []
    options = [
        "-DASTRA_BENCH=OFF",
        "-DASTRA_OPTIMIZE=-O1",
        "-DCMAKE_UNITY_BUILD=ON",
    ]
    configure = [cmake, "-S", str(REPOSITORY / "astra-sim"), "-B", str(BUILD), *options]
    return configure if (BUILD / "CMakeCache.txt").exists() else [*configure, *generator]


def _package_build() -> Path | None:
    """The folder in which this Python's package was built, which has the engine's libraries: the
    tests alone take a third of the time.
    """
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    built = REPOSITORY.glob(f"build/{version}-*/astra-sim/libastra_strict.a")
    return next((library.parents[1] for library in sorted(built)), None)


@dataclass(frozen=True)
class Result:
    """What a run printed; `report` is the JSON object, None where there was none. Times in ns."""

    exit_code: int
    report: dict[str, Any] | None
    errors: str
    node_times: list[str]

    def finish_ns(self) -> list[int | None]:
        assert self.report is not None, self.errors
        return [npu["finish_ns"] for npu in self.report["npus"]]

    def finish_ps(self) -> list[int | None]:
        """Only of default rules."""
        assert self.report is not None, self.errors
        return [npu["finish_ps"] for npu in self.report["npus"]]

    def times(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(NPU, node) -> issue and end, in ns (strict rules) or ps (default rules)."""
        rows = (tuple(map(int, line.split(","))) for line in self.node_times)
        return {(npu, node): (issue, done) for npu, node, issue, done in rows}


def case_options(case: Path, backend: str = "unaware", rules: str = "strict") -> list[str]:
    """For a folder with the corpus's file names; `backend` is unaware, aware or fair-share."""
    groups = case / "comm_group.json"
    network = "network.json" if (case / "network.json").exists() else "network.yml"
    return [
        f"--rules={rules}",
        f"--network-backend={backend if backend == 'fair-share' else f'congestion-{backend}'}",
        f"--workload-configuration={case}/workload",
        f"--system-configuration={case}/system.json",
        f"--network-configuration={case}/{network}",
        f"--remote-memory-configuration={case}/memory.json",
        f"--comm-group-configuration={groups if groups.exists() else 'empty'}",
    ]


def run_case(
    executable: Path,
    case: Path,
    scratch: Path,
    backend: str = "unaware",
    flags: tuple[str, ...] = (),
    in_case: bool = False,
    rules: str = "strict",
) -> Result:
    """Runs a folder with the corpus's file names; `backend` is unaware, aware or fair-share."""
    times = scratch / "node_times.csv"
    times.unlink(missing_ok=True)
    command = [
        str(executable),
        *case_options(case, backend, rules),
        "--json",
        f"--node-times={times}",
        *flags,
    ]
    where = case if in_case else scratch
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ASTRA")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=where,
        timeout=HANGS_S,
        env=environment,
        check=False,
    )
    errors = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("note:"))
    lines = times.read_text().split()[1:] if times.exists() else []
    return Result(done.returncode, json.loads(done.stdout) if done.stdout else None, errors, lines)
