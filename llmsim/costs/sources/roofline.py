"""Cost source: the data sheet. What an operator moves and computes, over what such devices reach in
practice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Int64, Provenance
from llmsim.costs.context_expansion import with_expansion
from llmsim.costs.hardware_limits import PeakRates, bandwidth_differs, own_peak_rates_of
from llmsim.costs.interpolation_grid import geometric_axis
from llmsim.costs.source import (
    PPM,
    CostRequest,
    CostSource,
    Curve,
    LatentGrid,
    SplitAttention,
    SplitGrid,
    to_ps,
)
from llmsim.costs.sources.decode_skew import mixed_decode_q20, skew_q20
from llmsim.model import Collective, Embedding, LoraKernel, Moe

if TYPE_CHECKING:
    from llmsim.model import Attention, Operator

Floats = NDArray[np.float64]

MEMORY_EFFICIENCY = 0.8
"""Share of the data sheet's bandwidth that streaming kernels reach: aiconfigurator-core's
systems/*.yaml uses 0.8 for every GPU; in its vLLM tables (A100 to GB200) the median over
weight-streaming GEMMs beyond 200 MB is 0.75 to 0.87, over decode attention beyond 400 MB of KV 0.74
to 0.86.
"""
GEMM_EFFICIENCY = 0.75
"""Share of the dense peak that large GEMMs reach: medians of the same tables run from 0.61 (L40S)
to 0.88 (A100).
"""
ATTENTION_EFFICIENCY = 0.5
"""Share of the dense peak that causal prefill attention reaches at 4k to 16k tokens: 0.34 to 0.67
in those tables.
"""
LAUNCH_US = 3.0
"""Fixed part of every kernel, launch included: `mem_empirical_constant_latency` of the same files.
"""
ATTENTION_LAUNCH_US = 9.0
"""Fixed part of an attention call: the shortest ones of the same tables take 8.2 us (L40S) to 12.5
us (A100).
"""


def gemm_flops_per_s(peak: float, reached: float) -> float:
    """Rate of large matrices: a share of the peak, or the most that was measured if that is less.

    AMD's cards reach 0.5 to 0.7 of their peaks, because the clock falls under load.
    """
    share = GEMM_EFFICIENCY * peak
    return min(share, reached) if reached else share


def attention_flops_per_s(peak: float, reached: float) -> float:
    """Rate of causal prefill attention, which falls with that of matrices."""
    return gemm_flops_per_s(peak, reached) * ATTENTION_EFFICIENCY / GEMM_EFFICIENCY


class RooflineSource(CostSource):
    """Times from bytes and flops; for any device of which at least the memory
    bandwidth is known.
    """

    name = "roofline"
    kind = "roofline"
    enforce_floor = True

    def __init__(self, request: CostRequest) -> None:
        peak_rates = own_peak_rates_of(request)
        if peak_rates is None:
            raise AssertionError("the caller checks that a bandwidth is known")
        self._request = request
        self._peak_rates: PeakRates = peak_rates
        self._label = (
            f"data sheet of {request.hardware.name if request.hardware else request.hardware_name}"
        )
        if bandwidth_differs(request):
            self._label += ", npu_mem.mem_bw of the cluster file"
        self._notes: list[str] = []

    def operator(self, op: Operator, last: int) -> Curve:
        """max(bytes / (0.8 bandwidth), flops / `gemm_flops_per_s`) + 3 us; experts: those that
        tokens should touch.
        """
        counts = np.arange(last + 1, dtype=np.float64)
        us = self.operator_us(op, counts)
        us[0] = 0.0
        return Curve(to_ps(us), np.full(last + 1, Provenance.ANALYTIC, dtype=np.uint8), self._label)

    def operator_us(self, op: Operator, counts: Floats) -> Floats:
        """Microseconds of one execution at each count."""
        if isinstance(op, Collective):
            raise AssertionError("collectives are priced by tables or links")
        moved = counts * (op.read_bytes_per_token + op.write_bytes_per_token) + self._weight_bytes(
            op, counts
        )
        memory = moved / (MEMORY_EFFICIENCY * self._peak_rates.memory_bandwidth_bytes_per_s)
        dtype = op.weight_dtype or self._request.dtypes.activation
        peak = self._peak_rates.peak(dtype)
        rate = gemm_flops_per_s(peak, self._peak_rates.reached(dtype))
        compute = counts * op.flops_per_token / rate if peak else np.zeros_like(counts)
        if not peak:
            self._note(
                f'peak flop/s of "{self._request.hardware_name}" are not known: only memory '
                "bandwidth limits it"
            )
        kernels = op.kernels if isinstance(op, LoraKernel) else 1
        return np.asarray(np.maximum(memory, compute) * 1e6 + kernels * LAUNCH_US)

    def attention(self, op: Attention) -> SplitAttention:
        """max(KV bytes / (0.8 bandwidth), causal flops / `attention_flops_per_s`) + 9 us, for
        prefills and for decode batches.
        """
        prefill_q = geometric_axis(1, self._request.table_tokens, 8)
        prefill_k = np.insert(geometric_axis(1, self._request.max_model_len, 4), 0, 0)
        prefill = self._prompts_us(op, prefill_q, prefill_k)
        n_axis = geometric_axis(1, self._request.table_sequences, 2)
        kv_axis = geometric_axis(1, self._request.max_model_len, 2)
        n, kv = np.meshgrid(n_axis.astype(float), kv_axis.astype(float), indexing="ij")
        near = near_of(op, np.ones_like(kv), kv)
        decode = self.attention_us(
            op,
            n * (kv + 1),
            n * (kv + 1),
            op.decode_flops_per_context_token,
            near=(n * near[0], n * near[1]),
        )
        kappa, how = skew_q20(self._request, op)
        grid = SplitGrid(
            prefill_q,
            prefill_k,
            to_ps(prefill),
            analytic(prefill),
            n_axis,
            kv_axis,
            to_ps(decode),
            analytic(decode),
            mixed_decode_q20(self._request, op),
            self._shared_ppm(prefill),
        )
        expanding, _ = with_expansion(grid, op, self._request, self.operator)
        latents = self.on_latents(op, prefill_q, prefill_k)
        return SplitAttention(
            repeat=op.repeat,
            grid=replace(expanding, on_latents=latents),
            skew_ps_per_token_q20=kappa,
            source=self._label,
            skew_source=how,
        )

    def on_latents(self, op: Attention, q_axis: Int64, k_axis: Int64) -> LatentGrid | None:
        """Prompts that the engine runs on the cached latents; None where it runs none so."""
        rule = self._request.latent_prompts
        if op.expansion is None or not rule.ever:
            return None
        us = self._prompts_us(op.on_latents, q_axis, k_axis)
        return LatentGrid(rule, to_ps(us), analytic(us), self._shared_ppm(us))

    def _prompts_us(self, op: Attention, q_axis: Int64, k_axis: Int64) -> Floats:
        q, k = np.meshgrid(q_axis.astype(float), k_axis.astype(float), indexing="ij")
        return self.attention_us(op, q + k, q * k + q * (q + 1) / 2, near=near_of(op, q, k))

    def _shared_ppm(self, prefill_us: Floats) -> Int64 | None:
        """The launch, which all prompts of a step share."""
        if not self._request.prompts_together:
            return None
        return np.floor(ATTENTION_LAUNCH_US / prefill_us * PPM).astype(np.int64)

    def notes(self) -> list[str]:
        """What was not known."""
        return self._notes

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    def attention_us(
        self,
        op: Attention,
        kv_tokens: Floats,
        pairs: Floats,
        flops: int = 0,
        near: tuple[Floats, Floats] | None = None,
    ) -> Floats:
        """us of a call that reads `kv_tokens` and computes `pairs` of (new, attended) tokens at
        `flops` each; `near`: as many of what the queries see beside.
        """
        rate = MEMORY_EFFICIENCY * self._peak_rates.memory_bandwidth_bytes_per_s
        moved = kv_tokens * op.kv_bytes_per_context_token
        computed = pairs * (flops or op.flops_per_context_token)
        if op.beside is not None and near is not None:
            moved = moved + near[0] * op.beside.kv_bytes_per_token
            computed = computed + near[1] * op.beside.flops_per_token
        memory = moved / rate
        dtype = op.weight_dtype or self._request.dtypes.activation
        peak = self._peak_rates.peak(dtype)
        flops_per_s = attention_flops_per_s(peak, self._peak_rates.reached(dtype))
        compute = computed / flops_per_s if peak else np.zeros_like(pairs)
        return np.asarray(np.maximum(memory, compute) * 1e6 + ATTENTION_LAUNCH_US)

    def _weight_bytes(self, op: Operator, counts: Floats) -> Floats:
        match op:
            case Embedding():
                return np.zeros_like(counts)
            case Moe() if op.held:
                return np.asarray(op.weight_bytes / op.held * op.touched(counts))
            case _:
                return np.full_like(counts, float(op.weight_bytes))


def near_of(op: Attention, new: Floats, before: Floats) -> tuple[Floats, Floats]:
    """What `new` tokens of a sequence see of the last tokens behind `before` others: tokens that
    are read, and (new, seen) pairs; zeros where they see no such tokens.
    """
    if op.beside is None:
        return np.zeros_like(new), np.zeros_like(new)
    window = float(op.beside.window)
    growing = np.clip(window - before, 0.0, new)  # new tokens that see all before them
    pairs = growing * before + growing * (growing + 1) / 2 + (new - growing) * window
    return np.minimum(before, window) + new, pairs


def analytic(values: Floats) -> NDArray[np.uint8]:
    """Marks every cell of a grid as computed, not measured."""
    return np.full(values.shape, Provenance.ANALYTIC, dtype=np.uint8)
