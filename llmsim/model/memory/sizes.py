"""Exact byte and parameter counts of a model and of one rank's share."""

from dataclasses import dataclass

from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.operator import Moe
from llmsim.model.operators.attention_variants import LinearAttention
from llmsim.model.operators.decoder import operators
from llmsim.model.parallel.sharding import kv_heads_per_rank, rank_shape
from llmsim.model.parallel.transforms import stage_model
from llmsim.model.types import Dtypes, LayerKind, ModelConfig


def parameter_count(model: ModelConfig) -> int:
    """Parameters of the published checkpoint: no vocabulary padding, tied embeddings once, no
    quantisation scales.

    Of a multimodal model the text part; without multi-token prediction layers.
    """
    hidden = model.hidden_size
    norm = hidden * (2 if model.norm_bias else 1)
    width, ways = model.intermediate_size, 2 if model.mlp_gated else 1
    dense = (ways + 1) * hidden * width + (ways * width + hidden) * model.mlp_bias
    expert = (ways + 1) * model.expert_hidden * model.moe_intermediate_size
    expert += (ways * model.moe_intermediate_size + model.expert_hidden) * model.expert_bias
    experts = model.num_experts * (hidden + model.router_bias + expert)
    experts += 2 * hidden * model.expert_latent_size
    experts += (
        ways + 1
    ) * hidden * model.shared_expert_intermediate_size + hidden * model.shared_expert_gate
    layers = model.softmax_layers * _attention_parameters(model) + model.layers_of(
        "linear"
    ) * _linear_parameters(model)
    before_mlp = model.norms_per_layer // 2
    layers += model.num_indexer_layers * _indexer_parameters(model)
    layers += (
        model.mixer_layers * (model.norms_per_layer - before_mlp) + model.ffn_layers * before_mlp
    ) * norm
    layers += model.num_dense_layers * dense + model.num_moe_layers * experts
    head = model.vocab_size * (
        model.lm_head_bias if model.tie_word_embeddings else hidden + model.lm_head_bias
    )
    return (model.vocab_size + model.position_rows) * hidden + layers + norm + head


def _attention_parameters(model: ModelConfig) -> int:
    hidden, heads, latent = model.hidden_size, model.num_attention_heads, model.latent
    query = heads * model.head_dim
    if latent is not None:
        down = latent.q_rank + latent.kv_rank + latent.rope_dim
        total = down * (hidden + model.attention_bias) + latent.q_rank + latent.kv_rank
        total += (latent.q_rank or hidden) * query + latent.kv_rank * heads * (
            latent.nope_dim + latent.v_dim
        )
        return total + hidden * (heads * latent.v_dim + model.o_proj_bias)
    keys = model.num_key_value_heads * model.head_dim
    if model.query_rank:
        latent_width = model.query_rank + 2 * keys
        return (
            latent_width * hidden
            + model.query_rank * (1 + query)
            + hidden * (query + model.o_proj_bias)
        )
    qkv = query * (1 + model.attention_gate) + 2 * keys
    total = (
        qkv * (hidden + model.attention_bias)
        + hidden * (query + model.o_proj_bias)
        + heads * model.attention_sinks
    )
    if model.qk_norm and not model.qk_norm_weightless:
        total += query + keys if model.qk_norm_whole else 2 * model.head_dim
    return total


def _indexer_parameters(model: ModelConfig) -> int:
    indexer, latent = model.indexer, model.latent
    if indexer is None or latent is None:
        return 0
    keys = (
        indexer.dim + indexer.heads
    ) * model.hidden_size + 2 * indexer.dim  # and the LayerNorm of a key
    return indexer.heads * indexer.dim * latent.q_rank + keys


def _linear_parameters(model: ModelConfig) -> int:
    linear, hidden = model.linear, model.hidden_size
    if linear is None:
        return 0
    keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    into = 2 * keys + 2 * values + linear.gates * linear.value_heads
    projections = hidden * into + hidden * values + (into + hidden) * linear.bias
    conv = (2 * keys + values) * (linear.conv_kernel + linear.conv_bias)
    return projections + conv + linear.head_weights * linear.value_heads + linear.norm_weights


def weight_bytes(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes of weights that one rank holds, as vLLM allocates them.

    The vocabulary is padded to 64; KV heads are replicated when tp exceeds them; norms, embeddings,
    lm_head and router keep the activation dtype in a quantised model; a tied lm_head is stored
    once. Raises InputError (layout).
    """
    total = sum(op.weight_bytes * op.repeat for op in operators(model, layout, dtypes))
    if layout.redundant_experts:
        experts = sum(
            op.weight_bytes * op.repeat
            for op in operators(model, layout, dtypes)
            if isinstance(op, Moe)
        )
        total += -(-experts * layout.redundant_experts // model.num_experts)
    tied = model.tie_word_embeddings and layout.domain != "ffn"
    if tied and layout.pp == 1:  # stages each have their own
        total -= (
            rank_shape(model, layout).vocab
            * model.hidden_size
            * int(dtype_bytes(dtypes.activation))
        )
    return total


MXFP4_TILE = (256, 128)
"""Multiples to which vLLM pads the hidden size and the width of experts with MXFP4 weights.

Source: vLLM 0.11, quantization/mxfp4.py (Marlin). Checked on published logs: gpt-oss-120b on one
H100 loads 65.97 GiB (issue 23278), here 65.8; gpt-oss-20b on two 7.01 GiB each, here 7.05.
"""
_MXFP4_BLOCK = (1, 32)


def expert_padding_bytes(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes that one rank's experts take beyond the checkpoint's, since their kernel needs whole
    tiles; 0 without MXFP4.
    """
    if model.num_experts == 0 or model.format_of("experts").block != _MXFP4_BLOCK:
        return 0
    rows, columns = MXFP4_TILE
    total = 0
    for op in operators(model, layout, dtypes):
        if isinstance(op, Moe) and op.weight_dtype == "fp4":
            padded = (-(-op.hidden // rows) * rows) * (-(-op.moe_inter // columns) * columns)
            plain = op.hidden * op.moe_inter
            total += op.repeat * (op.weight_bytes * padded // plain - op.weight_bytes)
    return total


@dataclass(frozen=True)
class KvGroup:
    """Layers whose cache has the same life: all tokens of a sequence, or (`window` > 0) its last
    ones.
    """

    kind: LayerKind
    layers: int
    bytes_per_token: int
    """Of all its layers on one rank."""
    window: int


def kv_groups(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[KvGroup, ...]:
    """The groups of layers that cache keys and values, "full" first; layers of linear attention are
    in none.
    """
    if layout.domain == "ffn":
        return ()
    model, per_layer = stage_model(model, layout), kv_bytes_per_layer(model, layout, dtypes)
    keys = model.num_indexer_layers * model.indexer.cached_bytes if model.indexer is not None else 0
    kinds: tuple[LayerKind, ...] = ("full", "sliding", "chunked")
    return tuple(
        KvGroup(
            kind,
            layers,
            layers * per_layer + keys * (kind == "full"),
            0 if kind == "full" else model.window,
        )
        for kind in kinds
        if (layers := model.layers_of(kind))
    )


def kv_bytes_per_layer(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes that one rank stores for a token in one layer of softmax attention; keys of an indexer
    aside.
    """
    if model.latent is not None:
        return model.latent_row_bytes(dtypes.kv)  # every rank holds it whole
    return 2 * kv_heads_per_rank(model, layout) * model.head_dim * int(dtype_bytes(dtypes.kv))


def kv_bytes_per_token(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes that one rank stores for a token that every layer still sees.

    2 x layers x KV heads per rank x head_dim x element size; latent attention: layers x (kv_rank +
    rope_dim) x element size, on every rank, and the keys of the indexer where it is sparse.
    """
    return sum(group.bytes_per_token for group in kv_groups(model, layout, dtypes))


def state_bytes_per_sequence(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes of linear-attention state that one rank holds for a sequence, however long it is."""
    model = stage_model(model, layout)
    if model.linear is None:
        return 0
    return model.layers_of("linear") * state_bytes_per_layer(model.linear, layout.tp, dtypes)


def state_bytes_per_layer(linear: LinearAttention, tp: int, dtypes: Dtypes) -> int:
    """Bytes of state that one of `tp` ranks holds for a sequence in one layer of
    linear attention.
    """
    return linear.on_rank(tp).state_bytes(dtypes.activation)
