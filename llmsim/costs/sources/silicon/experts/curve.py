"""Grouped-expert times from the silicon database: the model's own shape where measured, else the
nearest one scaled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.experts.grouped_work import UNPADDED, GroupedWork, MoeShape, ReachedRates
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.source import CostRequest, Curve, to_ps
from llmsim.costs.sources.silicon.database import TablePath
from llmsim.costs.sources.silicon.experts.rows import IN_TURN, Columns, expert_rows, of_shape

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
    measured = TimedShape.of_rows(found.rows, found.nearest)
    points, counts = measured.points, np.arange(last + 1, dtype=np.float64)
    marks = np.where(np.isin(counts, points), Provenance.MEASURED, Provenance.INTERPOLATED)
    marks = np.where(counts > points[-1], Provenance.EXTRAPOLATED, marks)
    label = f"{found.label}, {measured.distribution} routing"
    bytes_per_s = peak_rates.memory_bandwidth_bytes_per_s
    tile_rows = found.most_tile_rows if request.padded_experts else UNPADDED
    scale = Scale.of(measured, tile_rows, element_bytes, bytes_per_s)
    times = measured.at(counts)
    if measured.chosen_in_turn and request.touched_experts:
        in_turn, times = times, times * scale.of_random_choices(counts)
        label += ", of the experts that random choices touch"
        uneven = found.uneven_of(measured.shape)
        if uneven is not None:
            unpadded = Scale.of(measured, UNPADDED, element_bytes, bytes_per_s)
            without_tiles = in_turn * unpadded.of_random_choices(counts)
            longest = np.maximum(
                without_tiles, TimedShape.of_rows(uneven, measured.shape).at(counts)
            )
            if bool((times > longest).any()):
                label += ", no longer than more uneven ones take"
            times = np.minimum(times, longest)
    if measured.shape != found.wanted:
        times = times * scale.of_shape(found.wanted, counts)
        marks = np.full_like(marks, Provenance.SCALED)
        label += f", scaled from {measured.shape}"
    ps = to_ps(times)
    ps[0] = 0
    return Curve(ps, marks.astype(np.uint8), label)


class TimedShape(Struct, frozen=True, eq=False):
    """Times of the rows of one shape, by tokens; the fastest kernel's where there are several."""

    shape: MoeShape
    points: Floats
    """Counts of tokens, ascending."""
    us: Floats
    distribution: str

    @classmethod
    def of_rows(cls, rows: Columns, shape: MoeShape) -> TimedShape:
        """Those of a shape, by the distribution of its first row."""
        own = of_shape(rows, shape)
        distribution = str(own["distribution"][0])
        alike = own["distribution"] == distribution
        tokens = own["num_tokens"][alike].astype(np.float64)
        points, owner = np.unique(tokens, return_inverse=True)
        us = np.full(len(points), np.inf)
        np.minimum.at(us, owner, own["latency"][alike].astype(np.float64) * 1e3)
        return cls(shape, points, us, distribution)

    @property
    def chosen_in_turn(self) -> bool:
        """Whether its tokens took all experts in turn."""
        return self.distribution == IN_TURN

    def at(self, counts: Floats) -> Floats:
        """Microseconds for counts of tokens."""
        return _along(self.points, self.us, counts)


class Scale(Struct, frozen=True, eq=False):
    """How times of a measured shape change with the choices and with the shape, by the roofline
    whose rates its rows reach.
    """

    measured: TimedShape
    tile_rows: int
    element_bytes: float
    rates: ReachedRates

    @classmethod
    def of(
        cls, measured: TimedShape, tile_rows: int, element_bytes: float, bytes_per_s: int
    ) -> Scale:
        """With tiles of at most so many rows, and memory of a bandwidth for the outputs."""
        choices = GroupedWork.in_turn if measured.chosen_in_turn else GroupedWork.at_random
        work = choices(measured.shape, measured.points, tile_rows, element_bytes)
        rates = ReachedRates.of_rows(work, measured.us, bytes_per_s)
        return cls(measured, tile_rows, element_bytes, rates)

    def of_random_choices(self, counts: Floats) -> Floats:
        """Times of random choices as multiples of those in turn."""
        shape, points = self.measured.shape, self.measured.points
        work = GroupedWork.in_turn(shape, points, self.tile_rows, self.element_bytes)
        in_turn = _along(points, self.rates.us(work), counts)
        return _ratio(self._at_random(shape, counts), in_turn)

    def of_shape(self, wanted: MoeShape, counts: Floats) -> Floats:
        """Times of another shape as multiples of the measured one's."""
        own = self._at_random(self.measured.shape, counts)
        return _ratio(self._at_random(wanted, counts), own)

    def _at_random(self, shape: MoeShape, counts: Floats) -> Floats:
        work = GroupedWork.at_random(shape, counts, self.tile_rows, self.element_bytes)
        return self.rates.us(work)


def _along(points: Floats, values: Floats, counts: Floats) -> Floats:
    """Values between points by lines, and beyond the last one at the slope of the last two."""
    along = np.interp(counts, points, values)
    if len(points) < 2:
        return along
    slope = max(0.0, (values[-1] - values[-2]) / (points[-1] - points[-2]))
    return np.asarray(along + slope * np.maximum(counts - points[-1], 0.0))


def _ratio(own: Floats, other: Floats) -> Floats:
    return np.divide(own, other, out=np.ones_like(own), where=other > 0)
