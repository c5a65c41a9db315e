"""On PYTHONPATH, makes every Python process load the module that LLMSIM_NATIVE names as
llmsim._native.

For a build with sanitizers beside the installed one: tests/sanitize.sh. Python imports it by its
name at its start.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType


class _Given:
    """Finds llmsim._native, before the finder of an editable installation does."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return (
            spec_from_file_location(name, os.environ["LLMSIM_NATIVE"])
            if name == "llmsim._native"
            else None
        )


sys.meta_path.insert(0, _Given)
