"""Decides who prices a collective: the user's own tables, measured ones, or (elsewhere) the
cluster's links.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmsim.config.errors import InputError
from llmsim.costs.catalog import Available
from llmsim.costs.source import CostRequest, CostSource, Curve
from llmsim.model import Collective

if TYPE_CHECKING:
    from llmsim.model import Operator
    from llmsim.model.layout import Among


def among_whom(op: Collective) -> str:
    """Which ranks a collective is among."""
    return whose(op.among)


def whose(among: Among) -> str:
    """The ranks in words."""
    return {
        "stages": "pipeline stages",
        "members": "data-parallel ranks",
        "everyone": "data-parallel ranks",
        "dcp": "context-parallel ranks",
        "pcp": "context-parallel ranks",
        "tp": "the ranks of a group",
    }[among]


def own_collective(op: Operator, sources: list[CostSource], request: CostRequest) -> Curve | None:
    """What a plug-in or a table of the user's says about a collective; they come before tables and
    links.
    """
    own = [source for source in sources if source.prices_collectives]
    return next(
        (curve for source in own if (curve := source.operator(op, request.counts(op.feature)))),
        None,
    )


def collective_pricer(
    request: CostRequest, available: Available
) -> Callable[[Collective], Curve | None]:
    """Who prices collectives: measured tables where the database prices the operators, else the
    cluster's links.

    Beside a user's own bundle, tables or plug-in the links that the cluster file states come before
    tables of another machine, among whatever ranks. Nothing measured spans nodes or pipeline
    stages.
    """
    wanted = request.collectives
    database = available.database
    if wanted in ("links", "nccl") or (wanted == "auto" and request.source == "roofline"):
        return lambda op: None
    own = available.bundle is not None or available.tables or request.plugin
    by_database = database is not None and database.has_operators
    if wanted == "auto" and (own or not by_database):
        return lambda op: None
    if not any(isinstance(op, Collective) for op in request.operators):
        return lambda op: None
    pricer = None
    if database is not None:
        from llmsim.costs.sources.silicon.collectives import CollectiveTables

        pricer = CollectiveTables(request, database)

    def price(op: Collective) -> Curve | None:
        among = among_whom(op)
        if among == "pipeline stages" or (among == "data-parallel ranks" and request.spans_nodes):
            return None
        if op.collective in ("all_to_all", "broadcast"):  # no table knows these kernels
            return None
        if wanted == "auto" and op.among in request.unmeasured_ranks:
            return None
        ranks = request.layout.ranks(op.among)
        curve = (
            pricer.operator(op, request.counts(op.feature), ranks) if pricer is not None else None
        )
        if curve is None and wanted == "measured":
            raise InputError(
                f"there is no measured table of {op.name} over {ranks} devices of "
                f'"{request.hardware_name}"; use collectives "links"'
            )
        return curve

    return price
