"""A hash of the code that makes a run's figures: the package, its native module, and the libraries
below them.
"""

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from llmsim.config.files.input_files import PACKAGE

LIBRARIES = (
    "aiconfigurator-core",
    "msgspec",
    "numpy",
    "pyarrow",
    "pydantic",
    "scikit-learn",
    "vllm",
)
"""Distributions whose version may change a figure; what is not installed counts as such."""
NOT_CODE = ("__pycache__", "native")
"""Folders of the package without code that runs: the native sources count by the module that was
built of them.
"""


@cache
def code_hash() -> str:
    """SHA-256 of the package's files, of the native module, and of the versions of Python and the
    libraries.
    """
    digest = hashlib.sha256(f"python {platform.python_version()}\n".encode())
    for library in LIBRARIES:
        digest.update(f"{library} {_version(library)}\n".encode())
    for path in _package_files():
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    native = find_spec("llmsim._native")
    if native is not None and native.origin is not None:
        digest.update(hashlib.sha256(Path(native.origin).read_bytes()).digest())
    return digest.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "is not installed"


def _package_files() -> list[Path]:
    found = []
    for folder, below, names in os.walk(PACKAGE):
        below[:] = [name for name in below if name not in NOT_CODE]
        found += [Path(folder, name) for name in names if not name.startswith("_native.")]
    return sorted(found)
