"""Layers with a state of other kinds: Kimi delta attention, short convolutions and Mamba-1.

Counts of weights beside transformers' own: test_transformers_counts.py.
"""

from typing import Any

import pytest

from llmsim.model import (
    Dtypes,
    Gemm,
    Layout,
    StateSpace,
    kv_bytes_per_token,
    load_model,
    operators,
    parameter_count,
    state_bytes_per_sequence,
    weight_bytes,
)
from llmsim.model.families.hf_config import parse_config

KIMI = "moonshotai/Kimi-Linear-48B-A3B-Instruct"
JAMBA: dict[str, Any] = {
    "model_type": "jamba", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_dt_rank": 16, "vocab_size": 1024,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def jamba(**changes: Any) -> Any:
    return parse_config({**JAMBA, **changes}, name="m", source="config.json")


@pytest.mark.parametrize("name", [KIMI, "LiquidAI/LFM2-1.2B", "LiquidAI/LFM2-8B-A1B", "jamba"])
def test_operators_hold_what_is_counted(name: str) -> None:
    model = jamba() if name == "jamba" else load_model(name)
    assert weight_bytes(model, Layout(), Dtypes()) == 2 * parameter_count(model)
    whole = {op.name: op for op in operators(model, Layout(), Dtypes())}
    half = {op.name: op for op in operators(model, Layout(2), Dtypes())}
    shared = {"linear_gates_a_proj", "kv_a_proj", "moe_gate"}
    for one in whole.values():
        if isinstance(one, Gemm | StateSpace) and one.name not in shared:
            assert one.flops_per_token == 2 * half[one.name].flops_per_token, one.name


def test_kimi_keeps_a_matrix_in_fp32_and_a_latent_of_576() -> None:
    model = load_model(KIMI)
    assert (model.layers_of("linear"), model.layers_of("full")) == (20, 7)
    assert kv_bytes_per_token(model, Layout(4), Dtypes()) == 7 * 576 * 2
    matrices, inputs = 32 * 128 * 128 * 4, 3 * 3 * 32 * 128 * 2
    assert state_bytes_per_sequence(model, Layout(), Dtypes()) == 20 * (matrices + inputs)
    program = {op.name: op for op in operators(model, Layout(), Dtypes())}
    assert program["linear_attention"].flops_per_token == 7 * 32 * 128 * 128
    assert "rotary_emb" not in program  # positions are the states' alone


def test_a_short_convolution_keeps_its_last_two_inputs() -> None:
    model = load_model("LiquidAI/LFM2-1.2B")
    assert parameter_count(model) == 1_170_340_608
    assert state_bytes_per_sequence(model, Layout(), Dtypes()) == 10 * 2 * 2048 * 2
    assert kv_bytes_per_token(model, Layout(), Dtypes()) == 6 * 2 * 8 * 64 * 2
    names = [op.name for op in operators(model, Layout(), Dtypes())]
    assert "linear_attention" not in names and "linear_gates" in names


def test_mamba_1_sums_what_it_selects_over_ranks() -> None:
    model = jamba()
    assert model.layers_of("linear") == 7 and model.layer_kinds[4] == "full"
    assert model.moe_layers == (False, True) * 4
    inner = 512
    assert state_bytes_per_sequence(model, Layout(2), Dtypes()) == 7 * (inner // 2) * (16 + 3) * 2
    program = {op.name: op for op in operators(model, Layout(2), Dtypes())}
    assert program["selection_sum"].collective_bytes_per_token == (16 + 2 * 16) * 2
    assert program["linear_attention"].flops_per_token == 7 * (inner // 2) * 16
    assert not any(jamba(num_experts=1, num_experts_per_tok=1).moe_layers)


def test_layers_may_be_numbered_from_one() -> None:
    kinds = load_model(KIMI).layer_kinds
    assert [i for i, kind in enumerate(kinds) if kind == "full"] == [3, 7, 11, 15, 19, 23, 26]
