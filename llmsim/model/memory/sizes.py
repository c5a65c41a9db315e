"""Exact byte and parameter counts of a model and of one rank's share."""

from msgspec import Struct

from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.operator import Moe
from llmsim.model.operators.attention_variants import CompressedAttention, LinearAttention
from llmsim.model.operators.decoder import operators
from llmsim.model.parallel.sharding import rank_shape
from llmsim.model.parallel.transforms import stage_model
from llmsim.model.types import Dtypes, LayerKind, ModelConfig


def parameter_count(model: ModelConfig) -> int:
    """Parameters of the published checkpoint: no vocabulary padding, tied embeddings once, no
    quantisation scales.

    Of a multimodal model the text part; without multi-token prediction layers.
    """
    hidden = model.hidden_size
    norm = model.norm_parameters
    ways = 2 if model.mlp_gated else 1
    dense = sum(
        len(layers) * ((ways + 1) * hidden * width + (ways * width + hidden) * model.mlp_bias)
        for width, layers in model.dense_groups
    )
    expert = (ways + 1) * model.expert_hidden * model.moe_intermediate_size
    expert += (ways * model.moe_intermediate_size + model.expert_hidden) * model.expert_bias
    experts = model.num_experts * (hidden + model.router_bias + expert)
    experts += (hidden + model.num_experts) * model.router_scales
    experts += norm * model.norms_around_experts + model.zero_experts * (hidden + model.router_bias)
    experts += (2 * hidden + model.latent_norm) * model.expert_latent_size
    experts += (
        ways + 1
    ) * hidden * model.shared_expert_intermediate_size + hidden * model.shared_expert_gate
    layers = _softmax_parameters(model) + model.layers_of("linear") * _linear_parameters(model)
    before_mlp = model.norms_per_layer // 2
    if model.latent is not None:
        layers += model.num_indexer_layers * _indexer_parameters(model)
    layers += (
        model.mixer_layers * (model.norms_per_layer - before_mlp) + model.ffn_layers * before_mlp
    ) * norm
    layers += dense + model.num_moe_layers * experts
    if (inputs := model.layer_inputs) is not None:
        layers += inputs.parameters(hidden) + model.num_layers * inputs.layer_parameters(hidden)
    layers -= model.num_hashed * model.router_rows * model.router_bias
    if model.residual_sources:
        layers += 2 * hidden * (2 * model.num_layers + 1)
    if model.hyper is not None:
        layers += model.hyper.parameters(hidden, model.num_layers)
    head = model.vocab_size * (
        model.lm_head_bias if model.tie_word_embeddings else hidden + model.lm_head_bias
    )
    return (
        (model.vocab_size + model.position_rows) * hidden
        + layers
        + norm * (1 + model.embedding_norm)
        + head
    )


def _softmax_parameters(model: ModelConfig) -> int:
    """Of all layers with softmax attention."""
    if model.compressed is not None:
        return _pooling_parameters(model, model.compressed)
    if model.latent is not None or model.query_rank:
        return model.softmax_layers * _compressed_parameters(model)
    total = 0
    for group in model.softmax_groups:
        shape, hidden = group.shape, model.hidden_size
        query, keys = shape.query_width, shape.kv_heads * shape.key_dim
        values = 0 if shape.values_are_keys else shape.kv_heads * shape.value_dim
        width = query * (1 + model.attention_gate)
        total += len(group.layers) * (
            width * (hidden + model.attention_bias)
            + hidden * (shape.output_width + model.o_proj_bias)
            + hidden * shape.heads * shape.gate_dim
            + shape.heads * shape.sinks
            + (hidden + model.attention_bias) * shape.index_width
            + (2 * shape.index_dim if shape.index_heads else 0)
        )
        total += len(group.with_keys) * (keys + values) * (hidden + model.attention_bias)
        if model.qk_norm and not model.qk_norm_weightless:
            whole = model.qk_norm_whole
            total += len(group.layers) * (query if whole else shape.key_dim)
            total += len(group.with_keys) * (keys if whole else shape.key_dim)
    return total


def _pooling_parameters(model: ModelConfig, shape: CompressedAttention) -> int:
    """Of all layers that see a compressed context, or the last tokens alone."""
    hidden = model.hidden_size
    total = model.softmax_layers * shape.parameters(hidden, model.num_attention_heads)
    for kind, _ in shape.ratios:
        total += len(model.layers_with(kind)) * shape.pool_weights(kind, shape.dim, hidden)
    if model.indexer is not None:
        total += model.num_indexer_layers * shape.indexer_parameters(model.indexer, hidden)
    return total


def _compressed_parameters(model: ModelConfig) -> int:
    """Of one layer whose queries, or keys and values, come from a latent."""
    hidden, heads, latent = model.hidden_size, model.num_attention_heads, model.latent
    query = heads * model.head_dim
    if latent is not None:
        down = latent.q_rank + latent.kv_rank + latent.rope_dim
        total = down * (hidden + model.attention_bias) + latent.q_rank + latent.kv_rank
        total += (latent.q_rank or hidden) * query + latent.kv_rank * heads * (
            latent.nope_dim + latent.v_dim
        )
        total += heads * (hidden * model.attention_shape.gate_dim + model.attention_sinks)
        return total + hidden * (heads * latent.v_dim + model.o_proj_bias)
    latent_width = model.query_rank + 2 * model.num_key_value_heads * model.head_dim
    return (
        latent_width * hidden
        + model.query_rank * (1 + query)
        + hidden * (query + model.o_proj_bias)
    )


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
    values = linear.value_heads * linear.value_dim
    into = linear.conv_channels + linear.gates * linear.value_heads
    into += {"kda": 0, "short_conv": 2 * values}.get(linear.kind, values)  # the output's gate
    projections = hidden * into + hidden * values + (into + hidden) * linear.bias
    projections += linear.gate_parameters(hidden)
    conv = linear.conv_channels * (linear.conv_kernel + linear.conv_bias)
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
    total = 0
    for op in operators(model, layout, dtypes):
        if isinstance(op, Moe):
            hidden, width = padded_experts(model, op)
            plain = op.hidden * op.moe_inter
            total += op.repeat * (op.weight_bytes * hidden * width // plain - op.weight_bytes)
    return total


def padded_experts(model: ModelConfig, op: Moe) -> tuple[int, int]:
    """The hidden size, and the width of one expert on a rank, in whole tiles of vLLM's kernel of
    MXFP4 weights; as they are with other weights.
    """
    if op.weight_dtype != "fp4" or model.format_of("experts").block != _MXFP4_BLOCK:
        return op.hidden, op.moe_inter
    rows, columns = MXFP4_TILE
    return -(-op.hidden // rows) * rows, -(-op.moe_inter // columns) * columns


class KvGroup(Struct, frozen=True):
    """Layers whose cache has the same life: all tokens of a sequence, or (`window` > 0) its last
    ones.
    """

    kind: LayerKind
    layers: int
    bytes_per_token: int
    """Of all its layers on one rank."""
    window: int
    block_tokens: int = 0
    """Of a block of its own; 0: as the other layers' blocks."""


POOL_TOKENS = 256
"""Of a block of compressed contexts, by vLLM's kernels."""
INDEXED_TOKENS = 64
"""Of a block that vLLM takes by default for sparse latent attention on NVIDIA's cards: what all its
kernels there take (`get_supported_kernel_block_sizes` of 0.33's backends).
"""
TOKENS_OF_WINDOWS = {"sliding": 64, "compressed": 8, "compressed_sparse": 4}
"""Of a block of the last tokens, and of what waits to be pooled (vLLM 0.33)."""
PAGE_ALIGNMENT = {True: 576, False: 512}
"""Bytes; whether the rows are packed in fp8."""


def kv_groups(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> tuple[KvGroup, ...]:
    """The groups of layers that cache keys and values, "full" first; layers of linear attention are
    in none.
    """
    if layout.domain == "ffn":
        return ()
    model = stage_model(model, layout)
    if model.compressed is not None:
        return _pooled_groups(model, model.compressed, dtypes)
    kinds: tuple[LayerKind, ...] = ("full", "block_sparse", "sliding", "chunked")
    everything = ("full", "block_sparse")
    return tuple(
        KvGroup(kind, layers, stored, 0 if kind in everything else model.window)
        for kind in kinds
        if (layers := _caching_layers(model, kind))
        for stored in [_kv_bytes_of(model, kind, layout, dtypes)]
    )


def _pooled_groups(
    model: ModelConfig, shape: CompressedAttention, dtypes: Dtypes
) -> tuple[KvGroup, ...]:
    """Rows of the compressed context and the indexer's keys, of all tokens; rows of the last tokens
    in every layer; and what waits to be pooled. Every rank holds all of it.

    As vLLM 0.33 packs them: a block of the pool holds POOL_TOKENS tokens of the context of all
    layers, each layer's page aligned, and as many layers as fit of what has a window. So each of
    these takes whole blocks, of fewer tokens (`v1/core/kv_cache_planning.py`; block sizes:
    DeepseekV4SWACache and CompressorStateCache).
    """
    block, context = _context_block(model, shape, dtypes)
    row = shape.row_bytes(dtypes.kv)
    kept = [("sliding", model.num_layers, row, model.window)]
    for kind, _ in shape.ratios:
        keys = model.indexer.dim if kind == "compressed_sparse" and model.indexer else 0
        waiting = shape.state_bytes(kind, shape.dim + keys)
        kept.append((kind, len(model.layers_with(kind)), waiting, shape.state_tokens(kind)))
    found = [KvGroup("full", context, -(-block // POOL_TOKENS), 0)] if context else []
    for name, layers, each, window in kept:
        if layers:
            tokens = TOKENS_OF_WINDOWS[name]
            tables = -(-layers * each * tokens // block) if block else 1
            each_token = -(-tables * block // tokens) if block else layers * each
            found.append(KvGroup("sliding", layers, each_token, window, tokens))
    return tuple(found)


def _context_block(
    model: ModelConfig, shape: CompressedAttention, dtypes: Dtypes
) -> tuple[int, int]:
    """Bytes of POOL_TOKENS tokens of the compressed context in all layers, and their number."""
    row, aligned = shape.row_bytes(dtypes.kv), PAGE_ALIGNMENT[dtype_bytes(dtypes.kv) == 1]
    total = number = 0
    for kind, ratio in shape.ratios:
        layers, rows = len(model.layers_with(kind)), POOL_TOKENS // ratio
        page = -(-rows * row // aligned) * aligned
        if kind == "compressed_sparse" and model.indexer is not None:
            page += -(-rows * model.indexer.cached_bytes // aligned) * aligned
        total, number = total + layers * page, number + layers
    return total, number


def _caching_layers(model: ModelConfig, kind: LayerKind) -> int:
    """Layers of a kind with keys and values of their own."""
    return sum(len(group.own.get(kind, ())) for group in model.softmax_groups)


def _kv_bytes_of(model: ModelConfig, kind: LayerKind, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes that one rank stores for a token in all layers of a kind, an indexer's included."""
    if model.latent is not None:
        keys = model.indexer.cached_bytes if model.indexer is not None else 0
        indexed = model.num_indexer_layers * keys * (kind == "full")
        return model.layers_of(kind) * model.latent_row_bytes(dtypes.kv) + indexed
    size = int(dtype_bytes(dtypes.kv))
    keys = model.indexer.cached_bytes if model.indexer is not None and kind == "block_sparse" else 0
    return sum(
        len(group.own.get(kind, ())) * (group.shape.on_rank(layout.tp).cached_width * size + keys)
        for group in model.softmax_groups
    )


def kv_bytes_per_layer(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes that one rank stores for a token in one layer of softmax attention, keys of an indexer
    aside; of layers of several shapes the most.
    """
    if model.latent is not None:
        return model.latent_row_bytes(dtypes.kv)  # every rank holds it whole
    if model.compressed is not None:
        return model.compressed.row_bytes(dtypes.kv)
    size = int(dtype_bytes(dtypes.kv))
    shapes = [group.shape for group in model.softmax_groups] or [model.attention_shape]
    return max(shape.on_rank(layout.tp).cached_width for shape in shapes) * size


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
