"""Starts the comparison in another interpreter, which has the engine but not llmsim."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llmsim
from llmsim import _native
from llmsim.config.errors import InputError

WORKER = "llmsim.scheduling.conformance.vllm.worker"
_ASK = "import sys; print(*sys.version_info[:2])"
_LAST_WORDS = 300
"""Characters of what a failed process said last that an error repeats."""


def verdicts_of(
    python: Path, seed: int, cases: int, requests: int, worker: str = WORKER
) -> Iterator[dict[str, Any]]:
    """What `verdicts` of the worker gives in that interpreter; InputError where it cannot run."""
    check_interpreter(python)
    with tempfile.TemporaryDirectory() as folder:
        environment = linked_environment(Path(folder))
        command = [str(python), "-m", worker, str(seed), str(cases), str(requests)]
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
            if process.wait() != 0:
                errors.seek(0)
                said = last_words(errors.read())
                raise InputError(f'--engine-python: "{python}" ended with an error: {said}')


def last_words(text: str) -> str:
    """The end of what a process has said, on one line."""
    return "..." + " ".join(text.split())[-_LAST_WORDS:]


def check_interpreter(python: Path) -> None:
    """InputError where this is no interpreter, or not of the version that llmsim was built for."""
    try:
        found = subprocess.run(
            [str(python), "-c", _ASK], capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(
            f'--engine-python: "{python}" is no Python interpreter that runs '
            f"({type(error).__name__}); name one, as in ENV/bin/python"
        ) from None
    if len(found) != 2 or not all(part.isdecimal() for part in found):
        raise InputError(
            f'--engine-python: "{python}" runs, but is no Python interpreter; name one, as in '
            "ENV/bin/python"
        )
    ours = [str(part) for part in sys.version_info[:2]]
    if found != ours:
        raise InputError(
            f'--engine-python: "{python}" is Python {".".join(found)}, but llmsim was built for '
            f"{'.'.join(ours)}; install the engine for that version"
        )


def linked_environment(folder: Path) -> dict[str, str]:
    """The environment of a process that finds a package llmsim of links, made in `folder`: its
    files and its native module, without its dependencies.
    """
    _link_package(folder)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _link_package(folder: Path) -> None:
    package = folder / "llmsim"
    package.mkdir()
    native = Path(str(_native.__file__))
    for source in [*Path(str(llmsim.__file__)).parent.iterdir(), native]:
        if source.name != "__pycache__" and not (package / source.name).exists():
            (package / source.name).symlink_to(source)
