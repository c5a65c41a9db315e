"""Where `llmsim`, `python -m llmsim` and main.py begin: an interrupt is one sentence from the first
import on.
"""

import contextlib
import gc
import importlib.util
import os
import signal
import sys
from typing import NoReturn

from llmsim.native_build import BUILD, NAME, PACKAGE, why_stale

REQUIRED = ("numpy", "msgspec", "pydantic", "typer")
"""Packages that every command imports."""
CANNOT_RUN = 3


def main() -> int:
    """The `llmsim` command; returns the exit code."""
    return start("main")


def start(command: str) -> int:
    """Calls a function of `llmsim.cli`; returns the exit code."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # numpy's would spin beside a run that multiplies no matrices
    try:
        problem = _import_core()
        if problem:
            print(f"llmsim: error: {problem}", file=sys.stderr)
            return CANNOT_RUN
        from llmsim import cli

        code: int = getattr(cli, command)()
        _end_abruptly()
    except KeyboardInterrupt:  # before the command line could take care of it
        print("llmsim: error: interrupted before anything was computed", file=sys.stderr)
        code = 130
    return code if code != 130 else _interrupted()


def _import_core() -> str:
    """Imports what every command needs; a sentence where that is not there or not of this checkout.

    An interrupt is held back until the native core is there: in the midst of it Python would abort.
    """
    for name in REQUIRED:
        if importlib.util.find_spec(name) is None:
            return (
                f"the Python package {name} is not installed for {sys.executable}: {BUILD}, in "
                f"{PACKAGE.parent}"
            )
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        native = importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        return str(error)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return why_stale(native)


def _interrupted() -> NoReturn:
    """Ends the process with the code itself: `python -m` would end it by the signal where it met an
    import.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(130)


def _end_abruptly() -> None:
    """Saves what Python takes to find and give back every object of a process that ends: a quarter
    of a short run.
    """
    gc.freeze()
    native = sys.modules.get("llmsim._native")
    if native is not None:
        native.expect_abrupt_end()


if __name__ == "__main__":
    sys.exit(main())
