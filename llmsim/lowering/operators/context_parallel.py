"""Adds to attention what a prompt's part gathers from other ranks: the KV that earlier steps left
with them.
"""

import numpy as np
from msgspec.structs import replace

from llmsim.costs import AttentionCost, CompiledCosts, CostRequest, SplitAttention
from llmsim.lowering.network.base import NetworkView
from llmsim.model import Attention


def with_gathered_context(
    costs: CompiledCosts, request: CostRequest, links: NetworkView
) -> CompiledCosts:
    """The costs with the time of gathering cached context, in every prefill that has one.

    Prefill context parallelism gathers it from all of its ranks, and decode context parallelism,
    too, with latent attention; other models gather the queries instead, which is a collective of
    its own (model/parallel).
    """
    layout, latent = request.layout, request.model.latent
    ranks = layout.prefill_context * (layout.decode_context if latent is not None else 1)
    if ranks == 1:
        return costs
    op = next(op for op in request.operators if isinstance(op, Attention))
    each = op.kv_bytes_per_context_token * ranks
    first, *more = (
        _gathering(attention, links, each, ranks, layout.prefill_context)
        for attention in costs.attentions
    )
    return replace(costs, attention=first, more_attention=tuple(more))


def _gathering(
    attention: AttentionCost,
    links: NetworkView,
    bytes_per_token: int,
    ranks: int,
    parts: int,
) -> AttentionCost:
    apart = "context parallelism prices prefills and decodes apart"
    assert isinstance(attention, SplitAttention), apart
    split = attention.grid
    # A part of q tokens stands behind k on average, k - q (parts - 1) / 2 of which were there
    # before the prompt.
    tokens, seen = split.q_axis[:, None], split.k_axis[None, :]
    before = np.maximum(0, seen - tokens * (parts - 1) // 2)
    more = np.zeros(before.shape, np.int64)
    there = before > 0
    if there.any():
        sizes, owner = np.unique(before[there] * bytes_per_token, return_inverse=True)
        more[there] = links.context_gather(ranks, sizes.astype(np.int64))[owner]
    return replace(attention, grid=split.with_longer_prompts(more))
