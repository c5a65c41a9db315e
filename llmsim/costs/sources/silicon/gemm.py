"""GEMM times from the silicon database: exact shapes where measured, interpolated in efficiency
elsewhere.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Provenance, UInt8
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.sources.silicon.database import TableFile, TablePath, read_columns, table_file

Floats = NDArray[np.float64]

SMALL_BATCH_ROWS = 16
"""Up to here a GEMM only streams its weights; the rows that tell the streaming rate."""
COLD_FACTOR = 2
"""A matrix this many times the last-level cache is certainly read from memory."""
NO_BYTES = 1 << 14
"""Weights that take no time: 0.01 us at 1.6 TB/s."""
ACTIVATION_BYTES = 2
HOST_BOUND_US = 40.0
"""No device needs as long for a matrix of next to nothing. The least times in the tables are 1.5 to
18 us, but 55 (Hopper) to 282 us (L40S) in vLLM's of fp8 in blocks, whatever the shape: the host's
launching of its kernels.
"""


class GemmTable(Struct, frozen=True, eq=False, dict=True):
    """Measured microseconds [m, n, k] of one dtype; NaN where a shape was not run."""

    label: str
    m_axis: Floats
    n_axis: Floats
    k_axis: Floats
    us: Floats
    weight_bytes_per_element: float
    peak_flops_per_s: int
    peak_rates: PeakRates
    rows: tuple[TablePath, str] | None = None
    """The file of the rows, and their type in it."""

    def curve_us(self, n: int, k: int, counts: Floats) -> tuple[Floats, UInt8, str]:
        """Microseconds of (m x k) by (k x n) for every m in `counts`, provenance, and the method in
        words.

        Between measured m: linear. A shape that was not run: t = roofline(m, n, k) / u, u =
        roofline / measured time, log u between the measured neighbours, in log n at the k around it
        and in log k at the n around it, the mean of both; that of the edge beyond the table. In a
        model weights are always cold; where a card's rows were measured warm (see `measured_warm`),
        matrices that the cache may have held are raised to streaming at the rate of those that it
        cannot hold.
        """
        column, exact = self.column(n, k)
        times = np.interp(counts, self.m_axis, column)
        if counts[-1] > self.m_axis[-1]:
            slope = max(0.0, (column[-1] - column[-2]) / (self.m_axis[-1] - self.m_axis[-2]))
            times = times + slope * np.maximum(counts - self.m_axis[-1], 0.0)
        marks = np.where(
            np.isin(counts, self.m_axis) & exact, Provenance.MEASURED, Provenance.INTERPOLATED
        )
        beyond = n > self.n_axis[-1] or k > self.k_axis[-1]
        marks = np.where((counts > self.m_axis[-1]) | beyond, Provenance.EXTRAPOLATED, marks)
        cold_us = self.cold_us(n, k)
        warm = times < cold_us
        marks = np.where(warm, Provenance.SCALED, marks).astype(np.uint8)
        method = (
            ""
            if exact
            else f", n={n} k={k} {'extrapolated' if beyond else 'interpolated'} in efficiency"
        )
        if bool(warm[1:].any()):
            method += ", weights at the streaming rate"
        return np.maximum(times, cold_us), marks, self.label + method

    def cold_us(self, n: float, k: float) -> float:
        """What streaming the weights takes, where the cache may have held them while they were
        measured; else 0.

        The fixed part of a kernel (launch, first loads, last stores) comes beside its bytes.
        """
        weight_bytes = n * k * self.weight_bytes_per_element
        may_be_warm = (
            self.measured_warm()
            and weight_bytes < COLD_FACTOR * self.peak_rates.last_level_cache_bytes
        )
        return (
            self.fixed_us + weight_bytes / self.stream_bytes_per_s() * 1e6 if may_be_warm else 0.0
        )

    @cached_property
    def fixed_us(self) -> float:
        """Median time, at small batches, of the shapes with next to no weights; 0 where none was
        run.
        """
        weight_bytes = self.n_axis[:, None] * self.k_axis[None, :] * self.weight_bytes_per_element
        us = self.us[self.m_axis <= SMALL_BATCH_ROWS][:, weight_bytes <= NO_BYTES]
        us = us[~np.isnan(us)]
        return min(float(np.median(us)), HOST_BOUND_US) if len(us) else 0.0

    def measured_warm(self) -> bool:
        """Some row beats the data sheet's bandwidth: its weights came from the cache (L40S, RTX PRO
        6000; not H100).
        """
        weight_bytes = self.n_axis[:, None] * self.k_axis[None, :] * self.weight_bytes_per_element
        lower_bound_us = weight_bytes / self.peak_rates.memory_bandwidth_bytes_per_s * 1e6
        return bool((self.us < lower_bound_us[None]).any())

    def stream_bytes_per_s(self) -> float:
        """Median rate, beyond the fixed part, at which small batches stream matrices that no cache
        holds; at most the data sheet's.
        """
        small = self.m_axis <= SMALL_BATCH_ROWS
        weight_bytes = self.n_axis[:, None] * self.k_axis[None, :] * self.weight_bytes_per_element
        cold = weight_bytes >= max(COLD_FACTOR * self.peak_rates.last_level_cache_bytes, 64 << 20)
        rates = (weight_bytes[None] / np.maximum(self.us[small] - self.fixed_us, 1e-3) * 1e6)[
            :, cold
        ]
        rates = rates[~np.isnan(rates)]
        limit = float(self.peak_rates.memory_bandwidth_bytes_per_s)
        return min(float(np.median(rates)), limit) if len(rates) else limit

    def column(self, n: int, k: int) -> tuple[Floats, bool]:
        """Microseconds over the m axis of one (n, k), and whether that shape was measured."""
        at_n, at_k = np.searchsorted(self.n_axis, n), np.searchsorted(self.k_axis, k)
        inside = at_n < len(self.n_axis) and at_k < len(self.k_axis)
        if inside and self.n_axis[at_n] == n and self.k_axis[at_k] == k:
            column = self.us[:, at_n, at_k]
            if not bool(np.isnan(column).any()):
                return column, True
            if int((~np.isnan(column)).sum()) > len(column) // 2:
                have = ~np.isnan(column)
                return np.interp(self.m_axis, self.m_axis[have], column[have]), False
        n, k = (
            max(n, int(self.n_axis[0])),
            max(k, int(self.k_axis[0])),
        )  # below the table a GEMM is all launch
        found = [use for use in (self._along_n(n, k), self._along_k(n, k)) if use is not None]
        if not found:
            return self._roofline_us(float(n), float(k)) / self._nearest_efficiency(n, k), False
        return self._roofline_us(float(n), float(k)) / np.exp(np.mean(found, axis=0)), False

    def _along_n(self, n: int, k: int) -> Floats | None:
        """Log efficiency over m: along n at the measured k on either side, then
        between those two.
        """
        low, high, share = _neighbours(self.k_axis, k)
        if self.k_axis[high] == k:
            low, share = high, 0.0
        sides = [_between(self.n_axis, self._log_use[:, :, at], n) for at in (low, high)]
        return _blend(sides[0], sides[1], share)

    def _along_k(self, n: int, k: int) -> Floats | None:
        low, high, share = _neighbours(self.n_axis, n)
        if self.n_axis[high] == n:
            low, share = high, 0.0
        sides = [_between(self.k_axis, self._log_use[:, at, :], k) for at in (low, high)]
        return _blend(sides[0], sides[1], share)

    @cached_property
    def _log_use(self) -> Floats:
        """log(roofline / measured) [m, n, k]; NaN where a shape was not run."""
        n, k = np.meshgrid(self.n_axis, self.k_axis, indexing="ij")
        moved = (
            n * k * self.weight_bytes_per_element
            + self.m_axis[:, None, None] * (n + k) * ACTIVATION_BYTES
        )
        memory = moved / self.peak_rates.memory_bandwidth_bytes_per_s
        peak = self.peak_flops_per_s
        compute = 2.0 * self.m_axis[:, None, None] * n * k / peak if peak else np.zeros_like(memory)
        return np.asarray(np.log(np.maximum(memory, compute) * 1e6 / self.us))

    def _nearest_efficiency(self, n: int, k: int) -> Floats:
        """Efficiency of the nearest shape that was run at all, over m; for holes at the table's
        edge.
        """
        run = np.argwhere(~np.isnan(self.us).all(axis=0))
        away = np.abs(np.log(self.n_axis[run[:, 0]] / n)) + np.abs(
            np.log(self.k_axis[run[:, 1]] / k)
        )
        i, j = run[int(np.argmin(away))]
        have = ~np.isnan(self.us[:, i, j])
        efficiency = (self._roofline_us(self.n_axis[i], self.k_axis[j]) / self.us[:, i, j])[have]
        return np.asarray(np.interp(self.m_axis, self.m_axis[have], efficiency))

    def _roofline_us(self, n: float, k: float) -> Floats:
        moved = n * k * self.weight_bytes_per_element + self.m_axis * (n + k) * ACTIVATION_BYTES
        memory = moved / self.peak_rates.memory_bandwidth_bytes_per_s
        compute = (
            2.0 * self.m_axis * n * k / self.peak_flops_per_s if self.peak_flops_per_s else 0.0
        )
        return np.asarray(np.maximum(memory, compute) * 1e6)


def _between(axis: Floats, log_use: Floats, value: float) -> Floats | None:
    """Log efficiency [m] at a value of one axis, from the measured shapes around it; None where
    none was run.

    Gaps over m are filled from the neighbouring m.
    """
    run = np.flatnonzero(~np.isnan(log_use).all(axis=0))
    if not len(run):
        return None
    low, high, share = _neighbours(axis[run], value)
    columns = [_filled(log_use[:, run[at]]) for at in (low, high)]
    return _blend(columns[0], columns[1], share)


def _filled(column: Floats) -> Floats:
    have = np.flatnonzero(~np.isnan(column))
    return np.interp(np.arange(len(column)), have, column[have])


def _blend(low: Floats | None, high: Floats | None, share: float) -> Floats | None:
    if low is None or high is None:
        return high if low is None else low
    return np.asarray((1 - share) * low + share * high)


def _neighbours(axis: Floats, value: float) -> tuple[int, int, float]:
    """Indices around a value and its share of the way in log space; the edge itself when it lies
    outside.
    """
    right = int(np.searchsorted(axis, value))
    if right == 0:
        return 0, 0, 0.0
    if right == len(axis):
        return right - 1, right - 1, 0.0
    low, high = axis[right - 1], axis[right]
    return right - 1, right, float(np.log(value / low) / np.log(high / low))


def load_gemm(
    tables: list[TablePath],
    dtypes: tuple[str, ...],
    weight_bytes: float,
    peak: int,
    peak_rates: PeakRates,
) -> GemmTable | None:
    """The first table of the first of `dtypes` that any has, or None; the fastest kernel where
    several were run.

    A table that was timed at the speed of the host (HOST_BOUND_US) comes behind those of other
    frameworks: what the host takes is in a step's own time where it is not hidden
    (docs/explanation/cuda_graphs.md), and in none that replays a graph.
    """
    bound: GemmTable | None = None
    for dtype in dtypes:
        for table in tables:
            found = _load(table, dtype, weight_bytes, peak, peak_rates)
            if found is not None and float(np.nanmin(found.us)) < HOST_BOUND_US:
                return found
            bound = bound or found
    return (
        None if bound is None else replace(bound, label=f"{bound.label}, launched kernel by kernel")
    )


def _load(
    table: TablePath, dtype: str, weight_bytes: float, peak: int, peak_rates: PeakRates
) -> GemmTable | None:
    grid = _grid(table_file(table.path), dtype)
    if grid is None:
        return None
    axes, us = grid
    return GemmTable(
        f"{table.label} {dtype}",
        axes[0],
        axes[1],
        axes[2],
        us,
        weight_bytes,
        peak,
        peak_rates,
        (table, dtype),
    )


@lru_cache(maxsize=32)
def _grid(file: TableFile, dtype: str) -> tuple[list[Floats], Floats] | None:
    """The sizes m, n and k that a table has of a dtype, and the times of all of them, not a number
    where it has none; None where it has nothing of the dtype.
    """
    rows = read_columns(file.path, ["gemm_dtype", "m", "n", "k", "latency"])
    keep = rows["gemm_dtype"] == dtype
    if not bool(keep.any()):
        return None
    axes = [np.unique(rows[name][keep]).astype(np.float64) for name in ("m", "n", "k")]
    cells = tuple(
        np.searchsorted(axis, rows[name][keep])
        for axis, name in zip(axes, ("m", "n", "k"), strict=True)
    )
    us = np.full([len(axis) for axis in axes], np.inf)
    np.minimum.at(us, cells, rows["latency"][keep].astype(np.float64) * 1e3)
    us[np.isinf(us)] = np.nan
    for values in (*axes, us):
        values.flags.writeable = False
    return axes, us
