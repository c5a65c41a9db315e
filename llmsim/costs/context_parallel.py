"""Attention of ranks that share sequences by tokens, from the costs of ranks that do not.

A prompt's part of a rank has as many (query, key) pairs per token as the whole (the core gives its
length and its mean context), so that its grid is the plain one. A decode attends, for the query
heads of `query_ranks` ranks, to every `context_ranks`-th token: the grid of that many heads, with
its contexts stretched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmsim.costs.source import SplitAttention

if TYPE_CHECKING:
    from llmsim.costs.source import AttentionCost, CostRequest, CostSource
    from llmsim.model import Attention


def context_attention(
    op: Attention, source: CostSource, request: CostRequest
) -> AttentionCost | None:
    """Attention of one layer on such a rank; None where the source has no times of prefills and
    decodes apart.
    """
    own = _alone(op, request, 1)
    mine = source.attention(own)
    theirs = mine if op.query_ranks == 1 else source.attention(_alone(op, request, op.query_ranks))
    if not isinstance(mine, SplitAttention) or not isinstance(theirs, SplitAttention):
        return None
    decode = theirs.grid
    grid = replace(
        mine.grid,
        n_axis=decode.n_axis,
        kv_axis=decode.kv_axis * op.context_ranks,
        decode_ps=decode.decode_ps,
        decode_provenance=decode.decode_provenance,
        mixed_decode_ps_per_kv_token_q20=decode.mixed_decode_ps_per_kv_token_q20
        // op.context_ranks,
    )
    source_text = (
        mine.source if theirs.source == mine.source else f"{mine.source}; decodes: {theirs.source}"
    )
    return replace(
        mine,
        grid=grid,
        skew_ps_per_token_q20=theirs.skew_ps_per_token_q20 // op.context_ranks,
        source=source_text,
    )


def _alone(op: Attention, request: CostRequest, heads_of: int) -> Attention:
    """The same attention of a rank that holds whole sequences, for the query heads of `heads_of`
    ranks.
    """
    parts = request.layout.prefill_context * heads_of
    return replace(
        op,
        heads=op.heads * heads_of,
        context_ranks=1,
        query_ranks=1,
        kv_bytes_per_context_token=op.kv_bytes_per_context_token * op.context_ranks,
        flops_per_context_token=op.flops_per_context_token * parts,
        decode_flops_per_context_token=op.decode_flops_per_context_token * parts,
    )
