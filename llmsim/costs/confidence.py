"""Interpolation errors of operator tables by how a time was obtained; and where a run would rather
not have been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from llmsim.config.errors import InputError
from llmsim.core import Int64, Provenance

if TYPE_CHECKING:
    from llmsim.costs.source import OpCost


class Expected(Struct, frozen=True):
    """Errors of single operators, percent: of every second one at most `half`, of nine in ten at
    most `most`.
    """

    half: float
    most: float


EXPECTED: Mapping[Provenance, Expected] = {
    Provenance.MEASURED: Expected(0.0, 0.0),
    Provenance.INTERPOLATED: Expected(3.0, 14.0),
    Provenance.EXTRAPOLATED: Expected(10.0, 39.0),
    Provenance.SCALED: Expected(1.5, 15.0),
    Provenance.ANALYTIC: Expected(20.0, 62.0),
}
"""Against the table itself (a card in another machine differs on its own account): medians over six
cards of what evaluation/leave_one_out.py finds, docs/explanation/estimator.md. Interpolated: GEMM
shapes and tokens, decode and prompt attention; extrapolated: prompts twice as long; scaled: another
head shape's decodes; analytic: the roofline.
"""

BY_DATA_SHEETS = "by data sheets"
"""How the source of a time ends that was measured on another device."""
LEVELS = ("measured", "interpolated", "extrapolated", "scaled")
"""What `--require` may be: nothing less than this."""


def expected_error(ps_by_provenance: Sequence[int]) -> tuple[float, float]:
    """(half, most) of a sum of times, percent, if all its parts erred the same way: the error of
    the operator tables, below that of a whole system.
    """
    total = sum(ps_by_provenance)
    if not total:
        return 0.0, 0.0
    shares = [part / total for part in ps_by_provenance]
    half = sum(share * EXPECTED[code].half for code, share in zip(Provenance, shares, strict=True))
    most = sum(share * EXPECTED[code].most for code, share in zip(Provenance, shares, strict=True))
    return half, most


class Reach(Struct, frozen=True):
    """A use of a table beyond its last measured point."""

    operator: str
    beyond: float
    """The farthest point over the last measured one, above 1."""
    what: str


def farthest(cost: OpCost, rows: Int64) -> Reach | None:
    """The farthest extrapolated row of a table that a run read; `rows[i]` is how often it read row
    i.
    """
    used = np.flatnonzero((rows > 0) & (cost.provenance == Provenance.EXTRAPOLATED))
    known = np.flatnonzero(cost.provenance < Provenance.EXTRAPOLATED)
    if not len(used) or not len(known) or used[-1] < known[-1]:
        return None
    last = int(known[-1])
    return Reach(
        cost.name,
        int(used[-1]) / max(last, 1),
        f"{int(used[-1])} {cost.feature}, measured up to {last}",
    )


def refuse_below(level: str, where: str, cost: OpCost, rows: Int64) -> None:
    """InputError for the first row of a table that a run read and that is known less well than
    `level`.
    """
    worst = LEVELS.index(level)
    used = np.flatnonzero((rows > 0) & (cost.provenance > worst))
    used = used[used > 0]
    if len(used):
        at = int(used[0])
        raise InputError(
            f"--require {level}: {where}: the time of {cost.name} at {at} {cost.feature} is "
            f"{Provenance(int(cost.provenance[at])).name.lower()} ({cost.source}); measure it (a "
            "profile bundle or --cost-table), or require less"
        )


def refuse_attention_below(
    level: str, where: str, name: str, source: str, ps_by_provenance: Sequence[int]
) -> None:
    """The same for attention, whose shapes are whole batches: InputError if any of its time is
    known less well.
    """
    worst = max(
        (code for code in Provenance if ps_by_provenance[code]), default=Provenance.MEASURED
    )
    if worst > LEVELS.index(level):
        share = ps_by_provenance[worst] / sum(ps_by_provenance)
        raise InputError(
            f"--require {level}: {where}: {share:.1%} of the time of {name} is "
            f"{worst.name.lower()} ({source}); measure"
            " those batches (a profile bundle or --cost-table), or require less"
        )
