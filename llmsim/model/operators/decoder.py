"""The operators of one iteration on one rank, in execution order, with what each reads, writes and
computes.

vLLM's fused shapes: one qkv GEMM, one gate_up GEMM, grouped experts. With h hidden, d head_dim, H
and K the rank's query and KV heads, i the rank's MLP (or one expert's) width, v the vocabulary, a
and c the bytes of an activation and of a cached element; per token (lm_head, logits_gather,
sampler, linear_state: per scheduled sequence):

    operator        reads                          writes              flops embedding       4 + h a
    (id and row)          h a                 0  (learned positions: h a more, h) layernorm       2
    h a  (input and residual)    2 h a               5 h (RMSNorm; LayerNorm 8 h) post_norm       h
    a                            h a                 4 h (behind attention or MLP: Gemma) GEMM n x k
    k a                            n a                 2 n k qk_norm         (H + K) d a
    (H + K) d a         4 (H + K) d rotary_emb      (H + K + 1) d a  (cos, sin)    (H + K) d a
    3 (H + K) d attention       (H + 2 K) d a                  H d a + 2 K d c     4 H d per
    attended token, which reads 2 K d c attention_gate  2 H d a                        H d a
    5 H d act_fn          2 i a                          i a                 5 i moe             s
    (2 h + 3 i) a                (s (h + 3 i) + h) a 6 s h i branch_add      2 h a
    h a                 h  (attention and MLP side by side: Falcon) sampler         (a + 4) v
    4 v                 2 v

MoE: s = topk / ep is the expected number of experts per token on a rank; both GEMMs, the activation
between them and the weighted sum move their intermediates through memory. Shared experts are an MLP
of their own beside them. The sampler is the greedy one: logits to fp32, then argmax, over the whole
vocabulary on every rank. An all_reduce sums h a bytes per token, logits_gather collects (v padded)
a per sequence. Layers that see a window are operators of their own (attention_sliding,
attention_chunked). Latent attention: latent.py; linear attention: linear_attention.py.
"""

from functools import partial

from msgspec.structs import replace

from llmsim.model.layout import Layout
from llmsim.model.operator import Block, Operator
from llmsim.model.operators.compressed import compressed_layers
from llmsim.model.operators.factory import OperatorFactory
from llmsim.model.operators.layer_inputs import embeddings_of_layers, mixed_into_layers
from llmsim.model.operators.linear_attention import linear_layer
from llmsim.model.operators.softmax import placed, softmax_layers
from llmsim.model.operators.streams import (
    streams_begin,
    streams_end,
    streams_in,
    streams_out,
)
from llmsim.model.parallel.transforms import laid_out
from llmsim.model.types import Dtypes, ModelConfig

MLP = ("up_proj", "act_fn", "down_proj")


@laid_out
def operators(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[Operator, ...]:
    """What one iteration executes on one rank, in order; the body of identical layers is listed
    once, with `repeat`.

    A name can occur twice (layernorm, all_reduce). Models that mix kinds of layers list all of
    them, each with its number of layers. Formulas: module docstring. Raises InputError if the
    layout does not split the model.
    """
    make = OperatorFactory(model, layout, dtypes)
    if layout.domain == "ffn":
        return tuple(_numbered(op, model.num_layers) for op in _ffn(make))
    program = [
        make.embedding(),
        *make.all_reduce(1, prologue=True),
        *make.embedding_norm(),
        *streams_begin(make),
        *embeddings_of_layers(make),
        *_attention(make),
    ]
    if not layout.domain:
        program += _ffn(make)
    elif layout.routed_rows and model.num_moe_layers:
        program += _routers(make)
    program += [*streams_end(make), make.attending(make.norm("final_layernorm", "head", 1))]
    program += [make.lm_head(), *make.logits_gather(), make.sampler()]
    return tuple(_numbered(op, model.num_layers) for op in program)


def _numbered(op: Operator, layers: int) -> Operator:
    """The operator without numbers of layers if all of them have it."""
    return replace(op, in_layers=()) if len(op.in_layers) == layers else op


def _attention(make: OperatorFactory) -> list[Operator]:
    """The first half of every layer, the norm in front of the second included."""
    model = make.model
    mixers, ffns, hidden = model.layers_with_mixers, model.layers_with_ffns, model.hidden_size
    program = placed([*streams_in(make, len(mixers)), *make.norms(len(mixers))], mixers)
    program += softmax_layers(make) if model.compressed is None else compressed_layers(make)
    program += placed(linear_layer(make), model.layers_with("linear", "both"))
    # Attention and state space side by side, each summed over ranks.
    if both := model.layers_with("both"):
        beside = len(both)
        sides = make.elementwise(
            "branch_add", beside, reads=2 * hidden, writes=hidden, flops=hidden
        )
        program += placed([*make.all_reduce(beside), sides], both)
    if not model.one_sum:
        program += placed(make.all_reduce(len(mixers)), mixers)
    program += placed([*_post_norm(make, len(mixers)), *streams_out(make, len(mixers))], mixers)
    program += placed(streams_in(make, len(ffns)), ffns)
    if model.norms_per_layer > 1:
        program += placed(make.norms(len(ffns), feeds_ffn=True), ffns)
    return program


def _ffn(make: OperatorFactory) -> list[Operator]:
    """The second half of every layer: an MLP, or experts and their router."""
    model = make.model
    program: list[Operator] = []
    groups = model.dense_groups
    for number, (width, layers) in enumerate(groups):
        dense = len(layers)
        names = tuple(f"{one}_{number + 1}" if number else one for one in MLP)
        program += placed(_mlp(make, names, width // make.layout.ffn_ranks, dense), layers)
        program += _branch_add(make, model.one_sum and number == 0)
        program += placed(make.all_reduce(dense), layers)
    if model.num_moe_layers:
        program += [] if make.layout.routed_rows else _routers(make)
        experts = [
            *_experts(make),
            *_shared_expert(make),
            *make.all_reduce(model.num_moe_layers),
            *_around_experts(make),
        ]
        program += placed(experts, model.layers_with_experts)
    program += _branch_add(make, not model.one_sum)
    behind = [*_post_norm(make, model.ffn_layers), *streams_out(make, model.ffn_layers)]
    program += placed(behind, model.layers_with_ffns)
    return [*program, *mixed_into_layers(make)]


def _around_experts(make: OperatorFactory) -> list[Operator]:
    """Norms of a dense MLP and of the experts beside it, and their sum."""
    model, layers, hidden = make.model, make.model.num_moe_layers, make.model.hidden_size
    if not model.dense_beside_experts:
        return []
    norms: list[Operator] = [make.post_norm(layers) for _ in range(model.norms_around_experts)]
    add = make.elementwise("branch_add", layers, reads=2 * hidden, writes=hidden, flops=hidden)
    return [*norms, add]


def _routers(make: OperatorFactory) -> list[Operator]:
    """Of layers whose experts a token's id chooses a router without correction bias: it weighs the
    chosen experts alone.
    """
    model = make.model
    hashed = model.hashed_layers or (False,) * model.num_layers
    by_id = tuple(number for number in model.layers_with_experts if hashed[number])
    scored = tuple(number for number in model.layers_with_experts if not hashed[number])
    program: list[Operator] = []
    if by_id:
        bare = make.gemm(
            "moe_gate_hashed",
            model.router_rows,
            model.hidden_size,
            part="wide",
            repeat=len(by_id),
            block="router",
        )
        program += placed([bare], by_id)
    return [*program, *(placed([_router(make, len(scored))], scored) if scored else [])]


def _router(make: OperatorFactory, repeat: int) -> Operator:
    model = make.model
    return make.gemm(
        "moe_gate",
        model.router_rows,
        model.hidden_size,
        part="wide",
        repeat=repeat,
        bias=model.router_rows * model.router_bias
        + (model.hidden_size + model.num_experts) * model.router_scales,
        block="router",
    )


def _post_norm(make: OperatorFactory, layers: int) -> list[Operator]:
    if make.model.norms_per_layer < 4 or not layers:
        return []
    return [make.post_norm(layers)]


def _branch_add(make: OperatorFactory, here: bool) -> list[Operator]:
    """The sum of attention and MLP that run side by side: `here`, before the ranks' sum or behind
    it.
    """
    if not (make.model.parallel and here):
        return []
    hidden, layers = make.model.hidden_size, make.model.num_layers
    return [make.elementwise("branch_add", layers, reads=2 * hidden, writes=hidden, flops=hidden)]


def _mlp(
    make: OperatorFactory, names: tuple[str, ...], width: int, repeat: int, part: str = "mlp"
) -> list[Operator]:
    """Up (with the gate, in one GEMM), activation, down; `width` on this rank."""
    model, hidden = make.model, make.model.hidden_size
    up, act, down = names
    ways = 2 if model.mlp_gated else 1
    biased = model.mlp_bias and part == "mlp"
    block: Block = "mlp" if part == "mlp" else "shared_experts"
    gemm = partial(make.gemm, part=part, block=block, repeat=repeat)
    up_name = ("gate_" if model.mlp_gated and part == "mlp" else "") + up
    return [
        gemm(up_name, ways * width, hidden, bias=ways * width * biased, cut="columns"),
        make.elementwise(
            act,
            repeat,
            reads=ways * width,
            writes=width,
            flops=(5 if model.mlp_gated else 4) * width,
            block=block,
        ),
        gemm(down, hidden, width, bias=hidden * biased, cut="rows"),
    ]


def _experts(make: OperatorFactory) -> list[Operator]:
    """The experts, between the projections into and out of their latent space (whole on each rank)
    if they have one.
    """
    latent, hidden = make.model.expert_latent_size, make.model.hidden_size
    if not latent:
        return [make.experts()]
    layers = make.model.num_moe_layers
    gemm = partial(make.gemm, part="shared", repeat=layers)
    norm = partial(make.inner_norm, "moe_latent_norm", layers, latent, weights=latent)
    return [
        gemm("moe_latent_in", latent, hidden, block="latent_in"),
        make.experts(),
        *([norm(block="latent_out")] if make.model.latent_norm else []),
        gemm("moe_latent_out", hidden, latent, block="latent_out"),
    ]


def _shared_expert(make: OperatorFactory) -> list[Operator]:
    """The experts that every token takes, as one MLP, and the scalar gate of their sum; nothing
    where they are in the kernel of the others.
    """
    model, repeat = make.model, make.model.num_moe_layers
    width = make.shape.shared_intermediate
    if not width or model.shared_with_experts:
        return []
    names = ("shared_expert_up_proj", "shared_expert_act_fn", "shared_expert_down_proj")
    program = _mlp(make, names, width, repeat, "shared")
    if model.shared_expert_gate:
        program.append(
            make.gemm(
                "shared_expert_gate",
                1,
                model.hidden_size,
                part="wide",
                block="shared_experts",
                repeat=repeat,
            )
        )
    return program
