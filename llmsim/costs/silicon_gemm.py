"""GEMM times from the silicon database: exact shapes where measured, interpolated in efficiency elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Provenance, UInt8
from llmsim.costs.database import TablePath, read_columns
from llmsim.costs.light import Light

Floats = NDArray[np.float64]

SMALL_BATCH_ROWS = 16
"""Up to here a GEMM only streams its weights; the rows that tell the streaming rate."""
COLD_FACTOR = 2
"""A matrix this many times the last-level cache is certainly read from memory."""
ACTIVATION_BYTES = 2


@dataclass(frozen=True, eq=False)
class GemmTable:
    """Measured microseconds [m, n, k] of one dtype; NaN where a shape was not run."""

    label: str
    m_axis: Floats
    n_axis: Floats
    k_axis: Floats
    us: Floats
    weight_bytes_per_element: float
    peak_flops_per_s: int
    light: Light

    def curve_us(self, n: int, k: int, counts: Floats) -> tuple[Floats, UInt8, str]:
        """Microseconds of (m x k) by (k x n) for every m in `counts`, provenance, and the method in words.

        Between measured m: linear. A shape that was not run: t = roofline(m, n, k) / u, u = roofline / measured time,
        log u bilinear in (log n, log k) between the four neighbours, that of the edge beyond the table. In a model
        weights are always cold; where a card's rows were measured warm (see `measured_warm`), matrices that the cache
        may have held are raised to streaming at the rate of those that it cannot hold.
        """
        column, exact = self._column(n, k)
        times = np.interp(counts, self.m_axis, column)
        if counts[-1] > self.m_axis[-1]:
            slope = max(0.0, (column[-1] - column[-2]) / (self.m_axis[-1] - self.m_axis[-2]))
            times = times + slope * np.maximum(counts - self.m_axis[-1], 0.0)
        marks = np.where(np.isin(counts, self.m_axis) & exact, Provenance.MEASURED, Provenance.INTERPOLATED)
        beyond = n > self.n_axis[-1] or k > self.k_axis[-1]
        marks = np.where((counts > self.m_axis[-1]) | beyond, Provenance.EXTRAPOLATED, marks)
        weight_bytes = n * k * self.weight_bytes_per_element
        may_be_warm = self.measured_warm() and weight_bytes < COLD_FACTOR * self.light.last_level_cache_bytes
        cold_us = weight_bytes / self.stream_bytes_per_s() * 1e6 if may_be_warm else 0.0
        warm = times < cold_us
        marks = np.where(warm, Provenance.SCALED, marks).astype(np.uint8)
        method = "" if exact else f", n={n} k={k} {'extrapolated' if beyond else 'interpolated'} in efficiency"
        if bool(warm[1:].any()):
            method += ", weights at the streaming rate"
        return np.maximum(times, cold_us), marks, self.label + method

    def measured_warm(self) -> bool:
        """Some row beats the data sheet's bandwidth: its weights came from the cache (L40S, RTX PRO 6000; not H100)."""
        weight_bytes = self.n_axis[:, None] * self.k_axis[None, :] * self.weight_bytes_per_element
        light_us = weight_bytes / self.light.memory_bandwidth_bytes_per_s * 1e6
        return bool((self.us < light_us[None]).any())

    def stream_bytes_per_s(self) -> float:
        """Median rate at which small batches stream matrices that no cache holds; at most the data sheet's."""
        small = self.m_axis <= SMALL_BATCH_ROWS
        weight_bytes = self.n_axis[:, None] * self.k_axis[None, :] * self.weight_bytes_per_element
        cold = weight_bytes >= max(COLD_FACTOR * self.light.last_level_cache_bytes, 64 << 20)
        rates = (weight_bytes[None] / self.us[small] * 1e6)[:, cold]
        rates = rates[~np.isnan(rates)]
        limit = float(self.light.memory_bandwidth_bytes_per_s)
        return min(float(np.median(rates)), limit) if len(rates) else limit

    def _column(self, n: int, k: int) -> tuple[Floats, bool]:
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
        n, k = max(n, int(self.n_axis[0])), max(k, int(self.k_axis[0]))  # below the table a GEMM is all launch
        low_n, high_n, share_n = _neighbours(self.n_axis, n)
        low_k, high_k, share_k = _neighbours(self.k_axis, k)
        corners = [(low_n, low_k), (low_n, high_k), (high_n, low_k), (high_n, high_k)]
        weights = [(1 - share_n) * (1 - share_k), (1 - share_n) * share_k, share_n * (1 - share_k), share_n * share_k]
        total = np.zeros_like(self.m_axis)
        mass = np.zeros_like(self.m_axis)
        for (i, j), weight in zip(corners, weights, strict=True):
            use = np.log(self._roofline_us(self.n_axis[i], self.k_axis[j]) / self.us[:, i, j])
            have = ~np.isnan(use) & (weight > 0)
            total += np.where(have, weight * np.nan_to_num(use), 0.0)
            mass += np.where(have, weight, 0.0)
        if not bool((mass > 0).any()):
            return self._roofline_us(float(n), float(k)) / self._nearest_efficiency(n, k), False
        efficiency = np.exp(np.where(mass > 0, total / np.maximum(mass, 1e-12), np.nan))
        known = ~np.isnan(efficiency)
        efficiency = np.interp(self.m_axis, self.m_axis[known], efficiency[known])
        return self._roofline_us(float(n), float(k)) / efficiency, False

    def _nearest_efficiency(self, n: int, k: int) -> Floats:
        """Efficiency of the nearest shape that was run at all, over m; for holes at the table's edge."""
        run = np.argwhere(~np.isnan(self.us).all(axis=0))
        away = np.abs(np.log(self.n_axis[run[:, 0]] / n)) + np.abs(np.log(self.k_axis[run[:, 1]] / k))
        i, j = run[int(np.argmin(away))]
        have = ~np.isnan(self.us[:, i, j])
        efficiency = (self._roofline_us(self.n_axis[i], self.k_axis[j]) / self.us[:, i, j])[have]
        return np.asarray(np.interp(self.m_axis, self.m_axis[have], efficiency))

    def _roofline_us(self, n: float, k: float) -> Floats:
        moved = n * k * self.weight_bytes_per_element + self.m_axis * (n + k) * ACTIVATION_BYTES
        memory = moved / self.light.memory_bandwidth_bytes_per_s
        compute = 2.0 * self.m_axis * n * k / self.peak_flops_per_s if self.peak_flops_per_s else 0.0
        return np.asarray(np.maximum(memory, compute) * 1e6)


def _neighbours(axis: Floats, value: float) -> tuple[int, int, float]:
    """Indices around a value and its share of the way in log space; the edge itself when it lies outside."""
    right = int(np.searchsorted(axis, value))
    if right == 0:
        return 0, 0, 0.0
    if right == len(axis):
        return right - 1, right - 1, 0.0
    low, high = axis[right - 1], axis[right]
    return right - 1, right, float(np.log(value / low) / np.log(high / low))


def load_gemm(
    tables: list[TablePath], dtypes: tuple[str, ...], weight_bytes: float, peak: int, light: Light
) -> GemmTable | None:
    """The first table that has one of `dtypes` (tried in order), or None; the fastest kernel where several were run."""
    for table in tables:
        rows = read_columns(table.path, ["gemm_dtype", "m", "n", "k", "latency"])
        for dtype in dtypes:
            keep = rows["gemm_dtype"] == dtype
            if not bool(keep.any()):
                continue
            axes = [np.unique(rows[name][keep]).astype(np.float64) for name in ("m", "n", "k")]
            cells = tuple(
                np.searchsorted(axis, rows[name][keep]) for axis, name in zip(axes, ("m", "n", "k"), strict=True)
            )
            us = np.full([len(axis) for axis in axes], np.inf)
            np.minimum.at(us, cells, rows["latency"][keep].astype(np.float64) * 1e3)
            us[np.isinf(us)] = np.nan
            return GemmTable(f"{table.label} {dtype}", axes[0], axes[1], axes[2], us, weight_bytes, peak, light)
    return None
