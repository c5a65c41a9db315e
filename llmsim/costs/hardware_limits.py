"""The speed of light of an operator: what it must read and compute, over what the data sheet says
is possible.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import ENCODER_FEATURES
from llmsim.costs.source import CostRequest, Floor
from llmsim.model import Attention, Embedding, Gemm, Moe, Operator, short_dtype

Floats = NDArray[np.float64]

UNKNOWN_FLOPS = 0
"""Peak flop/s where nothing says it: only the memory bound applies."""


class PeakRates(Struct, frozen=True):
    """Data-sheet limits of one device; bandwidth in bytes/s, peaks in flop/s by short dtype."""

    memory_bandwidth_bytes_per_s: int
    last_level_cache_bytes: int
    peak_flops_per_s: dict[str, int]
    weights_stream: bool = True
    """The weights of a step exceed the last-level cache, so none of them is still there one step
    later.
    """
    matrix_flops_per_s: dict[str, int] = {}
    """Most that matrices were measured to reach, by short dtype."""

    def peak(self, dtype: str) -> int:
        """Dense peak of a dtype; without units for it (fp8 on Ampere) the device computes in 16
        bit.
        """
        return self.peak_flops_per_s.get(self._units(dtype), UNKNOWN_FLOPS)

    def reached(self, dtype: str) -> int:
        """Most that matrices of a dtype were measured to reach on the units that compute it."""
        return self.matrix_flops_per_s.get(self._units(dtype), UNKNOWN_FLOPS)

    def _units(self, dtype: str) -> str:
        """The type of the units that compute a dtype; "" where no peak is known."""
        name = short_dtype(dtype) if dtype else "bf16"
        alike = {"bf16": "fp16", "fp16": "bf16"}
        candidates = (name, alike.get(name, "bf16"), "bf16", "fp16")
        return next((one for one in candidates if self.peak_flops_per_s.get(one)), "")

    def operator_us(self, op: Operator, counts: Floats, activation: str) -> Floats:
        """Least time of one execution at each count, us: streamed weights over bandwidth, flops
        over peak.

        Experts count only as far as the tokens must touch them, and activations not at all (they
        may stay in cache).
        """
        weights = np.where(counts > 0, float(least_weight_bytes(op)) * self.weights_stream, 0.0)
        memory = weights / self.memory_bandwidth_bytes_per_s * 1e6
        peak = self.peak(op.weight_dtype or activation)
        if not isinstance(op, Gemm | Moe) or not peak:
            return memory
        return np.maximum(memory, counts * op.flops_per_token / peak * 1e6)

    def kv_us(self, kv_bytes: Floats) -> Floats:
        """Least time to read KV, us; what fits the last-level cache may have stayed there (one
        layer at a time).
        """
        beyond = np.where(kv_bytes > self.last_level_cache_bytes, kv_bytes, 0.0)
        return beyond / self.memory_bandwidth_bytes_per_s * 1e6


def least_weight_bytes(op: Operator) -> int:
    """Weight bytes that any execution must stream: all of a GEMM, top-k experts held whole, no
    table look-up.
    """
    match op:
        case Embedding():
            return 0
        case Moe(experts_local=local) if local:
            needed = op.topk + op.always if local == op.experts_total else op.always
            return op.weight_bytes * needed // op.held
        case _:
            return op.weight_bytes


def peak_rates_of(request: CostRequest) -> PeakRates | None:
    """Limits from the data sheet, else from the cluster file's bandwidth; None when neither is
    known.
    """
    sheet = request.hardware
    if sheet is not None:
        weights = sum(op.repeat * least_weight_bytes(op) for op in request.operators)
        cache = sheet.last_level_cache_bytes
        return PeakRates(
            sheet.memory_bandwidth_bytes_per_s,
            cache,
            dict(sheet.flops),
            weights > cache,
            dict(sheet.matrix_flops),
        )
    if request.group_memory_bandwidth_bytes_per_s > 0:
        return PeakRates(request.group_memory_bandwidth_bytes_per_s, 0, {})
    return None


def own_peak_rates_of(request: CostRequest) -> PeakRates | None:
    """Peak rates for a roofline of the user's own device: the cluster file's bandwidth replaces the
    data sheet's.
    """
    peak_rates, given = peak_rates_of(request), request.group_memory_bandwidth_bytes_per_s
    if peak_rates is None or given <= 0:
        return peak_rates
    return replace(peak_rates, memory_bandwidth_bytes_per_s=given)


def bandwidth_differs(request: CostRequest) -> bool:
    """Whether the cluster file gives a bandwidth that is not the data sheet's (5 % apart: sheets
    are rounded).
    """
    peak_rates, given = peak_rates_of(request), request.group_memory_bandwidth_bytes_per_s
    return (
        peak_rates is not None
        and given > 0
        and abs(given - peak_rates.memory_bandwidth_bytes_per_s) * 20 > given
    )


def floor_of(request: CostRequest, peak_rates: PeakRates | None, *, enforce: bool) -> Floor:
    """The run-time check's numbers of a deployment; bandwidth 0 where nothing is known (then
    nothing is checked).
    """
    weight_bytes, kv_bytes_per_token, flops_per_token = 0, 0, 0
    for op in request.operators:
        in_every_step = op.part == "head" or op.feature not in ENCODER_FEATURES  # few have images
        if in_every_step:
            weight_bytes += op.repeat * least_weight_bytes(op)
        if in_every_step and op.part != "head" and isinstance(op, Gemm | Moe):
            flops_per_token += op.repeat * op.flops_per_token
        if isinstance(op, Attention) and not op.window:
            kv_bytes_per_token += op.repeat * op.kv_bytes_per_context_token
    if peak_rates is None:
        return Floor(
            weight_bytes_read=0,
            kv_bytes_per_token=kv_bytes_per_token,
            memory_bandwidth_bytes_per_s=0,
            flops_per_token=flops_per_token,
            peak_flops_per_s=0,
            last_level_cache_bytes=0,
            enforce=False,
        )
    return Floor(
        weight_bytes_read=weight_bytes if peak_rates.weights_stream else 0,
        kv_bytes_per_token=kv_bytes_per_token,
        memory_bandwidth_bytes_per_s=peak_rates.memory_bandwidth_bytes_per_s,
        flops_per_token=flops_per_token,
        peak_flops_per_s=peak_rates.peak(request.dtypes.weight),
        last_level_cache_bytes=peak_rates.last_level_cache_bytes,
        enforce=enforce,
    )
