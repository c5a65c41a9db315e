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


def mixed_decode_q20(request: CostRequest, op: Attention) -> int:
    """Least decode time per KV token in a step that also prefills, 2^-20 ps per layer; 0 where the
    effect is unknown.

    The mixed kernel of FlashAttention-2 does not pack the query heads of a KV head: K and V are
    read from L2 once per query head: heads * head_dim * 2 elements per token, over the measured L2
    bandwidth.
    """
    sheet = request.hardware
    if sheet is None or sheet.attention_kernel != "fa2" or not sheet.l2_bandwidth_bytes_per_s:
        return 0
    per_token = op.heads * 2 * _head_bytes(request, op)
    return round(per_token * (PS_PER_S << SKEW_FRACTION_BITS) / sheet.l2_bandwidth_bytes_per_s)


def _head_bytes(request: CostRequest, op: Attention) -> int:
    """Bytes of one head's K (or V) of one token."""
    return int(op.head_dim * dtype_bytes(request.dtypes.kv))
