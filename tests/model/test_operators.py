"""Operators, byte counts and layouts: closed forms, conservation over ranks, and the rules that
refuse a layout.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from llmsim.config.errors import InputError
from llmsim.model import (
    Collective,
    Dtypes,
    Gemm,
    Layout,
    ModelConfig,
    Operator,
    dtype_bytes,
    kv_bytes_per_token,
    layout_problem,
    load_model,
    model_names,
    operators,
    padded_vocab_size,
    parameter_count,
    weight_bytes,
)
from tests.model.fp32 import in_fp32

BF16 = Dtypes()
FP8 = Dtypes(weight="fp8")
LLAMA = load_model("meta-llama/Llama-3.1-8B")
QWEN = load_model("Qwen/Qwen3-8B")
MOE = load_model("Qwen/Qwen3-30B-A3B")


def by_name(program: tuple[Operator, ...], name: str) -> Operator:
    return next(op for op in program if op.name == name)


def test_llama_weights_to_the_byte() -> None:
    assert weight_bytes(LLAMA, Layout(), BF16) == 16_060_522_496


@pytest.mark.parametrize("name", model_names())
def test_one_rank_holds_exactly_the_parameters(name: str) -> None:
    # The sum over operators and the closed form are written independently; one vocabulary is padded
    # (granite's).
    model = load_model(name)
    tables = 1 if model.tie_word_embeddings else 2
    padding = (padded_vocab_size(model) - model.vocab_size) * model.hidden_size * tables
    held = parameter_count(model) + padding + model.twice_loaded + in_fp32(model)
    assert weight_bytes(model, Layout(), BF16) == 2 * held


def test_order_and_parts_of_a_dense_layer() -> None:
    names = [op.name for op in operators(LLAMA, Layout(), BF16)]
    assert names == [
        *("embedding", "layernorm", "qkv_proj", "rotary_emb", "attention", "o_proj", "layernorm"),
        *("gate_up_proj", "act_fn", "down_proj", "final_layernorm", "lm_head", "sampler"),
    ]


def test_order_of_an_moe_layer_with_tp() -> None:
    names = [op.name for op in operators(MOE, Layout(4, 4), BF16)]
    assert names == [
        *(
            "embedding",
            "all_reduce",
            "layernorm",
            "qkv_proj",
            "qk_norm",
            "rotary_emb",
            "attention",
            "o_proj",
        ),
        *("all_reduce", "layernorm", "moe_gate", "moe", "all_reduce"),
        *("final_layernorm", "lm_head", "logits_gather", "sampler"),
    ]


def test_fused_shapes_of_llama_70b_on_four_ranks() -> None:
    program = operators(load_model("llama-3.1-70b"), Layout(4), BF16)
    shapes = {op.name: (op.gemm_n, op.gemm_k, op.repeat) for op in program if op.kind == "gemm"}
    assert shapes == {
        "qkv_proj": ((64 + 2 * 8) * 128 // 4, 8192, 80),
        "o_proj": (8192, 2048, 80),
        "gate_up_proj": (2 * 28672 // 4, 8192, 80),
        "down_proj": (8192, 7168, 80),
        "lm_head": (128256 // 4, 8192, 1),
    }
    attention = by_name(program, "attention")
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (16, 2, 128)
    assert attention.kv_bytes_per_context_token == 2 * 2 * 128 * 2
    assert attention.flops_per_context_token == 4 * 16 * 128
    reduce = by_name(program, "all_reduce")
    assert (reduce.collective, reduce.collective_bytes_per_token, reduce.feature) == (
        "all_reduce",
        16384,
        "tokens",
    )
    gather = by_name(program, "logits_gather")
    assert (gather.collective_bytes_per_token, gather.feature) == (2 * 128256, "sequences")


def test_bytes_and_flops_by_the_documented_formulas() -> None:
    h, i, v, rotated = 4096, 14336, 128256, (32 + 8) * 128
    expected = {
        "embedding": (4 + 2 * h, 2 * h, 0),
        "layernorm": (4 * h, 4 * h, 5 * h),
        "qkv_proj": (2 * h, 2 * 6144, 2 * 6144 * h),
        "rotary_emb": (2 * (rotated + 128), 2 * rotated, 3 * rotated),
        "attention": (2 * 6144, 2 * h + 2 * 8 * 128 * 2, 0),
        "o_proj": (2 * h, 2 * h, 2 * h * h),
        "gate_up_proj": (2 * h, 4 * i, 4 * i * h),
        "act_fn": (4 * i, 2 * i, 5 * i),
        "down_proj": (2 * i, 2 * h, 2 * i * h),
        "final_layernorm": (4 * h, 4 * h, 5 * h),
        "lm_head": (2 * h, 2 * v, 2 * v * h),
        "sampler": (6 * v, 4 * v, 2 * v),
    }
    for op in operators(LLAMA, Layout(), BF16):
        assert (op.read_bytes_per_token, op.write_bytes_per_token, op.flops_per_token) == expected[
            op.name
        ], op.name
    norm = by_name(operators(QWEN, Layout(2), BF16), "qk_norm")
    heads = (16 + 4) * 128
    assert (norm.read_bytes_per_token, norm.flops_per_token, norm.weight_bytes) == (
        2 * heads,
        4 * heads,
        2 * 256,
    )


def test_expert_traffic_is_the_expected_one() -> None:
    moe = by_name(operators(MOE, Layout(4, 4), BF16), "moe")
    assert moe.read_bytes_per_token == 8 * (2 * 2048 + 3 * 768) * 2 // 4
    assert moe.write_bytes_per_token == 8 * (2048 + 3 * 768) * 2 // 4 + 2 * 2048
    assert moe.flops_per_token == 8 * 6 * 2048 * 768 // 4
    assert (moe.topk, moe.hidden) == (8, 2048)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    per_rank = [kv_bytes_per_token(MOE, Layout(tp), BF16) for tp in (1, 2, 4, 8, 16)]
    one_head = 2 * 48 * 128 * 2
    assert per_rank == [4 * one_head, 2 * one_head, one_head, one_head, one_head]
    shards = [by_name(operators(MOE, Layout(tp), BF16), "qkv_proj").gemm_n for tp in (4, 8)]
    assert shards == [(8 + 2) * 128, (4 + 2) * 128]


def test_fp8_halves_the_linear_weights_only() -> None:
    wide, narrow = operators(MOE, Layout(), BF16), operators(MOE, Layout(), FP8)
    quantised = {
        a.name for a, b in zip(wide, narrow, strict=True) if b.weight_bytes != a.weight_bytes
    }
    assert quantised == {"qkv_proj", "o_proj", "moe"}
    for a, b in zip(wide, narrow, strict=True):
        if a.name in quantised:
            assert (2 * b.weight_bytes, b.weight_dtype) == (a.weight_bytes, "fp8")


def test_block_scales_are_counted() -> None:
    blocks = replace(LLAMA, weight_dtype="fp8", weight_block=(128, 128))
    scales = weight_bytes(blocks, Layout(), FP8) - weight_bytes(LLAMA, Layout(), FP8)
    linear_blocks = (6144 * 4096 + 4096 * 4096 + 3 * 14336 * 4096) // (128 * 128)
    assert scales == 32 * 4 * linear_blocks


def test_fp8_cache_halves_the_kv_bytes() -> None:
    assert 2 * kv_bytes_per_token(LLAMA, Layout(), Dtypes(kv="fp8")) == kv_bytes_per_token(
        LLAMA, Layout(), BF16
    )


def test_tied_embeddings_are_stored_once_but_read_twice() -> None:
    tied = replace(LLAMA, tie_word_embeddings=True)
    matrix = 2 * 128256 * 4096
    assert weight_bytes(LLAMA, Layout(), BF16) - weight_bytes(tied, Layout(), BF16) == matrix
    assert by_name(operators(tied, Layout(), BF16), "lm_head").weight_bytes == matrix
    assert weight_bytes(tied, Layout(), BF16) == 2 * parameter_count(tied)


def test_vocabulary_is_padded_to_64_on_the_device_only() -> None:
    odd = replace(LLAMA, vocab_size=32_001)
    assert by_name(operators(odd, Layout(), BF16), "lm_head").gemm_n == 32_064
    assert parameter_count(odd) == parameter_count(LLAMA) - 2 * 4096 * (128_256 - 32_001)


def test_biases_are_counted_once_per_rank() -> None:
    biased = replace(LLAMA, attention_bias=True, o_proj_bias=True, mlp_bias=True)
    extra = 32 * (6144 + 4096 + 2 * 14336 + 4096)
    assert parameter_count(biased) - parameter_count(LLAMA) == extra
    assert weight_bytes(biased, Layout(), BF16) - weight_bytes(LLAMA, Layout(), BF16) == 2 * extra


def test_dense_and_moe_layers_in_one_model() -> None:
    mixed = replace(MOE, moe_layers=(False,) * 8 + (True,) * 40)
    repeats = {op.name: op.repeat for op in operators(mixed, Layout(), BF16)}
    assert (repeats["attention"], repeats["down_proj"], repeats["moe"], repeats["moe_gate"]) == (
        48,
        8,
        40,
        40,
    )
    assert weight_bytes(mixed, Layout(), BF16) == 2 * parameter_count(mixed)


@pytest.mark.parametrize("layout", [Layout(2), Layout(4), Layout(4, 2), Layout(4, 4)])
def test_expert_weights_and_work_split_evenly(layout: Layout) -> None:
    whole = by_name(operators(MOE, Layout(), BF16), "moe")
    share = by_name(operators(MOE, layout, BF16), "moe")
    assert share.weight_bytes * layout.tp == whole.weight_bytes
    assert share.flops_per_token * layout.tp == whole.flops_per_token
    assert share.experts_local * layout.ep == share.experts_total == 128
    assert share.moe_inter == 768 * layout.ep // layout.tp


shapes = st.builds(
    lambda layers, kv, group, dim, width, vocab, flags: replace(
        LLAMA,
        num_layers=layers,
        num_key_value_heads=kv,
        num_attention_heads=kv * group,
        head_dim=dim,
        hidden_size=64 * dim,
        intermediate_size=16 * width,
        vocab_size=vocab,
        moe_layers=(False,) * layers,
        tie_word_embeddings=flags[0],
        attention_bias=flags[1],
        qk_norm=flags[2],
        norm_bias=flags[3],
    ),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([64, 96, 128]),
    st.integers(1, 900),
    st.integers(100, 200_000),
    st.tuples(*[st.booleans()] * 4),
)


@given(shapes, st.sampled_from([1, 2, 4, 8]), st.sampled_from(["bf16", "fp8"]))
def test_ranks_together_hold_the_model_and_what_is_replicated(
    model: ModelConfig, tp: int, weight: str
) -> None:
    layout, dtypes = Layout(tp), Dtypes(weight=weight)
    if layout_problem(model, layout):
        with pytest.raises(InputError, match="cannot run with tp"):
            operators(model, layout, dtypes)
        return
    alone, shared_out = (
        weight_bytes(model, Layout(), dtypes),
        tp * weight_bytes(model, layout, dtypes),
    )
    norms = model.hidden_size * (2 if model.norm_bias else 1)
    norm_bytes = 2 * (
        norms * (2 * model.num_layers + 1) + 2 * model.head_dim * model.qk_norm * model.num_layers
    )
    copies = max(1, tp // model.num_key_value_heads) - 1
    kv_width = 2 * model.num_key_value_heads * model.head_dim
    kv_bytes = (
        kv_width
        * (model.hidden_size * int(dtype_bytes(weight)) + 2 * model.attention_bias)
        * model.num_layers
    )
    assert shared_out == alone + (tp - 1) * norm_bytes + copies * kv_bytes


@given(shapes, st.sampled_from([1, 2, 4]))
def test_all_operators_are_well_formed(model: ModelConfig, tp: int) -> None:
    if layout_problem(model, Layout(tp)):
        return
    for op in operators(model, Layout(tp), BF16):
        assert op.repeat >= 1
        assert (op.kind == "gemm") == isinstance(op, Gemm)
        assert (op.kind == "collective") == isinstance(op, Collective)
        if isinstance(op, Gemm):
            assert op.gemm_n > 0 and op.gemm_k > 0
        if isinstance(op, Collective):
            assert op.collective and op.collective_bytes_per_token > 0
        assert (op.weight_dtype == "") == (op.weight_bytes == 0)
        assert op.kind == "collective" or op.write_bytes_per_token > 0
        assert all(
            isinstance(value, int)
            for name, value in asdict(op).items()
            if name.endswith(("bytes", "_token"))
        )


@pytest.mark.parametrize(
    ("model", "layout", "rule"),
    [
        (LLAMA, Layout(3), "tp must divide num_attention_heads 32"),
        (LLAMA, Layout(0), "at least 1"),
        (LLAMA, Layout(2, 2), "no experts, so ep must be 1"),
        (
            replace(LLAMA, num_attention_heads=36, num_key_value_heads=6),
            Layout(4),
            "num_key_value_heads 6 or be a",
        ),
        (
            replace(LLAMA, num_attention_heads=36, num_key_value_heads=3),
            Layout(4),
            "num_key_value_heads 3 or be a",
        ),
        (
            replace(LLAMA, intermediate_size=14337),
            Layout(2),
            "tp must divide intermediate_size 14337",
        ),
        (MOE, Layout(2, 4), "ep must divide tp, so raise tp to a multiple of 4, or lower ep"),
        (replace(MOE, num_experts=6), Layout(4, 4), "ep must divide the number of experts 6"),
        (replace(MOE, moe_intermediate_size=770), Layout(4), "intermediate size 770"),
        (replace(MOE, weight_block=(128, 128)), Layout(4), "quantisation blocks of 128 x 128"),
    ],
)
def test_broken_rules_are_named(model: ModelConfig, layout: Layout, rule: str) -> None:
    with pytest.raises(InputError) as error:
        weight_bytes(model, layout, BF16)
    assert rule in str(error.value)
    assert model.name in str(error.value)


def test_block_quantised_experts_fit_when_spread() -> None:
    assert layout_problem(replace(MOE, weight_block=(128, 128)), Layout(4, 4)) == ""
