"""Finds the engine's bindings: its own module when that was built alone and is on the path, else
the product's.
"""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from engine.command import build_command


def _load() -> ModuleType | None:
    for name, attribute in (("astra_engine_py", ""), ("llmsim._native", "engine")):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if not attribute:
            return module
        if hasattr(module, attribute):
            found = getattr(module, attribute)
            assert isinstance(found, ModuleType)
            return found
    return None


@pytest.fixture(scope="session")
def engine() -> ModuleType:
    """The engine's bindings; skips where they are not built."""
    module = _load()
    if module is None:
        pytest.skip(
            "the engine's bindings are not built (neither llmsim._native.engine nor "
            "astra_engine_py)"
        )
    return module


@pytest.fixture(scope="session")
def command() -> Path:
    """The executable `astra-sim`, built when a test first asks for it."""
    return build_command()
