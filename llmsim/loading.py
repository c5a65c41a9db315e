"""How modules are loaded: when a name of theirs is first used, and without work for nothing."""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_PLUGINS = "pydantic.plugin._loader"
"""The module in which pydantic looks for its own plug-ins."""
BLAS_SPIN, SHORTEST_SPIN = "OPENBLAS_THREAD_TIMEOUT", "4"
"""Variable of OpenBLAS: threads that wait for work spin for 2 to the power of this, in cycles."""


@contextmanager
def collections_paused() -> Iterator[None]:
    """For a block that makes much that stays and no garbage, such as modules or rows of a trace.

    The collector would look through all of it again and again, for a tenth of the time. What was
    made counts as old afterwards, so that the next collection does not look through it either.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():  # nobody else keeps objects apart
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def without_pydantic_plugins() -> Iterator[None]:
    """Models are built without plug-ins of pydantic, unless it has looked for them before.

    It would read the metadata of every installed package, which takes as long as a tenth of a short
    run, or more where many packages are installed.
    """
    if _PLUGINS in sys.modules:
        yield
        return
    nothing = ModuleType(_PLUGINS)
    nothing.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules[_PLUGINS] = nothing
    try:
        yield
    finally:
        sys.modules.pop(_PLUGINS, None)


@contextmanager
def idle_blas_threads() -> Iterator[None]:
    """The threads that numpy's OpenBLAS begins when it is first loaded sleep at once, within the
    block.

    They would spin for 30 ms on each other processor, and a run multiplies no matrices. OpenBLAS
    reads how long they spin when it is loaded. A setting of the user's stays as it is.
    """
    if "numpy" in sys.modules or BLAS_SPIN in os.environ:
        yield
        return
    os.environ[BLAS_SPIN] = SHORTEST_SPIN
    try:
        yield
    finally:
        os.environ.pop(BLAS_SPIN, None)


def loaded_on_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names are in other modules: name -> module."""

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with collections_paused(), idle_blas_threads():
            value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
