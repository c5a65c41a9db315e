"""Where `llmsim`, `python -m llmsim` and main.py begin: an interrupt is one sentence from the first import on."""

import os
import sys


def main() -> int:
    """The `llmsim` command; returns the exit code."""
    return start("main")


def start(command: str) -> int:
    """Calls a function of `llmsim.cli`; returns the exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's would spin beside a run that multiplies no matrices
    try:
        from llmsim import cli

        code: int = getattr(cli, command)()
        return code
    except KeyboardInterrupt:  # before the command line could take care of it
        print("llmsim: error: interrupted before anything was computed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
