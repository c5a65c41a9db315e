"""Sparse latent attention and state spaces: what they keep, read and compute, against closed forms
and publications.
"""

import json
from pathlib import Path

import pytest

from llmsim.config.errors import LlmsimError
from llmsim.model import (
    Dtypes,
    Layout,
    ModelConfig,
    Operator,
    kv_bytes_per_token,
    load_model,
    operators,
    parameter_count,
    state_bytes_per_sequence,
    weight_bytes,
)
from tests.model.families.configs import PUBLISHED, SPARSE, Config, shape


def loaded(folder: Path, config: Config) -> ModelConfig:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return load_model(str(folder))


def named(model: ModelConfig, layout: Layout | None = None) -> dict[str, Operator]:
    return {op.name: op for op in operators(model, layout or Layout(), Dtypes())}


def test_what_the_indexer_adds_to_deepseek_v3(tmp_path: Path) -> None:
    """Safetensors metadata: 685.40e9 against DeepSeek-V3's 684.53e9, 62 layers with the one that
    predicts.
    """
    sparse = loaded(tmp_path, SPARSE)
    extra = parameter_count(sparse) - parameter_count(load_model("deepseek-ai/DeepSeek-V3"))
    assert extra * 62 / 61 == pytest.approx(685_396_921_376 - 684_531_386_000, rel=1e-3)
    whole, held = (
        weight_bytes(one, Layout(), Dtypes())
        for one in (sparse, load_model("deepseek-ai/DeepSeek-V3"))
    )
    assert whole - held == 2 * extra


def test_a_token_in_the_caches_of_sparse_attention(tmp_path: Path) -> None:
    """132 B of the indexer; of the latents 1,152 B, or 656 in fp8 (vLLM's fp8_ds_mla)."""
    model = loaded(tmp_path, SPARSE)
    for layout in (Layout(), Layout(8)):
        assert kv_bytes_per_token(model, layout, Dtypes()) == 61 * (1152 + 132)
        assert kv_bytes_per_token(model, layout, Dtypes(kv="fp8")) == 61 * (656 + 132)


def test_sparse_attention_computes_what_the_paper_says(tmp_path: Path) -> None:
    """Every head of the indexer on every pair, attention on the latents of at most 2,048 tokens."""
    ops = named(loaded(tmp_path, SPARSE), Layout(8))
    indexer, attention = ops["indexer"], ops["attention_sparse"]
    assert (indexer.flops_per_context_token, indexer.kv_bytes_per_context_token) == (
        2 * 64 * 128,
        132,
    )
    assert indexer.window == 0
    heads = 128 // 8
    assert (
        attention.flops_per_context_token
        == attention.decode_flops_per_context_token
        == 2 * heads * (576 + 512)
    )
    assert (attention.window, attention.kv_bytes_per_context_token) == (2048, 1152)
    assert ops["indexer_q_proj"].flops_per_token == 2 * 1536 * 64 * 128
    assert ops["indexer_k_proj"].weight_bytes == 2 * 7168 * (128 + 64)


def test_layers_that_share_a_choice(tmp_path: Path) -> None:
    """GLM-5.2: one indexer for three or four layers; attention in all of them."""
    types = (["full"] * 3 + (["shared"] * 3 + ["full"]) * 19)[:61]
    model = loaded(tmp_path, SPARSE | {"indexer_types": types})
    ops, full = named(model), types.count("full")
    assert (ops["indexer"].repeat, ops["attention_sparse"].repeat) == (full, 61)
    assert kv_bytes_per_token(model, Layout(), Dtypes()) == 61 * 1152 + full * 132
    stage = named(model, Layout(stage_layers=(30, 31), stage=1))
    assert stage["indexer"].repeat == types[30:].count("full")
    with pytest.raises(LlmsimError, match="indexer_types"):
        loaded(tmp_path, SPARSE | {"indexer_types": ["shared"] * 61})


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_state_space_in_closed_form(tmp_path: Path, tp: int) -> None:
    """Mamba-2 (arXiv 2405.21060) of Nemotron 3 Nano: 64 heads of 64, 8 groups, 128 states, 4 taps;
    vLLM's shapes.
    """
    model = loaded(
        tmp_path, PUBLISHED["Nemotron-3-Nano-30B-A3B"][2] | {"mamba_ssm_cache_dtype": "float32"}
    )
    ops, heads, inner, groups = named(model, Layout(tp)), 64 // tp, 64 * 64 // tp, 8 // tp
    channels = inner + 2 * groups * 128
    assert (ops["linear_in_proj"].gemm_n, ops["linear_in_proj"].gemm_k) == (
        inner + channels + heads,
        2688,
    )
    assert ops["linear_attention"].flops_per_token == 5 * heads * 64 * 128
    state = heads * 64 * 128 * 4 + 3 * channels * 2
    assert (
        ops["linear_state"].read_bytes_per_token
        == ops["linear_state"].write_bytes_per_token
        == state
    )
    assert state_bytes_per_sequence(model, Layout(tp), Dtypes()) == 23 * state
    assert kv_bytes_per_token(model, Layout(tp), Dtypes()) == 6 * 2 * 128 * 2 * max(1, 2 // tp)
    assert [ops[name].repeat for name in ("linear_in_proj", "attention", "moe")] == [23, 6, 23]
    assert (
        sum(op.repeat for op in operators(model, Layout(tp), Dtypes()) if op.name == "layernorm")
        == 52
    )
    assert "norm_sum" not in ops and "gate_up_proj" not in ops


def test_one_group_is_on_every_rank_and_its_norm_spans_them(tmp_path: Path) -> None:
    model = loaded(tmp_path, PUBLISHED["Bamba-9B"][2])
    one, four = named(model), named(model, Layout(4))
    assert four["linear_in_proj"].gemm_n == (one["linear_in_proj"].gemm_n - 256) // 4 + 256
    assert "norm_sum" not in one
    assert (four["norm_sum"].collective, four["norm_sum"].collective_bytes_per_token) == (
        "all_reduce",
        4,
    )
    assert four["norm_sum"].repeat == 29


def test_side_by_side_both_are_summed(tmp_path: Path) -> None:
    model = loaded(tmp_path, PUBLISHED["Falcon-H1-7B"][2])
    assert (model.softmax_layers, model.layers_of("linear"), model.mixer_layers) == (44, 44, 44)
    reduced = [op.repeat for op in operators(model, Layout(2), Dtypes()) if op.name == "all_reduce"]
    assert reduced == [1, 44, 44, 44]  # embedding, state space and attention, MLP


def test_experts_in_a_latent_space(tmp_path: Path) -> None:
    ops = named(loaded(tmp_path, PUBLISHED["Nemotron-3-Super-120B-A12B"][2]), Layout(1, 8, 8))
    assert (ops["moe"].hidden, ops["moe"].flops_per_token) == (1024, 22 * 4 * 1024 * 2688 // 8)
    assert (ops["moe_latent_in"].gemm_n, ops["moe_latent_out"].gemm_k) == (1024, 1024)
    assert ops["dispatch"].collective_bytes_per_token == (1024 + 512) * 2
    assert ops["combine"].collective_bytes_per_token == 1024 * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"tp": 16, "num_attention_heads": 48, "num_key_value_heads": 16},
            "the 8 groups of its state spaces",
        ),
        ({"hybrid_override_pattern": "MM"}, "one entry for each of 56 layers"),
        ({"hybrid_override_pattern": "X" * 56}, "a layer is 'X'"),
        ({"mamba_num_heads": 12, "n_groups": 8}, "not a multiple"),
    ],
)
def test_what_cannot_be(tmp_path: Path, changes: Config, words: str) -> None:
    config = PUBLISHED["Nemotron-Nano-9B-v2"][2]
    tp = changes.pop("tp", 1)
    with pytest.raises(LlmsimError, match=words):
        operators(loaded(tmp_path, config | changes), Layout(tp), Dtypes())


def test_context_parallelism_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, SPARSE)
    with pytest.raises(LlmsimError, match="chooses among all"):
        operators(model, Layout(8, decode_context=2), Dtypes())


def test_position_embeddings_by_a_word(tmp_path: Path) -> None:
    config = PUBLISHED["granite-4.0-h-micro"][2]
    assert not loaded(tmp_path / "a", config).rotary
    assert loaded(tmp_path / "b", config | {"position_embedding_type": "rope"}).rotary
    dense = shape(
        2,
        512,
        512,
        8,
        8,
        1024,
        model_type="granitemoehybrid",
        layer_types=["attention"] * 2,
        num_local_experts=0,
        shared_intermediate_size=2048,
    )
    assert loaded(tmp_path / "c", dense).linear is None
