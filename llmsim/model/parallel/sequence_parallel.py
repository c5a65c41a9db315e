"""Sequence parallelism: norms on 1/tp of the tokens, as vLLM's pass rewrites the graph.

An all-reduce of a row-parallel layer's output, or of the embedding, becomes a reduce-scatter of
tokens; the norms that follow see each rank's share of them; an all-gather brings all tokens to the
next column-parallel layer. Between pipeline stages hidden states stay shared out, so that the next
stage need not gather before its first norm. So they do on their way to an FFN on devices of its own
and back.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from llmsim.model.layout import Layout
from llmsim.model.operator import Collective, Operator, ResidualNorm, collective


def with_sequence_parallelism(program: Iterable[Operator], layout: Layout) -> tuple[Operator, ...]:
    """The program with reduce-scatters and all-gathers in place of the all-reduces."""
    out: list[Operator] = []
    apart = layout.domain == "attention"
    for op in program:
        match op:
            case Collective(sums_hidden=True):
                shares = replace(op, name="reduce_scatter", collective="reduce_scatter")
                out.append(replace(shares, sums_hidden=False))
            case ResidualNorm():
                out.append(replace(op, units=(1, layout.tp)))
                if op.feeds_projection and not (apart and op.feeds_ffn):
                    out.append(_gather_behind(op))
            case Operator(block="router") if apart:
                out.append(replace(op, units=(1, layout.tp)))
            case _:
                out.append(op)
    return tuple(out)


def _gather_behind(norm: ResidualNorm) -> Collective:
    """Brings all tokens to the column-parallel layer that reads the norm."""
    width = norm.hidden * _element(norm)
    return collective(
        "all_gather",
        "all_gather",
        "tp",
        width,
        part=norm.part,
        repeat=norm.repeat,
        in_layers=norm.in_layers,
    )


def _element(norm: ResidualNorm) -> int:
    """Bytes of an element: a norm writes the hidden state and the residual."""
    return norm.write_bytes_per_token // (2 * norm.hidden)
