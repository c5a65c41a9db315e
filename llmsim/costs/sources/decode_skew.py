"""Two batch effects of FlashAttention-2 that single-kernel tables do not hold, from measured
constants of the card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmsim.costs.source import SKEW_FRACTION_BITS, CostRequest
from llmsim.model import dtype_bytes

if TYPE_CHECKING:
    from llmsim.model import Attention

PS_PER_S = 10**12


def skew_q20(request: CostRequest, op: Attention) -> tuple[int, str]:
    """kappa: extra decode time per token of (longest - mean), 2^-20 ps, and its source; 0 where it
    was never measured.

    One thread block streams K and V of one head: 2 * head_dim * element bytes per token, at the
    card's measured rate.
    """
    sheet = request.hardware
    if sheet is None or sheet.attention_kernel != "fa2" or not sheet.decode_skew_stream_bytes_per_s:
        return 0, "none: no measured streaming rate of one thread block for this card"
    per_token = 2 * _head_bytes(request, op)
    ps_q20 = per_token * (PS_PER_S << SKEW_FRACTION_BITS) / sheet.decode_skew_stream_bytes_per_s
    where = sheet.sources.get("decode_skew_stream_bytes_per_s", sheet.source)
    return round(ps_q20), f"streaming rate of one thread block, {where}"


def skew_note(how: str) -> str:
    """What a run says where `skew_q20` found nothing; `how` is its source."""
    return (
        "decode batches of unequal lengths cost as much as equal ones "
        f"({how.removeprefix('none: ')})"
    )


SPLIT_TILE_ROWS = 64
"""Query rows of one thread block of FlashAttention-2 with a paged cache, at every head size
(flash_fwd_launch_template.h of Dao-AILab/flash-attention, run_mha_fwd_splitkv_dispatch).
"""
TILE_SHARE = 0.41
"""Share of the data sheet's dense rate at which such a tile computes for a decode in a mixed step.

A decode has one query row, and its tile computes all 64: 64 rows x 4 x 128 flops for each query
head and KV token. The profile bundle of the RTX PRO 6000 (attention.csv: 0.171 ns) gives 192 of
468 TFLOP/s. The bundle of the RTX 4090 (0.366 ns) gives 0.54 of 165.
"""


def mixed_decode_q20(request: CostRequest, op: Attention, *, derived: bool = True) -> int:
    """Least decode time per KV token in a step that also prefills, 2^-20 ps per layer; 0 where the
    effect is unknown.

    The mixed kernel of FlashAttention-2 does not pack the query heads of a KV head: K and V are
    read from L2 once per query head: heads * head_dim * 2 elements per token, over the measured L2
    bandwidth. A card without that measurement takes the work of the tiles (`derived`).
    """
    sheet = request.hardware
    if sheet is None or sheet.attention_kernel != "fa2":
        return 0
    if sheet.l2_bandwidth_bytes_per_s:
        per_token = op.heads * 2 * _head_bytes(request, op)
        return round(per_token * (PS_PER_S << SKEW_FRACTION_BITS) / sheet.l2_bandwidth_bytes_per_s)
    return _tile_q20(request, op) if derived and _runs_fa2(request) else 0


def _runs_fa2(request: CostRequest) -> bool:
    """Latent attention and attention sinks have kernels of their own on these cards."""
    return request.model.latent is None and not request.model.attention_sinks


def _tile_q20(request: CostRequest, op: Attention) -> int:
    """What the tiles of one decode compute for a KV token, at the share of the card's rate that
    other cards reach.
    """
    peak = request.hardware.flops.get("bf16", 0) if request.hardware is not None else 0
    if not peak:
        return 0
    flops_per_token = op.heads * SPLIT_TILE_ROWS * 4 * op.head_dim
    return round(flops_per_token * (PS_PER_S << SKEW_FRACTION_BITS) / (TILE_SHARE * peak))


def _head_bytes(request: CostRequest, op: Attention) -> int:
    """Bytes of one head's K (or V) of one token."""
    return int(op.head_dim * dtype_bytes(request.dtypes.kv))
