"""How modules are loaded: when a name of theirs is first used, and without work for nothing."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_PLUGINS = "pydantic.plugin._loader"
"""The module in which pydantic looks for its own plug-ins."""


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
