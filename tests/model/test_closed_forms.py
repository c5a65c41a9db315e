"""Operator totals against the closed forms of the papers: flops and bytes of a whole model per
token.
"""

import pytest

from llmsim.model import (
    Dtypes,
    Layout,
    ModelConfig,
    StateSpace,
    load_model,
    model_names,
    operators,
    padded_vocab_size,
    parameter_count,
)

BF16 = Dtypes()


def totals(model: ModelConfig) -> tuple[int, int]:
    """(flops of matrices per token, flops of attention per attended token); the head sees every
    token.
    """
    program = operators(model, Layout(), BF16)
    matrices = sum(op.flops_per_token * op.repeat for op in program if op.kind in ("gemm", "moe"))
    attention = sum(
        op.flops_per_context_token * op.repeat for op in program if op.kind == "attention"
    )
    return matrices, attention


def dense(name: str) -> bool:
    model = load_model(name)
    return (
        not model.num_experts
        and model.latent is None
        and model.linear is None
        and len(model.softmax_groups) == 1
        and model.softmax_layers == model.num_layers
    )


@pytest.mark.parametrize("name", [name for name in model_names() if dense(name)])
def test_a_dense_forward_pass_is_2_n_plus_attention(name: str) -> None:
    # Kaplan et al. 2020 (arXiv 2001.08361), section 2.1: C = 2 N + 2 n_layer n_ctx d_attn, where N
    # leaves out embeddings, biases and norms; theirs counts the causal half of 4 n_layer n_ctx
    # d_attn.
    model = load_model(name)
    matrices, attention = totals(model)
    d, heads = model.head_dim, model.num_attention_heads
    per_layer = model.hidden_size * d * (2 * heads + 2 * model.num_key_value_heads)
    per_layer += model.hidden_size * model.intermediate_size * (3 if model.mlp_gated else 2)
    assert matrices == 2 * (
        model.num_layers * per_layer + model.hidden_size * padded_vocab_size(model)
    )
    assert attention == 4 * model.num_layers * heads * d


def test_active_parameters_of_mixtures() -> None:
    # Technical reports and model cards; with or without the embedding, as the publisher counts.
    # Flops per token are twice what is active.
    published = {
        "deepseek-ai/DeepSeek-V3": 37e9, "mistralai/Mixtral-8x7B-v0.1": 12.9e9,
        "Qwen/Qwen3-235B-A22B": 22e9, "openai/gpt-oss-120b": 5.13e9, "openai/gpt-oss-20b": 3.61e9,
    }  # fmt: skip
    for name, figure in published.items():
        model = load_model(name)
        active = totals(model)[0] // 2
        embedding = model.vocab_size * model.hidden_size
        assert min(abs(count / figure - 1) for count in (active, active + embedding)) < 0.015, name


def test_latent_attention_counts_as_the_paper() -> None:
    # DeepSeek-V2 (arXiv 2405.04434), table 1: (d_c + d_h^R) l elements per token; attention scores
    # over d_h + d_h^R, values over d_h in prefill, both over the compressed cache in decode.
    model = load_model("deepseek-ai/DeepSeek-V3")
    attention = next(op for op in operators(model, Layout(), BF16) if op.kind == "attention")
    assert attention.kv_bytes_per_context_token == (512 + 64) * 2
    assert attention.flops_per_context_token == 2 * 128 * (128 + 64 + 128)
    assert attention.decode_flops_per_context_token == 2 * 128 * (512 + 64 + 512)


@pytest.mark.parametrize("name", [name for name in model_names() if dense(name)])
def test_a_decode_reads_every_weight_once(name: str) -> None:
    # Pope et al. 2022 (arXiv 2211.05102), section 2: a decode step loads all weights, and the cache
    # of its tokens.
    model = load_model(name)
    read = sum(op.weight_bytes * op.repeat for op in operators(model, Layout(), BF16))
    table, tables = (
        2 * padded_vocab_size(model) * model.hidden_size,
        1 if model.tie_word_embeddings else 2,
    )
    whole = 2 * parameter_count(model) + tables * (table - 2 * model.vocab_size * model.hidden_size)
    assert read - table * (2 - tables) == whole


def test_linear_attention_does_not_grow_with_context() -> None:
    model = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    program = {op.name: op for op in operators(model, Layout(), BF16)}
    assert program["linear_attention"].repeat == 36
    assert isinstance(program["linear_attention"], StateSpace)
    assert program["linear_attention"].flops_per_token == 7 * 32 * 128 * 128
    assert program["linear_state"].read_bytes_per_token == 32 * 128 * 128 * 2 + 3 * 8192 * 2
    assert program["attention"].repeat == 12
