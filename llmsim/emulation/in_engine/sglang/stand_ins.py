"""Lets SGLang start on a machine without a GPU; Python runs it before each of SGLang's processes.

It imports nothing but modules of the standard library: helpers of Python's own are processes, too.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

from llmsim.emulation.in_engine.parent import die_with_own
from llmsim.scheduling.conformance.sglang.platform import StandInFinder

_OWN_HELPER = "resource_tracker"
"""A process of Python's own that ends behind its parent, and cleans up."""
_ASKS_FOR_PACKAGES = "transformers.utils.import_utils"
"""The module that says which packages are installed."""


class _WithoutTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads that module, and makes it say that torchvision is not installed."""

    def __init__(self) -> None:
        self._own: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _ASKS_FOR_PACKAGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            self._own, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        self._own.exec_module(module)
        module.is_torchvision_available = lambda: False  # type: ignore[attr-defined]


def install() -> None:
    """From now on imports find stand-ins of SGLang's kernels, and no process outlives the one that
    has started it: SGLang's own take care of that only once they have imported all of it.
    """
    if not any(_OWN_HELPER in word for word in sys.orig_argv):
        die_with_own()
    sys.meta_path[:0] = [StandInFinder(), _WithoutTorchvision()]


def install_for_client() -> None:
    """SGLang's load generators import the modules of its kernels, too; stand-ins take the place of
    those that the client's interpreter does not have.
    """
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.insert(0, _WithoutTorchvision())
    sys.meta_path.append(StandInFinder())
