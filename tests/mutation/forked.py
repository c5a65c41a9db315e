"""Runs pytest in a fork of this process, which has imported the libraries of the tests: that saves
two seconds.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

LIBRARIES = (
    "hypothesis",
    "msgspec",
    "numpy",
    "pyarrow",
    "pyarrow.parquet",
    "pydantic",
    "rich",
    "typer",
    "yaml",
)
HANGS_S = 1800
"""Wall-clock limit of a process of tests, for what waits without using the processor."""
MOST_BYTES = 12 << 30
"""Limit of a process's memory."""


def forked(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
) -> int:
    """Exit code of pytest with these arguments in a folder; minus the signal's number where a
    signal ended it.
    """
    for name in LIBRARIES:
        import_module(name)
    process = os.fork()
    if process == 0:
        _run(arguments, folder, environment, log, limit_s)
    deadline = time.monotonic() + HANGS_S
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return -signal.SIGXCPU
    finally:
        _end_session(process)


def _run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
) -> None:
    """The fork's part; never returns."""
    code = 3
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(environment)
        os.chdir(folder)
        sys.dont_write_bytecode = True
        own = str(Path(__file__).resolve().parents[1])
        sys.path[:] = [
            *environment["PYTHONPATH"].split(os.pathsep),
            *(path for path in sys.path if path != own),
        ]
        runpy.run_path(str(Path(sys.path[0]) / "sitecustomize.py"))
        code = int(pytest.main(list(arguments)))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _end_session(process: int) -> None:
    """Ends what a process of tests has left running, and the process itself."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)
