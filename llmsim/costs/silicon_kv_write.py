"""The kernel that writes new keys and values into the paged cache: beside attention, and in none of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmsim.costs.source import CostRequest, OpCost, to_ps
from llmsim.model import dtype_bytes

if TYPE_CHECKING:
    from llmsim.costs.streaming import Streaming
    from llmsim.model import Operator

KV_WRITE = "kv_write"
"""Name of the operator, and of the fidelity term that switches it off."""


def kv_writes(request: CostRequest, streaming: Streaming) -> list[OpCost]:
    """One operator for each kind of attention layer: reads K and V of the new tokens, writes them to the cache.

    vLLM's backends for FlashAttention, FlashInfer and Triton declare `forward_includes_kv_cache_update = False` (0.19
    and later: v1/attention/backends) and write in `do_kv_cache_update`; the database's collector times `forward` alone
    (ai-dynamo/aiconfigurator, collector/vllm/collect_attn.py). The time is that of the card's streaming kernel at equal
    bytes. Latent attention writes inside its module's rows, so it has none here.
    """
    if request.model.latent is not None:
        return []
    return [_kv_write(request, streaming, op) for op in request.operators if op.kind == "attention"]


def _kv_write(request: CostRequest, streaming: Streaming, op: Operator) -> OpCost:
    read = int(2 * op.kv_heads * op.head_dim * dtype_bytes(request.dtypes.activation))
    counts = np.arange(request.table_tokens + 1, dtype=np.float64)
    ps = to_ps(streaming.moving_us(counts * (read + op.kv_bytes_per_context_token)))
    ps[0] = 0
    marks = np.full(len(ps), streaming.provenance, dtype=np.uint8)
    return OpCost(KV_WRITE, "layer", op.repeat, "tokens", ps, marks, streaming.label)
