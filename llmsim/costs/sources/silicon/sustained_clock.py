"""Times of matrices at the clock that a card's power limit allows, where nobody recorded over which
time the card averages its power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from llmsim.core import Provenance
from llmsim.costs.source import Curve

if TYPE_CHECKING:
    from llmsim.model import Gemm, Hardware, Moe

FJ_PER_PS_IN_W = 1e-3
"""One femtojoule per picosecond, in watts."""


def sustained(curve: Curve, op: Gemm | Moe, sheet: Hardware | None) -> Curve:
    """The curve of an operator as a server sustains it.

    The database times bursts, which end before the power limit lowers the clock. The switching
    power of an operator is its rate x the energy of one operation, at the full clock. Beyond
    limit - idle the clock falls to the cube root of the ratio, since the voltage falls with it.
    A card without these numbers keeps the burst, and so does one whose window is known: there
    steps meet the limit, not matrices (llmsim/lowering/adjust/sustained_clock.py).
    """
    if sheet is None or not (sheet.tdp_w and sheet.idle_w and sheet.switching_fj_per_flop):
        return curve
    if sheet.power_window_ms is not None:
        return curve
    flops = np.arange(len(curve.ps), dtype=np.float64) * op.flops_per_token
    energy_fj = flops * sheet.switching_fj_per_flop
    switching_w = energy_fj / np.maximum(curve.ps, 1) * FJ_PER_PS_IN_W
    slowdown = np.cbrt(np.maximum(switching_w / (sheet.tdp_w - sheet.idle_w), 1.0))
    if not bool((slowdown > 1.0).any()):
        return curve
    scaled = np.maximum(curve.provenance, np.uint8(Provenance.SCALED))
    return replace(
        curve,
        ps=np.ceil(curve.ps * slowdown).astype(np.int64),
        provenance=np.where(slowdown > 1.0, scaled, curve.provenance).astype(np.uint8),
        source=f"{curve.source}, at the clock of the power limit",
    )
