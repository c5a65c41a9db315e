"""Where `llmsim`, `python -m llmsim` and main.py begin: an interrupt is one sentence from the first import on."""

import contextlib
import gc
import importlib
import os
import signal
import sys
from typing import NoReturn


def main() -> int:
    """The `llmsim` command; returns the exit code."""
    return start("main")


def start(command: str) -> int:
    """Calls a function of `llmsim.cli`; returns the exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's would spin beside a run that multiplies no matrices
    try:
        _import_core()
        from llmsim import cli

        code: int = getattr(cli, command)()
        _end_abruptly()
    except KeyboardInterrupt:  # before the command line could take care of it
        print("llmsim: error: interrupted before anything was computed", file=sys.stderr)
        code = 130
    return code if code != 130 else _interrupted()


def _import_core() -> None:
    """Holds an interrupt back until the native core is there: in the midst of it Python would abort."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        importlib.import_module("llmsim._native")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _interrupted() -> NoReturn:
    """Ends the process with the code itself: `python -m` would end it by the signal where it met an import."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(130)


def _end_abruptly() -> None:
    """Saves what Python takes to find and give back every object of a process that ends: a quarter of a short run."""
    gc.freeze()
    native = sys.modules.get("llmsim._native")
    if native is not None:
        native.expect_abrupt_end()


if __name__ == "__main__":
    sys.exit(main())
