"""Cost sources in Python: `module:Class`, or a name of the entry points "llmsim.cost_sources"."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError, LlmsimError, nearest
from llmsim.costs.blackbox import PREFIX, BlackboxSource
from llmsim.costs.source import AttentionCost, CostRequest, CostSource, Curve

GROUP = "llmsim.cost_sources"


def load_plugin(request: CostRequest) -> CostSource:
    """The class that the request names, constructed with the request and wrapped so that its errors are sentences.

    Raises InputError for a name that leads nowhere, or a class without the methods of `CostSource`.
    """
    name = request.plugin
    if name.startswith(PREFIX):
        return BlackboxSource(request)
    factory = _factory(name)
    try:
        source = factory(request)
    except LlmsimError:
        raise
    except Exception as error:  # foreign code may raise anything
        raise InputError(f'the cost source "{name}" could not be made ({type(error).__name__}: {error})') from error
    for method in ("operator", "attention"):
        if not callable(getattr(source, method, None)):
            raise InputError(f'the cost source "{name}" has no method "{method}"; see docs/extending.md')
    return _Guarded(name, source)


def _factory(name: str) -> Any:
    if ":" not in name:
        known = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
        if name not in known:
            raise InputError(
                f'--cost-source "{name}" is unknown{nearest(name, known)}; say auto, bundle, external, silicon or'
                f' roofline, module:Class, or a name that a package offers under "{GROUP}"'
            )
        return known[name].load()
    module_name, _, class_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as for routers: a file beside the cluster is enough
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f'the cost source "{name}": module "{module_name}" cannot be imported ({error})') from error
    factory = getattr(module, class_name, None)
    if factory is None:
        raise InputError(f'the cost source "{name}": {module_name} has no "{class_name}"')
    return factory


class _Guarded:
    """A foreign source whose exceptions end in a sentence that names it."""

    enforce_floor = False

    def __init__(self, name: str, source: Any) -> None:
        self.name = f"plug-in {name}"
        self._source = source

    def operator(self, op: Any, last: int) -> Curve | None:
        """As the plug-in answers; its table must reach `last`."""
        curve = self._call("operator", op, last)
        if curve is None:
            return None
        where = f"{self.name}: operator {op.name}"
        if not isinstance(curve, Curve):
            raise InputError(f"{where}: the answer is of the type {type(curve).__name__}; a Curve or None was expected")
        ps, marks = np.asarray(curve.ps), np.asarray(curve.provenance)
        if ps.dtype.kind not in "iu" or marks.dtype.kind not in "iu":
            raise InputError(
                f"{where}: times are {ps.dtype} and marks {marks.dtype}; whole ps and Provenance are needed"
            )
        if not len(ps) == len(marks) == last + 1 or bool((ps < 0).any()):
            raise InputError(f"{where}: the curve must have {last + 1} times and marks, none negative, index 0 first")
        return curve

    def attention(self, op: Any) -> AttentionCost | None:
        """As the plug-in answers."""
        cost = self._call("attention", op)
        if cost is not None and not isinstance(cost, AttentionCost):
            raise InputError(
                f"{self.name}: attention {op.name}: the answer is of the type {type(cost).__name__}; "
                "an AttentionCost or None was expected"
            )
        return cost

    def notes(self) -> list[str]:
        """Its own notes, if it has any."""
        return list(self._source.notes()) if hasattr(self._source, "notes") else []

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._source, method)(*arguments)
        except LlmsimError:
            raise
        except Exception as error:  # foreign code may raise anything
            where = f"{self.name}.{method}({getattr(arguments[0], 'name', '')})"
            raise InputError(f"{where} failed ({type(error).__name__}: {error})") from error
