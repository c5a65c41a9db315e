"""On PYTHONPATH, makes every Python process load the copy of the tree that LLMSIM_TREE names,
whatever is installed.

LLMSIM_NATIVE names the native module. Where LLMSIM_REACHED names a folder, the process notes which
functions ran and writes them there at its end; a test process collects its own notes after each
test (reach_plugin.py).
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType

TREE = os.environ["LLMSIM_TREE"]
PACKAGES = ("llmsim", "profiler")


class _Copied:
    """Finds the modules of the copied tree, before the finder of an editable installation does."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "llmsim._native":
            return spec_from_file_location(name, os.environ["LLMSIM_NATIVE"])
        if name in PACKAGES:
            return PathFinder.find_spec(name, [TREE])
        if name.partition(".")[0] in PACKAGES:
            return PathFinder.find_spec(name, path)
        return None


sys.meta_path.insert(0, _Copied)

if os.environ.get("LLMSIM_REACHED"):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import reach_probe

    reach_probe.start(TREE)
