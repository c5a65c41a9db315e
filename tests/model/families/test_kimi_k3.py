"""Kimi K3: attention residuals, a gate of full rank, gated latent attention, experts in a latent
space that is normed.
"""

from fractions import Fraction

from llmsim.model import (
    Collective,
    Dtypes,
    Gemm,
    Layout,
    ResidualNorm,
    load_model,
    operators,
    parameter_count,
)
from llmsim.model.families.hf_config import parse_config
from tests.model.fp32 import in_fp32

K3 = "moonshotai/Kimi-K3"
HIDDEN, HEADS, DIM = 7168, 96, 128


def test_weights_by_the_widths_of_vllms_modules() -> None:
    wide = HEADS * DIM
    delta = 4 * HIDDEN * wide + HIDDEN * (DIM + HEADS) + DIM * wide  # q, k, v, gate; f_a, beta; f_b
    delta += wide + HEADS + 3 * wide * 4 + DIM + wide * HIDDEN  # dt, A, convolution, norm, out
    latent = HIDDEN * (1536 + 512 + 64) + 1536 + 512 + 1536 * HEADS * 192 + 512 * HEADS * 256
    latent += 2 * HIDDEN * wide  # gate and out
    experts = 896 * (HIDDEN + 1 + 3 * 3584 * 3072) + 3 * HIDDEN * 2 * 3072
    experts += 2 * HIDDEN * 3584 + 3584
    layers = 69 * delta + 24 * latent + 92 * experts + 3 * HIDDEN * 33792 + 93 * 6 * HIDDEN
    model = load_model(K3)
    assert parameter_count(model) == layers + 2 * 163840 * HIDDEN + 3 * HIDDEN
    assert in_fp32(model) == 0
    assert model.num_moe_layers == 92


def test_only_the_experts_are_narrow() -> None:
    model = load_model(K3)
    assert model.plain_parts == {"attention", "attention_out", "linear", "mlp", "shared"}
    assert model.format_of("experts").dtype == "fp4"


def test_halves_attend_to_residuals_before_them() -> None:
    model = load_model(K3)
    # Layer 0 keeps the embedding, which its FFN sees already; layers 1 to 11 see it twice.
    assert model.residual_sources[:14] == (1, *(2,) * 11, 3, 4)
    assert model.sources_per_norm == Fraction(sum(model.residual_sources), 2 * 93)
    norm = next(op for op in operators(model, Layout(), Dtypes()) if isinstance(op, ResidualNorm))
    plain = 2 * HIDDEN * 2
    kept = norm.read_bytes_per_token - plain
    assert kept == 2 * -(-HIDDEN * sum(model.residual_sources) // (2 * 93))
    assert norm.weight_bytes == 3 * HIDDEN * 2


def test_stages_send_what_is_kept() -> None:
    model = load_model(K3)
    layers = (47, 46)
    stages = [operators(model, Layout(stage_layers=layers, stage=one), Dtypes()) for one in (0, 1)]
    sent = next(op for op in stages[0] if op.name == "stage_send")
    assert isinstance(sent, Collective)
    assert sent.collective_bytes_per_token == (1 + 4) * HIDDEN * 2  # kept at 0, 12, 24, 36
    whole = operators(model, Layout(), Dtypes())
    for name in ("gate_proj", "linear_gate_proj", "moe_latent_norm"):
        there = sum(op.repeat for ops in stages for op in ops if op.name == name)
        assert there == sum(op.repeat for op in whole if op.name == name) > 0


def test_the_gate_of_full_rank_is_one_matrix() -> None:
    ops = {op.name: op for op in operators(load_model(K3), Layout(8, 8), Dtypes())}
    gate, decay = ops["linear_gate_proj"], ops["linear_decay_b_proj"]
    assert isinstance(gate, Gemm)
    assert isinstance(decay, Gemm)
    assert (gate.gemm_n, gate.gemm_k) == (HEADS * DIM // 8, HIDDEN)
    assert (decay.gemm_n, decay.gemm_k) == (HEADS * DIM // 8, DIM)
    assert "linear_gate_b_proj" not in ops


def test_without_kept_residuals_nothing_is_attended_to() -> None:
    fields = {
        "model_type": "kimi_linear", "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 640, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "dtype": "bfloat16",
        "linear_attn_config": {"full_attn_layers": [4], "num_heads": 4, "head_dim": 32},
    }  # fmt: skip
    model = parse_config(fields, name="m", source="config.json")
    assert model.residual_sources == ()
    assert model.sources_per_norm == 0
