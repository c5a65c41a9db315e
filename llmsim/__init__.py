"""llmsim simulates LLM serving clusters: schedulers, KV caches, operators and networks, without a
GPU.
"""

from typing import TYPE_CHECKING

from llmsim import native_build
from llmsim.compat import moved_modules
from llmsim.loading import loaded_on_use

__version__ = "0.1.0"

native_build.install_finder()
moved_modules.install_finder()

if TYPE_CHECKING:
    from llmsim.api.cluster import Cluster
    from llmsim.api.compare import diff, report
    from llmsim.api.logs import calibrate, validate
    from llmsim.api.result import Result
    from llmsim.api.run import run
    from llmsim.api.sweep import sweep
    from llmsim.api.workload import Request
    from llmsim.config.errors import InfeasibleError, InputError, InvariantError, LlmsimError
    from llmsim.sizing.size import size

__all__ = [
    "Cluster",
    "InfeasibleError",
    "InputError",
    "InvariantError",
    "LlmsimError",
    "Request",
    "Result",
    "calibrate",
    "diff",
    "report",
    "run",
    "size",
    "sweep",
    "validate",
]

_LOADED_ON_USE = {
    "Cluster": "llmsim.api.cluster",
    "InfeasibleError": "llmsim.config.errors",
    "InputError": "llmsim.config.errors",
    "InvariantError": "llmsim.config.errors",
    "LlmsimError": "llmsim.config.errors",
    "Request": "llmsim.api.workload",
    "Result": "llmsim.api.result",
    "calibrate": "llmsim.api.logs",
    "diff": "llmsim.api.compare",
    "report": "llmsim.api.compare",
    "run": "llmsim.api.run",
    "size": "llmsim.sizing.size",
    "sweep": "llmsim.api.sweep",
    "validate": "llmsim.api.logs",
}


__getattr__ = loaded_on_use(__name__, _LOADED_ON_USE)
"""Public names are loaded when they are first used, so that `import llmsim` stays quick."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
