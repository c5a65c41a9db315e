"""Modules that plug-ins import by an earlier name: they load as before, with a warning that names
the new one.
"""

import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "llmsim.config.engine_args": "llmsim.config.engine.args",
    "llmsim.costs.blackbox": "llmsim.costs.sources.blackbox",
    "llmsim.costs.expert_loads": "llmsim.costs.experts.load_sampling",
    "llmsim.costs.expert_routing": "llmsim.costs.experts.routing",
    "llmsim.costs.external": "llmsim.costs.sources.external.table",
    "llmsim.costs.roofline": "llmsim.costs.sources.roofline",
    "llmsim.costs.silicon": "llmsim.costs.sources.silicon.source",
    "llmsim.model.presets": "llmsim.model.families.presets",
    "llmsim.model.rank": "llmsim.model.operator",
    "llmsim.scheduling.steps": "llmsim.scheduling.python_scheduler",
}
"""Earlier name -> present name, of modules that a plug-in or a script may have imported."""


class MovedModules:
    """Finds a module by its earlier name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None for every name that no module had."""
        if fullname not in MOVED:
            return None
        # Python calls the methods of a loader; the class would load twenty modules of its library.
        return importlib.machinery.ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leaves it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills the module with the names of the present one, and warns once."""
        present = MOVED[module.__name__]
        # Six frames up is the import statement: above are this method and those of importlib.
        warnings.warn(
            f"{module.__name__} is now {present}; import it from there", FutureWarning, stacklevel=6
        )
        names = vars(importlib.import_module(present))
        vars(module).update(
            {name: value for name, value in names.items() if not name.startswith("__")}
        )


def install_finder() -> None:
    """Python asks it where nothing else knows a module."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
