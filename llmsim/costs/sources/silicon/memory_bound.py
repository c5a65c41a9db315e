"""Kernels that only move data (norms, rotation, activation, sampling): how long so many bytes take
on a card.

They work on what the kernel before them has just written, so a tensor that fits the last-level
cache is read from there: the curve of time over bytes has three parts, a fixed one, the cache's
rate, and the memory's rate beyond the cache. The silicon database holds that curve for each card,
as vLLM's kernel that scales a tensor to fp8 (it reads two bytes and writes one per element, and
computes next to nothing). Where it is absent, the data sheet makes the curve.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.sources.silicon.database import (
    Database,
    TableFile,
    TablePath,
    read_columns,
    table_file,
)
from llmsim.model import Elementwise, Sampler

if TYPE_CHECKING:
    from llmsim.model import Operator

Floats = NDArray[np.float64]

MEASURED_BY = "vllm"
BYTES_PER_ELEMENT = 3
"""The measured kernel reads bf16 and writes fp8."""
BINS_PER_OCTAVE = 2
FIXED_US = 2.0
"""Shortest calls of the same kernel: 1.5 (L40S) to 2.2 us (GB200)."""
REDUCTION_US = 0.5
"""What a reduction along each row adds to the shortest calls: vLLM's dynamic less its static
scaling, 0.4 to 0.6 us.
"""
CACHE_BYTES_PER_S = 5e12
"""Rate within the last-level cache: 5.2 (H100) to 7.8 TB/s (RTX PRO 6000) in those tables."""
MEMORY_EFFICIENCY = 0.8
"""Share of the data sheet's bandwidth beyond the cache: 0.77 (L40S) to 0.92 (H100) in those tables.
"""
CACHE_SHARE = 0.5
"""Of the cache, what a tensor can fill before it spills: the tables bend between 0.4 (H100) and 0.8
(L40S) of it.
"""


class Streaming(Struct, frozen=True, eq=False):
    """Microseconds over bytes moved; `measured` where the card's own table gives them."""

    num_bytes: Floats
    us: Floats
    measured: bool
    label: str

    def curve_us(self, op: Operator, counts: Floats) -> Floats:
        """Of one execution at each count: the bytes that it moves, and its reduction."""
        moved = counts * (op.read_bytes_per_token + op.write_bytes_per_token)
        return self.moving_us(moved) + REDUCTION_US * _reduces(op)

    def moving_us(self, moved: Floats) -> Floats:
        """Of one kernel that reads and writes so many bytes in all, and computes next
        to nothing.
        """
        times = np.exp(
            np.interp(np.log(np.maximum(moved, 1.0)), np.log(self.num_bytes), np.log(self.us))
        )
        beyond = moved > self.num_bytes[-1]
        return np.asarray(np.where(beyond, self.us[-1] * moved / self.num_bytes[-1], times))

    @property
    def provenance(self) -> Provenance:
        """Another kernel's time at equal bytes is scaled; a data sheet's is analytic."""
        return Provenance.SCALED if self.measured else Provenance.ANALYTIC


def _reduces(op: Operator) -> bool:
    """Whether the kernel reduces along each row: a norm, or the sampler's maximum."""
    return isinstance(op, Sampler) or (isinstance(op, Elementwise) and op.reduces)


def streaming(database: Database, peak_rates: PeakRates, *, of_card: bool = True) -> Streaming:
    """The card's curve: from its table of fp8 scaling, else from the data sheet.

    The curve is the card's and not the engine's, so vLLM's kernel comes first: SGLang's takes 8 us
    for a few bytes, and TensorRT-LLM's other times, because they compute scales. Without `of_card`
    the engine's own comes first.
    """
    engine = replace(database.engine, framework=MEASURED_BY) if of_card else database.engine
    for table in replace(database, engine=engine).tables("scale_matrix"):
        found = measured_curve(table)
        if found is not None:
            return found
    return from_peak_rates(peak_rates)


def measured_curve(table: TablePath) -> Streaming | None:
    """A table's times over the bytes that vLLM's kernel moves; None if it has too few rows."""
    points = _curve_points(table_file(table.path))
    if points is None:
        return None
    return Streaming(*points, True, f"{table.label}, at equal bytes")


@lru_cache(maxsize=16)
def _curve_points(file: TableFile) -> tuple[Floats, Floats] | None:
    """Bytes moved, and what they take."""
    rows = read_columns(file.path, ["m", "k", "latency"])
    moved = rows["m"].astype(np.float64) * rows["k"].astype(np.float64) * BYTES_PER_ELEMENT
    bins = np.rint(np.log2(moved) * BINS_PER_OCTAVE).astype(np.int64)
    us = rows["latency"].astype(np.float64) * 1e3
    points = np.unique(bins)
    if len(points) < 2:
        return None
    middle = np.array([np.exp(np.median(np.log(moved[bins == point]))) for point in points])
    times = np.array([np.median(us[bins == point]) for point in points])
    return middle, np.maximum.accumulate(times)


def from_peak_rates(peak_rates: PeakRates) -> Streaming:
    """Fixed part, then the cache's rate, then the memory's."""
    points = 2.0 ** np.arange(8, 36, 1 / BINS_PER_OCTAVE)
    cached = np.minimum(points, CACHE_SHARE * peak_rates.last_level_cache_bytes)
    rate = MEMORY_EFFICIENCY * peak_rates.memory_bandwidth_bytes_per_s
    slow = np.maximum(points - cached, 0.0) / rate
    us = FIXED_US + (cached / max(CACHE_BYTES_PER_S, rate) + slow) * 1e6
    return Streaming(points, us, False, "streaming kernels by the data sheet")
