"""Exact byte and parameter counts of a model and of one rank's share."""

from llmsim.model.layout import kv_heads_per_rank, rank_shape
from llmsim.model.operators import operators
from llmsim.model.types import Dtypes, Layout, ModelConfig, dtype_bytes


def parameter_count(model: ModelConfig) -> int:
    """Parameters of the published checkpoint: no vocabulary padding, tied embeddings once, no quantisation scales."""
    hidden = model.hidden_size
    query = model.num_attention_heads * model.head_dim
    qkv = query + 2 * model.num_key_value_heads * model.head_dim
    norm = hidden * (2 if model.norm_bias else 1)
    attention = qkv * (hidden + model.attention_bias) + hidden * (query + model.o_proj_bias)
    attention += 2 * model.head_dim * model.qk_norm
    width = model.intermediate_size
    dense = 3 * hidden * width + (2 * width + hidden) * model.mlp_bias
    experts = model.num_experts * (hidden + 3 * hidden * model.moe_intermediate_size)
    moe_layers = model.num_moe_layers
    layers = model.num_layers * (attention + 2 * norm) + (model.num_layers - moe_layers) * dense + moe_layers * experts
    head = model.vocab_size * (model.lm_head_bias if model.tie_word_embeddings else hidden + model.lm_head_bias)
    return model.vocab_size * hidden + layers + norm + head


def weight_bytes(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """Bytes of weights that one rank holds, as vLLM allocates them.

    The vocabulary is padded to 64; KV heads are replicated when tp exceeds them; norms, embeddings, lm_head and router
    keep the activation dtype in a quantised model; a tied lm_head is stored once. Raises InputError (layout).
    """
    total = sum(op.weight_bytes * op.repeat for op in operators(model, layout, dtypes))
    if model.tie_word_embeddings:
        total -= rank_shape(model, layout).vocab * model.hidden_size * int(dtype_bytes(dtypes.activation))
    return total


def kv_bytes_per_token(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
    """K and V bytes that one rank stores for one token: 2 x layers x KV heads per rank x head_dim x element size."""
    heads = kv_heads_per_rank(model, layout)
    return 2 * model.num_layers * heads * model.head_dim * int(dtype_bytes(dtypes.kv))
