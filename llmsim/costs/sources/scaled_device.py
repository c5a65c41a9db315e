"""Cost source: a measured card of the same kind, scaled by the two data sheets.

A card that nobody measured often has a neighbour of the same chip or generation in the silicon
database (`similar_to` of its data sheet). An operator is taken to use its device as well as it uses
the neighbour: beyond the fixed part of a kernel, its time there times the ratio of the two
rooflines at that shape. How good that is: estimator.md of docs/explanation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Int64, Provenance, UInt8
from llmsim.costs.confidence import BY_DATA_SHEETS
from llmsim.costs.hardware_limits import PeakRates, peak_rates_of
from llmsim.costs.source import (
    AttentionCost,
    CostRequest,
    CostSource,
    Curve,
    LatentGrid,
    OpCost,
    SplitAttention,
    SplitGrid,
)
from llmsim.costs.sources.decode_skew import mixed_decode_q20, skew_note, skew_q20
from llmsim.costs.sources.roofline import ATTENTION_LAUNCH_US, LAUNCH_US, RooflineSource
from llmsim.costs.sources.silicon.database import Database
from llmsim.costs.sources.silicon.source import SiliconSource

if TYPE_CHECKING:
    from llmsim.model import Attention, Hardware, Operator

Floats = NDArray[np.float64]
PS_PER_US = 1e6


class SimilarSource(CostSource):
    """Times of another card's kernels on a card that was never measured; all of them
    marked scaled.
    """

    name = "similar"
    kind = "similar"
    enforce_floor = True

    def __init__(self, request: CostRequest, neighbour: Hardware, database: Database) -> None:
        mine, peak_rates = (
            replace(request, group_memory_bandwidth_bytes_per_s=0),
            peak_rates_of(request),
        )
        if peak_rates is None:
            raise AssertionError("a card with a neighbour has a data sheet")
        there = replace(mine, hardware=neighbour, hardware_name=neighbour.name)
        self._request = request
        self._peak_rates: PeakRates = peak_rates
        self._measured = SiliconSource(there, database)
        self._mine, self._theirs = RooflineSource(mine), RooflineSource(there)
        self._others_skew, self._own_skew = "", list[str]()
        self._label = f"scaled from {neighbour.name} {BY_DATA_SHEETS}"
        assert request.hardware is not None
        self._bytes_ratio = (
            neighbour.memory_bandwidth_bytes_per_s / request.hardware.memory_bandwidth_bytes_per_s
        )

    def operator(self, op: Operator, last: int) -> Curve | None:
        """Times for 1..last; None for collectives, which are another machine's links, and for what
        nobody measured.
        """
        curve = self._measured.operator(op, last)
        if curve is None:
            return None
        counts = np.arange(last + 1, dtype=np.float64)
        mine, theirs = (
            roof.operator_us(op, counts) - LAUNCH_US for roof in (self._mine, self._theirs)
        )
        ps = _scaled(
            curve.ps, np.divide(mine, theirs, out=np.ones_like(mine), where=theirs > 0), LAUNCH_US
        )
        least = np.ceil(
            self._peak_rates.operator_us(op, counts, self._request.dtypes.activation) * PS_PER_US
        )
        marks = np.where(ps < least, Provenance.ANALYTIC, Provenance.SCALED).astype(np.uint8)
        ps = np.where(curve.ps > 0, np.maximum(ps, least.astype(np.int64)), 0)
        return Curve(ps, marks, f"{curve.source}, {self._label}")

    def attention(self, op: Attention) -> AttentionCost | None:
        """The neighbour's grids, cell by cell; skew and mixed steps by this card's own
        constants.
        """
        found = self._measured.attention(op)
        if not isinstance(found, SplitAttention):
            return None
        grid = found.grid
        q, k = np.meshgrid(grid.q_axis.astype(float), grid.k_axis.astype(float), indexing="ij")
        n, kv = np.meshgrid(grid.n_axis.astype(float), grid.kv_axis.astype(float), indexing="ij")
        prefill = self._cells(op, grid.prefill_ps, q + k, q * k + q * (q + 1) / 2, 0)
        decode = self._cells(
            op, grid.decode_ps, n * (kv + 1), n * (kv + 1), op.decode_flops_per_context_token
        )
        kappa, how = skew_q20(self._request, op)
        self._others_skew = skew_note(found.skew_source)
        self._own_skew = [] if kappa else [skew_note(how)]
        split = SplitGrid(
            grid.q_axis,
            grid.k_axis,
            *prefill,
            grid.n_axis,
            grid.kv_axis,
            *decode,
            mixed_decode_q20(self._request, op),
            grid.shared_ppm,
            self._on_latents(op, grid, q, k),
        )
        return SplitAttention(
            repeat=op.repeat,
            grid=split,
            skew_ps_per_token_q20=kappa,
            source=f"{found.source}, {self._label}",
            skew_source=how,
        )

    def _on_latents(
        self, op: Attention, grid: SplitGrid, q: Floats, k: Floats
    ) -> LatentGrid | None:
        latents = grid.on_latents
        if latents is None:
            return None
        pairs = q * k + q * (q + 1) / 2
        ps, marks = self._cells(op.on_latents, latents.ps, q + k, pairs, 0)
        return LatentGrid(latents.rule, ps, marks, latents.shared_ppm)

    def extra_ops(self) -> list[OpCost]:
        """The kernels beside the tables', which only move data."""
        return [
            replace(
                cost,
                ps=_scaled(cost.ps, np.full(len(cost.ps), self._bytes_ratio), LAUNCH_US),
                provenance=np.full(len(cost.ps), Provenance.SCALED, np.uint8),
                source=f"{cost.source}, {self._label}",
            )
            for cost in self._measured.extra_ops()
        ]

    def notes(self) -> list[str]:
        """What the database could not say of the neighbour, and this card's own constants of
        attention.
        """
        return [
            note for note in self._measured.notes() if note != self._others_skew
        ] + self._own_skew

    def _cells(
        self, op: Attention, ps: Int64, read: Floats, pairs: Floats, flops: int
    ) -> tuple[Int64, UInt8]:
        mine, theirs = (
            roof.attention_us(op, read, pairs, flops) - ATTENTION_LAUNCH_US
            for roof in (self._mine, self._theirs)
        )
        scaled = _scaled(
            ps,
            np.divide(mine, theirs, out=np.ones_like(mine), where=theirs > 0),
            ATTENTION_LAUNCH_US,
        )
        least = np.ceil(
            self._peak_rates.kv_us(read * op.kv_bytes_per_context_token) * PS_PER_US
        ).astype(np.int64)
        marks = np.where(scaled < least, Provenance.ANALYTIC, Provenance.SCALED).astype(np.uint8)
        return np.maximum(scaled, least), marks


def _scaled(ps: Int64, ratio: Floats, launch_us: float) -> Int64:
    """All but a kernel's fixed part times the ratio; it keeps what part of the fixed
    time it has.
    """
    fixed = np.minimum(ps, launch_us * PS_PER_US)
    return np.floor(fixed + (ps - fixed) * ratio + 0.5).astype(np.int64)
