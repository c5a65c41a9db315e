"""Which release of an engine an interpreter has."""

import subprocess
from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.scheduling.conformance.engine_python import check_interpreter


def installed_version(python: Path, package: str, title: str, recipe: str) -> str:
    """The version of an engine's package; InputError where the interpreter has none, with the
    words of `make conformance` that install one.
    """
    check_interpreter(python)
    asks = f"from importlib.metadata import version; print(version('{package}'))"
    asked = subprocess.run([str(python), "-c", asks], capture_output=True, text=True)
    if asked.returncode != 0:
        raise InputError(
            f'--engine-python: "{python}" has no {title}; '
            f"`make conformance {recipe}` installs one that needs no GPU"
        )
    return asked.stdout.strip()
