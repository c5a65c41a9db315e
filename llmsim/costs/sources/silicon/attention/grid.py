"""Turns measured attention rows into the split grid: prefill over (new, cached) tokens, decode over
(n, cached).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.core import Int64, Provenance, UInt8
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.interpolation_grid import geometric_axis
from llmsim.costs.source import PPM, CostRequest, to_ps
from llmsim.costs.sources.silicon.attention.dense import AttentionRows

if TYPE_CHECKING:
    from llmsim.model import Attention, Hardware

Floats = NDArray[np.float64]

TILE_ROWS = {"fa2": 64, "fa3": 128}
DEFAULT_TILE_ROWS = 128
"""Query rows of one prefill thread block. FA2: a paged KV cache forces its split kernel, whose
block has 64 rows at every head size (flash_fwd_launch_template.h, run_mha_fwd_splitkv_dispatch).
FA3: 128 at head size 128 (hopper/ templates of the same repository). FlashInfer and others: assumed
128.
"""
COLD_FACTOR = 2
"""A KV cache this many times the last-level cache is certainly read from memory."""
PS_PER_US = 1e6
SINKS_SHARE = 0.11
"""Of a card's dense rate, what Triton's kernel reaches with attention sinks. gpt-oss-20b on one
A100 takes 4.41 s for a prompt of 32,000 tokens (vLLM 0.11.0, gpustack performance lab), and 2.11 s
here with FlashAttention 2, of which the twelve layers that see the whole prompt have 0.6 s. Other
cards without FlashAttention 3 are assumed to reach the same share.
"""
SINKS_LABEL = ", prompts with sinks on Triton"
LEAST_US = 1e-3
"""Of a further prompt, so that its logarithm is finite."""
DISTURBED = 1.5
"""A call that took so many times as long as one of a longer prompt or cache was disturbed: a few
rows are up to a hundred times too slow (H100, TensorRT-LLM, four heads: 4 decodes at 4,095 tokens
510 us, at 8,191 24 us).
"""


class PrefillGrid(Struct, frozen=True, eq=False):
    """Prefill of one sequence: q new tokens on k cached, ps [q, k]; `shared_ppm` as in
    SplitGrid.
    """

    q_axis: Int64
    k_axis: Int64
    ps: Int64
    provenance: UInt8
    shared_ppm: Int64 | None = None


class DecodeGrid(Struct, frozen=True, eq=False):
    """Decode of n sequences of kv cached tokens each, ps [n, kv]."""

    n_axis: Int64
    kv_axis: Int64
    ps: Int64
    provenance: UInt8


def prefill_grid(
    rows: AttentionRows,
    decode: DecodeGrid,
    request: CostRequest,
    op: Attention,
    peak_rates: PeakRates,
) -> PrefillGrid:
    """t(q, k) = T(q) + waves(q) * c * k, from the measured T of one whole prompt; at least a decode
    on that cache.

    T(q): log-log interpolation, quadratic above the longest measured prompt. c is what one thread
    block needs per cached token: its tile's (query row, token) pairs at the rate per SM that the
    longest prompts reach. waves(q) = heads * ceil(q / tile) / SMs. Full waves give the causal-area
    share of the full length's time.

    Beside others a prompt takes w(q) + c * k * blocks / SMs, with w of `further_prompt_times`; what
    it takes more alone, the prompts of a step share.
    """
    lengths, times_us = prompt_times(rows)
    q_axis = geometric_axis(1, request.table_tokens, 8)
    k_axis = np.insert(geometric_axis(1, max(request.max_model_len, 2), 4), 0, 0)
    q, k = np.meshgrid(q_axis.astype(np.float64), k_axis.astype(np.float64), indexing="ij")
    alone = _power_law(lengths, times_us, q_axis.astype(np.float64))
    cached_us, further_cached_us = _cached_part_us(lengths, times_us, request, op, q)
    us = alone[:, None] + cached_us * k
    further = _power_law(*further_prompt_times(rows), q_axis.astype(np.float64))
    further_us = further[:, None] + further_cached_us * k
    one_token_us = np.interp(k_axis[1:], decode.kv_axis, decode.ps[0] / PS_PER_US)
    us[:, 1:] = np.maximum(us[:, 1:], one_token_us[None, :])
    marks = np.full(us.shape, Provenance.SCALED, dtype=np.uint8)
    if rows.exact:
        marks[:, 0] = np.where(
            np.isin(q_axis, lengths), Provenance.MEASURED, Provenance.INTERPOLATED
        )
    marks[q_axis > lengths[-1], :] = Provenance.EXTRAPOLATED
    least = peak_rates.kv_us((q + k) * op.kv_bytes_per_context_token)
    peak = peak_rates.peak(request.dtypes.activation)
    pairs = q * k + q * (q + 1) / 2
    if peak:
        least = np.maximum(least, pairs * op.flops_per_context_token / peak * 1e6)
    marks[us < least] = Provenance.ANALYTIC
    if peak and sinks_on_triton(request):
        on_triton = pairs * op.flops_per_context_token / (SINKS_SHARE * peak) * 1e6
        marks[us < on_triton] = Provenance.SCALED
        least = np.maximum(least, on_triton)
    us = np.maximum.accumulate(np.maximum(us, least), axis=1)
    shared = np.maximum(0.0, 1.0 - np.maximum(further_us, least) / us)
    shared_ppm = np.floor(shared * PPM).astype(np.int64) if request.prompts_together else None
    return PrefillGrid(q_axis, k_axis, to_ps(us), marks, shared_ppm)


def sinks_on_triton(request: CostRequest) -> bool:
    """Whether prompts run on Triton's kernel, since the card's FlashAttention knows no sinks.

    FlashAttention 2 has none (vLLM's issues 22331 and 40153); the kernel skips tiles outside of a
    window since its pull request 24390.
    """
    sheet = request.hardware
    lacks_sinks = sheet is not None and sheet.attention_kernel == "fa2"
    own = request.engine.framework == "vllm" and request.model.attention_sinks
    return request.sink_attention and own and lacks_sinks


def _cached_part_us(
    lengths: Floats, times_us: Floats, request: CostRequest, op: Attention, q: Floats
) -> tuple[Floats, Floats]:
    """Microseconds per cached token of a chunk of q new tokens, waves(q) * c: alone, and beside
    others.

    FlashAttention-2 gives every tile of every query head one block and never splits a multi-token
    query over its KV (mha_varlen_fwd): whole waves, so short chunks on long prefixes leave most of
    the device idle, to the blocks of other prompts. The others pack the query heads of a KV head
    into one tile and split the KV until the device is full: fractions of a wave.
    """
    sheet = request.hardware
    pairs_per_us = (lengths[-1] ** 2 - lengths[-2] ** 2) / 2 / (times_us[-1] - times_us[-2])
    if sheet is None or not sheet.num_sms:
        each_us = np.asarray(q / pairs_per_us)
        return each_us, each_us
    tile = TILE_ROWS.get(sheet.attention_kernel, DEFAULT_TILE_ROWS)
    per_block_us = tile * sheet.num_sms / (op.heads * pairs_per_us)
    if sheet.attention_kernel == "fa2":
        waves = op.heads * np.ceil(q / tile) / sheet.num_sms
        return np.asarray(np.ceil(waves) * per_block_us), np.asarray(waves * per_block_us)
    packed_tiles = op.kv_heads * np.ceil(q * (op.heads / op.kv_heads) / tile)
    each_us = np.asarray(packed_tiles / sheet.num_sms * per_block_us)
    return each_us, each_us


def prompt_times(rows: AttentionRows) -> tuple[Floats, Floats]:
    """(prompt lengths, microseconds) of one whole prompt; what exceeds the shortest call is scaled
    with the heads.
    """
    alone = rows.numbers("batch_size") == 1
    lengths = rows.numbers("isl") + rows.numbers("step")
    points, owner = np.unique(lengths[alone], return_inverse=True)
    times_us = np.full(len(points), np.inf)
    np.minimum.at(times_us, owner, rows.numbers("latency")[alone] * 1e3)
    times_us = np.maximum.accumulate(_undisturbed(times_us))
    return points, times_us[0] + (times_us - times_us[0]) * rows.scale_compute


def further_prompt_times(rows: AttentionRows) -> tuple[Floats, Floats]:
    """(prompt lengths, microseconds) of one more prompt in a call with many others: what the
    largest measured batch takes beyond one prompt, by prompts; at most what a prompt takes alone
    beyond the shortest call, where no batch was measured.
    """
    points, alone_us = prompt_times(rows)
    lengths = rows.numbers("isl") + rows.numbers("step")
    batch, times_us = rows.numbers("batch_size"), rows.numbers("latency") * 1e3
    further_us = alone_us - alone_us[0]
    for i, length in enumerate(points):
        here = lengths == length
        if (most := batch[here].max()) > 1:
            whole_us = times_us[here & (batch == most)].min() * rows.scale_compute
            further_us[i] = np.clip((whole_us - alone_us[i]) / (most - 1), 0.0, alone_us[i])
    return points, np.maximum.accumulate(np.maximum(further_us, LEAST_US))


def _power_law(points: Floats, times_us: Floats, at: Floats) -> Floats:
    """Linear in log-log between points, constant below, quadratic above the last (attention
    dominates there).
    """
    inside = np.exp(np.interp(np.log(at), np.log(points), np.log(times_us)))
    return np.asarray(np.where(at > points[-1], times_us[-1] * (at / points[-1]) ** 2, inside))


def decode_grid(
    rows: AttentionRows, request: CostRequest, op: Attention, peak_rates: PeakRates
) -> DecodeGrid:
    """Measured decode times, never faster than reading the KV from memory.

    In a model the KV of a layer is cold: all other layers were read since. The database repeats one
    call (a graph replayed six times: collector/helper.py of ai-dynamo/aiconfigurator), so its rows
    are warm as far as the last-level cache goes, and are raised to fixed + bytes / cold rate. The
    rate is that of the rows with a KV cache of twice the last-level cache or more; the fixed part:
    `_fixed_us`.
    """
    n_points, kv_points, us = decode_times(rows)
    kv_bytes = n_points[:, None] * (kv_points[None, :] + 1.0) * op.kv_bytes_per_context_token
    rate, fixed_us = cold_line(us, kv_bytes, peak_rates)
    gaps = np.isnan(us)
    shortest = np.nanmin(us, axis=1, keepdims=True)
    blocks = n_points[:, None] * op.kv_heads
    cold = _fixed_us(shortest, fixed_us, blocks, kv_bytes, request.hardware) + kv_bytes / rate
    if not request.cold_kv:
        cold = np.where(gaps, cold, 0.0)
    marks = np.where(us >= cold, Provenance.MEASURED, Provenance.SCALED)
    marks[gaps] = Provenance.EXTRAPOLATED
    if not rows.exact:
        marks[:] = Provenance.SCALED
    us = np.fmax(us, cold)
    least = np.maximum(peak_rates.kv_us(kv_bytes), 0.0)
    marks = np.where(us < least, Provenance.ANALYTIC, marks).astype(np.uint8)
    us = np.maximum.accumulate(np.maximum(us, least), axis=0)
    keep_n = _up_to(n_points, request.table_sequences)
    keep_kv = _up_to(kv_points, request.max_model_len)
    return DecodeGrid(
        n_points[:keep_n].astype(np.int64),
        kv_points[:keep_kv].astype(np.int64),
        to_ps(us[:keep_n, :keep_kv]),
        marks[:keep_n, :keep_kv],
    )


def _fixed_us(
    shortest: Floats, warm_fixed_us: float, blocks: Floats, kv_bytes: Floats, sheet: Hardware | None
) -> Floats:
    """What a cold decode call takes beyond its KV's streaming, us [n, kv].

    The shortest call of the same n, at most what the database's rows beyond the cache have; where
    the card was also measured with cold KV (`decode_cold_ns`), that: it holds at twice the
    last-level cache, the shortest call's time at half of it, and between them it grows with the
    logarithm of the bytes, as the rows that it comes from do.
    """
    if sheet is None or not sheet.decode_cold_ns:
        return np.asarray(np.minimum(warm_fixed_us, shortest) + np.zeros_like(kv_bytes))
    known_blocks, known_ns = (
        np.array(column, dtype=np.float64) for column in zip(*sheet.decode_cold_ns, strict=True)
    )
    cold_us = np.interp(np.log(blocks), np.log(known_blocks), known_ns) / 1e3
    least = np.minimum(shortest, cold_us)
    octaves = np.log2(np.maximum(kv_bytes, 1.0) * COLD_FACTOR / sheet.last_level_cache_bytes)
    return np.asarray(
        least + (cold_us - least) * np.clip(octaves / (2 * np.log2(COLD_FACTOR)), 0.0, 1.0)
    )


def _up_to(points: Floats, last: int) -> int:
    """How many points cover 1..last: all below it and the next one, at least two."""
    return max(2, min(len(points), int(np.searchsorted(points, last)) + 1))


def decode_times(rows: AttentionRows) -> tuple[Floats, Floats, Floats]:
    """(sequences, cached tokens each, microseconds [n, kv]); the new token is not among the cached
    ones.
    """
    batch = rows.numbers("batch_size")
    cached = rows.numbers("isl") + rows.numbers("step") - 1
    n_points, at_n = np.unique(batch, return_inverse=True)
    kv_points, at_kv = np.unique(cached, return_inverse=True)
    us = np.full((len(n_points), len(kv_points)), np.inf)
    np.minimum.at(us, (at_n, at_kv), rows.numbers("latency") * 1e3)
    us[np.isinf(us)] = np.nan
    us = _undisturbed(us)
    shortest = np.nanmin(us, axis=1, keepdims=True)
    return n_points, kv_points, shortest + (us - shortest) * rows.scale_kv


def _undisturbed(times_us: Floats) -> Floats:
    """Times by length (the last axis) without those that something else on the machine made long
    (DISTURBED).
    """
    longer = np.fmin.accumulate(times_us[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(np.where(times_us > DISTURBED * longer, longer, times_us))


def cold_line(us: Floats, kv_bytes: Floats, peak_rates: PeakRates) -> tuple[float, float]:
    """(bytes per us, fixed us) of reading KV from memory: medians over the rows that no cache
    holds.
    """
    cold = (kv_bytes >= COLD_FACTOR * peak_rates.last_level_cache_bytes) & ~np.isnan(us)
    both = cold[:, 1:] & cold[:, :-1]
    steps_us = np.diff(us, axis=1)[both]
    steps_bytes = np.diff(kv_bytes, axis=1)[both]
    usable = steps_us > 0
    limit = peak_rates.memory_bandwidth_bytes_per_s / 1e6
    if not bool(usable.any()):
        return limit, 0.0
    rate = min(float(np.median(steps_bytes[usable] / steps_us[usable])), limit)
    return rate, max(0.0, float(np.median(us[cold] - kv_bytes[cold] / rate)))
