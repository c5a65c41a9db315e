"""Cost sources in Python: `module:Class`, or a name of the entry points "llmsim.cost_sources"."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmsim.config.errors import InputError, nearest
from llmsim.config.plugin_calls import defined_at, foreign_code, guarded
from llmsim.config.plugins import Kind, create, entry_points
from llmsim.costs.source import AttentionCost, CostRequest, CostSource, Curve
from llmsim.costs.sources.blackbox import PREFIX, BlackboxSource

GROUP = "llmsim.cost_sources"


COST_SOURCE = Kind(
    "cost source",
    "--cost-source",
    GROUP,
    {
        "operator": "operator(op, last), which gives a Curve or None "
        "(docs/how-to/extending/cost_sources.md)",
        "attention": (
            "attention(op), which gives an AttentionCost or None "
            "(docs/how-to/extending/cost_sources.md)"
        ),
    },
    "my_costs:MyCosts",
)


def load_plugin(request: CostRequest) -> CostSource:
    """The class that the request names, constructed with the request and wrapped so that its errors
    are sentences.

    Raises InputError for a name that leads nowhere, or a class without the methods of `CostSource`.
    """
    name = request.plugin
    if name.startswith(PREFIX):
        return BlackboxSource(request)
    if ":" not in name and name not in (known := entry_points(GROUP)):
        raise InputError(
            f'--cost-source "{name}" is unknown{nearest(name, known)}; say auto, bundle, '
            "external, silicon or"
            f' roofline, module:Class, or a name that a package offers under "{GROUP}"'
        )
    return _Guarded(name, create(COST_SOURCE, name, {}, request))


class _Guarded(CostSource):
    """A foreign source whose exceptions end in a sentence that names it."""

    kind = "plug-in"
    prices_collectives = True

    def __init__(self, name: str, source: Any) -> None:
        self.name = f"plug-in {name}"
        self._source = source

    def operator(self, op: Any, last: int) -> Curve | None:
        """As the plug-in answers; its table must reach `last`."""
        curve = self._call("operator", op, last)
        if curve is None:
            return None
        where = f"{self.name} ({defined_at(self._source.operator)}): operator {op.name}"
        if not isinstance(curve, Curve):
            raise InputError(
                f"{where}: the answer is of the type {type(curve).__name__}; a Curve or None was "
                "expected"
            )
        ps, marks = np.asarray(curve.ps), np.asarray(curve.provenance)
        if ps.dtype.kind not in "iu" or marks.dtype.kind not in "iu":
            raise InputError(
                f"{where}: times are {ps.dtype} and marks {marks.dtype}; whole ps and Provenance "
                "are needed"
            )
        if not len(ps) == len(marks) == last + 1 or bool((ps < 0).any()):
            raise InputError(
                f"{where}: the curve must have {last + 1} times and marks, none negative, index "
                "0 first"
            )
        return curve

    def attention(self, op: Any) -> AttentionCost | None:
        """As the plug-in answers."""
        cost = self._call("attention", op)
        if cost is not None and not isinstance(cost, AttentionCost):
            where = f"{self.name} ({defined_at(self._source.attention)}): attention {op.name}"
            raise InputError(
                f"{where}: the answer is of the type {type(cost).__name__}; an AttentionCost or "
                "None was expected"
            )
        return cost

    def notes(self) -> list[str]:
        """Its own notes, if it has any."""
        if not hasattr(self._source, "notes"):
            return []
        return [str(note) for note in self._call("notes")]

    def _call(self, method: str, *arguments: Any) -> Any:
        about = getattr(arguments[0], "name", "") if arguments else ""
        with foreign_code():
            return guarded(f"{self.name}.{method}({about})", getattr(self._source, method))(
                *arguments
            )
