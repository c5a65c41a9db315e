"""Context parallelism: what sharing a sequence's tokens among ranks adds to a rank's operators (as
vLLM does it).

Decode (`decode_context`, of the tensor-parallel ranks that hold the same KV head): each rank keeps
every n-th token of the KV cache. The query heads of all of them are gathered, each attends to its
own tokens, and the partial outputs are weighed by their gathered log-sum-exp and reduce-scattered
(vLLM's cp_lse_ag_out_rs). With latent attention that is so for decodes alone: a prompt gathers the
cached context instead (costs/context_parallel), since it does not attend on the compressed cache.

Prefill (`prefill_context` ranks beside the tensor-parallel ones): each computes an equal part of
every prompt, cut so that all see as many pairs, and gathers the new keys and values of the others.
Decodes run on all of them, each on its part of the cache; outputs are weighed and added up
(cp_lse_ag_out_ar). Experts are spread over them too: tokens are gathered before and
reduce-scattered behind the experts. Before sampling the hidden states are gathered.
"""

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.operator import Attention, Gemm, Moe, Operator, collective
from llmsim.model.types import Dtypes, ModelConfig

LSE_BYTES = 4
"""One fp32 per query head and token."""


def with_context(
    program: Iterable[Operator], model: ModelConfig, layout: Layout, dtypes: Dtypes
) -> tuple[Operator, ...]:
    """The program with the collectives of context parallelism."""
    size, ranks = int(dtype_bytes(dtypes.activation)), layout.prefill_context
    hidden = ranks * model.hidden_size * size
    out: list[Operator] = []
    for op in program:
        match op:
            case Attention():
                out += _around_attention(op, model, layout, size)
            case Moe() if ranks > 1:
                move = partial(
                    collective,
                    among="pcp",
                    part=op.part,
                    repeat=op.repeat,
                    in_layers=op.in_layers,
                )
                latent = ranks * op.hidden * size
                sent = latent + ranks * model.num_experts * size
                out.append(move("context_dispatch", "all_gather", size=sent))
                out.append(replace(op, units=(ranks, 1)))
                out.append(move("context_combine", "reduce_scatter", size=latent))
            case Gemm(part="head") if ranks > 1:
                gather = collective(
                    "hidden_gather", "all_gather", "pcp", hidden, part="head", repeat=1
                )
                out += [gather, op]
            case _:
                out.append(op)
    return tuple(out)


def _around_attention(
    op: Attention, model: ModelConfig, layout: Layout, size: int
) -> list[Operator]:
    latent, dcp, pcp = model.latent, layout.decode_context, layout.prefill_context
    move = partial(collective, part=op.part, repeat=op.repeat, in_layers=op.in_layers)
    values = op.value_dim or op.head_dim
    query, output = (
        (op.head_dim, values) if latent is None else (latent.cached_width, latent.kv_rank)
    )
    before: list[Operator] = []
    after: list[Operator] = []
    if pcp > 1:
        new = op.kv_heads * (op.head_dim + values) if latent is None else latent.cached_width
        before.append(move("kv_gather", "all_gather", "pcp", new * size, feature="prefills"))
    if dcp > 1:
        heads = dcp * op.heads
        shared = partial(move, among="dcp", feature="tokens" if latent is None else "decodes")
        before.append(shared("query_gather", "all_gather", size=heads * query * size))
        after.append(shared("lse_gather", "all_gather", size=dcp * heads * LSE_BYTES))
        after.append(shared("output_scatter", "reduce_scatter", size=heads * output * size))
    if pcp > 1:
        after.append(
            move("context_lse", "all_gather", "pcp", pcp * op.heads * LSE_BYTES, feature="decodes")
        )
        after.append(
            move("context_reduce", "all_reduce", "pcp", op.heads * output * size, feature="decodes")
        )
    return [*before, op, *after]


def context_problem(model: ModelConfig, layout: Layout) -> str:
    """The rule of context or sequence parallelism that a layout breaks; "" if it is fine."""
    dcp, pcp, tp, kv_heads = (
        layout.decode_context,
        layout.prefill_context,
        layout.tp,
        model.num_key_value_heads,
    )
    if layout.sequence_parallel and tp > 1 and model.layer_norm:
        return (
            "enable_sequence_parallelism splits the tokens of RMSNorms, but its norms are "
            "LayerNorms"
        )
    if dcp == pcp == 1:
        return ""
    if model.linear is not None:
        return (
            "context parallelism splits a sequence, but its linear-attention layers hand a state "
            "from token to token"
        )
    if model.indexer is not None:
        return (
            "context parallelism deals a sequence's tokens to ranks, but its attention chooses "
            "among all of them"
        )
    if model.compressed is not None or model.window:
        return (
            "context parallelism deals whole sequences to ranks, but it has layers that see a "
            "window"
        )
    if dcp == 1:
        return ""
    if model.latent is not None:
        return "" if tp % dcp == 0 else f"decode_context_parallel_size {dcp} must divide tp {tp}"
    if tp % (kv_heads * dcp):
        return (
            f"decode_context_parallel_size {dcp} needs as many ranks that hold the same KV head, "
            f"so tp {tp} must be a multiple of {dcp} x num_key_value_heads {kv_heads}"
        )
    return ""
