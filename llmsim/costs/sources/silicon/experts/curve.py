"""Grouped-expert times from the silicon database: the model's own shape where measured, else the
nearest one scaled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.experts.grouped_work import UNPADDED, GroupedWork, MoeShape, ReachedRates
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.source import CostRequest, Curve, to_ps
from llmsim.costs.sources.silicon.database import TablePath
from llmsim.costs.sources.silicon.experts.rows import IN_TURN, expert_rows, sizes_of

if TYPE_CHECKING:
    from llmsim.model import Moe

Floats = NDArray[np.float64]


def moe_curve(
    tables: list[TablePath],
    op: Moe,
    request: CostRequest,
    peak_rates: PeakRates,
    element_bytes: float,
    last: int,
) -> Curve | None:
    """Times for 1..last tokens; None when no table has experts of the weight dtype.

    The model's own shape is interpolated linearly over tokens. Otherwise the nearest measured shape
    (fewest doublings over all six sizes) is scaled by the ratio of the two rooflines, token count
    by token count.
    """
    found = expert_rows(tables, op, request, peak_rates, element_bytes)
    if found is None:
        return None
    rows, shape = found.rows, found.nearest
    keep = np.all(
        sizes_of(rows)
        == np.array([shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep]),
        axis=1,
    )
    distribution = str(rows["distribution"][keep][0])
    keep &= rows["distribution"] == distribution
    points, owner = np.unique(rows["num_tokens"][keep].astype(np.float64), return_inverse=True)
    measured = np.full(len(points), np.inf)
    np.minimum.at(measured, owner, rows["latency"][keep].astype(np.float64) * 1e3)
    counts = np.arange(last + 1, dtype=np.float64)
    times = _along(points, measured, counts)
    marks = np.where(np.isin(counts, points), Provenance.MEASURED, Provenance.INTERPOLATED)
    marks = np.where(counts > points[-1], Provenance.EXTRAPOLATED, marks)
    label = f"{found.label}, {distribution} routing"
    tile_rows = found.most_tile_rows if request.padded_experts else UNPADDED
    chosen_in_turn = distribution == IN_TURN
    work_of_choices = GroupedWork.in_turn if chosen_in_turn else GroupedWork.at_random
    as_measured = work_of_choices(shape, points, tile_rows, element_bytes)
    reached = ReachedRates.of_rows(as_measured, measured, peak_rates.memory_bandwidth_bytes_per_s)

    def at_random(of: MoeShape) -> Floats:
        return reached.us(GroupedWork.at_random(of, counts, tile_rows, element_bytes))

    if chosen_in_turn and request.touched_experts:
        times = times * _ratio(at_random(shape), _along(points, reached.us(as_measured), counts))
        label += ", of the experts that random choices touch"
    if shape != found.wanted:
        times = times * _ratio(at_random(found.wanted), at_random(shape))
        marks = np.full_like(marks, Provenance.SCALED)
        label += f", scaled from {shape}"
    ps = to_ps(times)
    ps[0] = 0
    return Curve(ps, marks.astype(np.uint8), label)


def _along(points: Floats, values: Floats, counts: Floats) -> Floats:
    """Values between points by lines, and beyond the last one at the slope of the last two."""
    along = np.interp(counts, points, values)
    if len(points) < 2:
        return along
    slope = max(0.0, (values[-1] - values[-2]) / (points[-1] - points[-2]))
    return np.asarray(along + slope * np.maximum(counts - points[-1], 0.0))


def _ratio(own: Floats, other: Floats) -> Floats:
    return np.divide(own, other, out=np.ones_like(own), where=other > 0)
