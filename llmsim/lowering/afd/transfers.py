"""What travels between the devices of attention and FFN groups: bytes over each device's port."""

from llmsim import _native
from llmsim.lowering.program import FEATURES
from llmsim.lowering.types import LoweredGroup
from llmsim.model import Layout, Moe
from llmsim.model.dtypes import dtype_bytes
from llmsim.model.parallel.expert_parallel import combined, dispatched, hit


def hops_of(attention: LoweredGroup, ffn: LoweredGroup) -> "list[_native.M2nHop]":
    """Of a dense layer, and of a mixture of experts.

    Dense rows travel once to each rank of their column, from one of the ranks that hold them, and
    back from one of the column to each rank that holds them. Routed rows travel to each rank that
    has an expert of the token, from one of the ranks that hold them, and back to all of them.
    """
    size = attention.model.hidden_size * int(dtype_bytes(attention.dtypes.activation))
    dense = _dense(attention.layout, ffn.layout, size)
    routed = [op for op in ffn.operators if isinstance(op, Moe)]
    if not ffn.layout.routed_rows or not routed:
        return [dense, dense]
    return [dense, _routed(attention, ffn, routed[0])]


def _copies(attention: Layout) -> int:
    """Ranks of an attention group that hold the same rows."""
    return 1 if attention.sequence_parallel else attention.tp


def _dense(attention: Layout, ffn: Layout, row: int) -> "_native.M2nHop":
    tokens, copies = FEATURES["tokens"], _copies(attention)
    return _native.M2nHop(
        attention_out=_native.PortBytes(tokens, row * ffn.tp, attention.tp),
        ffn_in=_native.PortBytes(tokens, row),
        ffn_out=_native.PortBytes(tokens, row * copies, ffn.tp),
        attention_in=_native.PortBytes(tokens, row * copies, attention.tp),
    )


def _routed(attention: LoweredGroup, ffn: LoweredGroup, moe: Moe) -> "_native.M2nHop":
    size = int(dtype_bytes(attention.dtypes.activation))
    rows = rows_per_token(ffn, moe)
    layout = ffn.layout
    low_latency = _as_deepep(layout)
    there = round(rows * dispatched(moe, low_latency, size).row_bytes)
    back = round(rows * combined(moe, low_latency, size).row_bytes)
    tokens, gathered = FEATURES["tokens"], FEATURES["gathered"]
    ranks, senders, copies = layout.expert_ranks, attention.layout.tp, _copies(attention.layout)
    return _native.M2nHop(
        attention_out=_native.PortBytes(tokens, there, senders),
        ffn_in=_native.PortBytes(gathered, there, ranks),
        ffn_out=_native.PortBytes(gathered, back * copies, ranks),
        attention_in=_native.PortBytes(tokens, back * copies, senders),
    )


def _as_deepep(layout: Layout) -> Layout:
    """Rows are those of DeepEP's low-latency messages, whatever the FFN's ranks would exchange."""
    return Layout(layout.tp, layout.ep, layout.dp, exchange="deepep_low_latency")


def rows_per_token(ffn: LoweredGroup, moe: Moe) -> float:
    """Ranks that get a row of a token, under an even router. Experts that all tokens take are dealt
    over the ranks, each of which computes them for its part of the tokens.
    """
    layout = ffn.layout
    ranks = layout.expert_ranks
    chosen = hit(moe, moe.experts_total // layout.ep)
    if ffn.model.shared_expert_intermediate_size:
        return 1 + (ranks - 1) * chosen
    return ranks * chosen
