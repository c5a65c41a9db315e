"""Kernels that vLLM runs beside those of the silicon database's tables: the cache's writing, the
choice of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from llmsim.costs.source import CostRequest, OpCost, to_ps
from llmsim.costs.sources.silicon.memory_bound import REDUCTION_US
from llmsim.model import Attention, IndexerScores, Moe, dtype_bytes

if TYPE_CHECKING:
    from llmsim.costs.sources.silicon.memory_bound import Streaming
    from llmsim.model import Operator

Floats = NDArray[np.float64]

KV_WRITE, EXPERT_CHOICE = "kv_write", "expert_choice"
"""Names of the operators, and of the fidelity terms that switch them off."""
CHOICE_BYTES = 12
"""Of one chosen expert: its weight (fp32), its number, and its place (int32 each)."""


def kv_writes(
    request: CostRequest, streaming: Streaming, operators: Sequence[Operator] | None = None
) -> list[OpCost]:
    """One operator for each kind of attention layer: reads K and V of the new tokens, writes them
    to the cache.

    vLLM's backends for FlashAttention, FlashInfer and Triton declare
    `forward_includes_kv_cache_update = False` (0.19 and later: v1/attention/backends) and write in
    `do_kv_cache_update`; the database's collector times `forward` alone (ai-dynamo/aiconfigurator,
    collector/vllm/collect_attn.py). The time is that of the card's streaming kernel at equal bytes.
    `operators` (None: all of the request's) leave out those whose rows are whole modules, which
    write inside.
    """
    asked = request.operators if operators is None else operators
    return [_kv_write(request, streaming, op) for op in asked if isinstance(op, Attention)]


def expert_choices(request: CostRequest, streaming: Streaming) -> list[OpCost]:
    """Softmax and top-k of the router's logits, once per MoE layer, on the tokens that the experts
    see.

    vLLM: csrc/moe/topk_softmax_kernels.cu. The database's collector makes weights and choices
    before it starts the clock (ai-dynamo/aiconfigurator, collector/vllm/collect_moe.py), but for
    mxfp4 experts, whose module it times whole. The time is that of the card's streaming kernel at
    equal bytes, with a reduction along each row.
    """
    ops = [
        op
        for op in request.operators
        if isinstance(op, Moe) and not op.weight_dtype.startswith("fp4")
    ]
    size = int(dtype_bytes(request.dtypes.activation))
    return [
        _moving(
            op,
            EXPERT_CHOICE,
            size * op.experts_total + CHOICE_BYTES * op.topk,
            request,
            streaming,
            REDUCTION_US,
        )
        for op in ops
    ]


def _kv_write(request: CostRequest, streaming: Streaming, op: Attention) -> OpCost:
    latent = request.model.latent
    each = op.head_dim + (op.value_dim or op.head_dim)
    width = op.kv_heads * each if latent is None else latent.cached_width
    if isinstance(op, IndexerScores):
        width = op.head_dim
    read = int(width * dtype_bytes(request.dtypes.activation))
    return _moving(op, KV_WRITE, read + op.kv_bytes_per_context_token, request, streaming)


def _moving(
    op: Operator,
    name: str,
    bytes_each: int,
    request: CostRequest,
    streaming: Streaming,
    more_us: float = 0.0,
) -> OpCost:
    """An operator beside `op` that moves so many bytes per token."""
    feature: Literal["tokens", "gathered"] = "gathered" if op.feature == "gathered" else "tokens"
    counts = np.arange(request.counts(feature) + 1, dtype=np.float64)
    ps = to_ps(streaming.moving_us(counts * bytes_each) + more_us)
    ps[0] = 0
    marks = np.full(len(ps), streaming.provenance, dtype=np.uint8)
    return OpCost(name, "layer", op.repeat, feature, ps, marks, streaming.label)
