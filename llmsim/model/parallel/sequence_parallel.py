"""Sequence parallelism: norms on 1/tp of the tokens, as vLLM's pass rewrites the graph.

An all-reduce of a row-parallel layer's output, or of the embedding, becomes a reduce-scatter of
tokens; the norms that follow see each rank's share of them; an all-gather brings all tokens to the
next column-parallel layer. Between pipeline stages hidden states stay shared out, so that the next
stage need not gather before its first norm.
"""

from collections.abc import Iterable
from dataclasses import replace

from llmsim.model.operator import Layout, Operator, collective

GATHERED_BEHIND = ("layernorm", "final_layernorm")
"""Norms that a column-parallel layer follows; a norm behind a block's output is followed by one of
these.
"""
SHARED_OUT = (*GATHERED_BEHIND, "post_norm")


def with_sequence_parallelism(program: Iterable[Operator], layout: Layout) -> tuple[Operator, ...]:
    """The program with reduce-scatters and all-gathers in place of the all-reduces."""
    out: list[Operator] = []
    for op in program:
        if op.name == "all_reduce":
            out.append(replace(op, name="reduce_scatter", collective="reduce_scatter"))
        elif op.name in SHARED_OUT:
            out.append(replace(op, units=(1, layout.tp)))
            if op.name in GATHERED_BEHIND:
                width = op.hidden * _element(op)
                out.append(
                    collective(
                        "all_gather", "all_gather", "tp", width, part=op.part, repeat=op.repeat
                    )
                )
        else:
            out.append(op)
    return tuple(out)


def _element(norm: Operator) -> int:
    """Bytes of an element: a norm writes the hidden state and the residual."""
    return norm.write_bytes_per_token // (2 * norm.hidden)
