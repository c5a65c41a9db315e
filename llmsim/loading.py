"""Modules that are loaded when a name of theirs is first used, without collections of garbage."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def collections_paused() -> Iterator[None]:
    """For a block that makes much that stays and no garbage, such as modules or rows of a trace.

    The collector would look through all of it again and again, for a tenth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def loaded_on_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names are in other modules: name -> module."""

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with collections_paused():
            value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
