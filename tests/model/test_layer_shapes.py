"""Layers of several shapes, and keys and values that layers share: weights, KV and operators.
The counts of weights beside them were taken from transformers 5.20 (models on torch's meta device).
"""

from typing import Any

import pytest

from llmsim.config.errors import InputError, NotYetError
from llmsim.model import (
    Attention,
    Dtypes,
    Layout,
    kv_bytes_per_token,
    kv_groups,
    load_model,
    operators,
    parameter_count,
    weight_bytes,
)
from llmsim.model.families.hf_config import parse_config
from llmsim.model.memory.hybrid_groups import kv_tables

MIMO: dict[str, Any] = {
    "model_type": "mimo_v2_flash", "hidden_size": 512, "intermediate_size": 1024,
    "moe_intermediate_size": 256, "num_hidden_layers": 13, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 96, "v_head_dim": 64, "n_routed_experts": 16,
    "num_experts_per_tok": 2, "attention_bias": True, "vocab_size": 1001, "sliding_window": 128,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text", "hidden_size": 2304, "intermediate_size": 9216, "head_dim": 256,
    "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 262144, "max_position_embeddings": 131072, "sliding_window": 512,
    "global_head_dim": 512, "torch_dtype": "bfloat16",
}  # fmt: skip


def parsed(base: dict[str, Any], **changes: Any) -> Any:
    return parse_config({**base, **changes}, name="m", source="config.json")


def test_weights_are_those_of_transformers() -> None:
    mimo = parsed(MIMO)
    corrections = mimo.num_moe_layers * 16  # buffers of the routers, which its count leaves out
    assert parameter_count(mimo) - corrections == 99_042_656
    shared = {"num_kv_shared_layers": 4, "use_double_wide_mlp": True, "attention_bias": True}
    assert parameter_count(parsed(GEMMA4, **shared)) == 1_797_977_088
    wide = {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "num_key_value_heads": 8}
    assert parameter_count(parsed(GEMMA4, **wide)) == 1_599_722_752
    experts = {
        "enable_moe_block": True, "num_experts": 16, "top_k_experts": 4,
        "moe_intermediate_size": 256, "tie_word_embeddings": False,
    }  # fmt: skip
    assert parameter_count(parsed(GEMMA4, **experts)) == 2_510_964_160
    inputs = {"hidden_size_per_layer_input": 128, "vocab_size_per_layer_input": 1000}
    every = {**inputs, "num_kv_shared_layers": 6, "use_double_wide_mlp": True}
    assert parameter_count(parsed(GEMMA4, **every)) == 1_928_047_232


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_shared_layers": 4, "use_double_wide_mlp": True},
        {"hidden_size_per_layer_input": 128, "vocab_size_per_layer_input": 1024},
        {"enable_moe_block": True, "num_experts": 16, "top_k_experts": 4,
         "moe_intermediate_size": 256},
    ],
)  # fmt: skip
def test_operators_hold_what_is_counted(changes: dict[str, Any]) -> None:
    model = parsed(GEMMA4, **changes)
    assert weight_bytes(model, Layout(), Dtypes()) == 2 * parameter_count(model)
    halves = weight_bytes(model, Layout(2), Dtypes())
    assert parameter_count(model) <= halves < 1.2 * parameter_count(model)


def test_each_kind_caches_its_own_width() -> None:
    model = load_model("XiaomiMiMo/MiMo-V2-Flash")
    full, sliding = kv_groups(model, Layout(), Dtypes())
    assert (full.layers, full.bytes_per_token) == (9, 9 * 4 * (192 + 128) * 2)
    assert (sliding.layers, sliding.bytes_per_token) == (39, 39 * 8 * (192 + 128) * 2)
    on_eight = kv_bytes_per_token(model, Layout(8), Dtypes())
    # Four heads of the full layers, each on two ranks.
    assert on_eight == (9 + 39) * (192 + 128) * 2
    assert not model.caches_alike


def test_layers_that_share_keys_cache_nothing() -> None:
    model = parsed(GEMMA4, num_kv_shared_layers=4)
    full, sliding = kv_groups(model, Layout(), Dtypes())
    assert (full.layers, sliding.layers) == (1, 7)
    assert full.bytes_per_token == 2 * 4 * 512 * 2
    assert sliding.bytes_per_token == 7 * 2 * 4 * 256 * 2
    program = operators(model, Layout(), Dtypes())
    attends = {op.name: op for op in program if isinstance(op, Attention)}
    assert (attends["attention"].repeat, attends["attention_sliding"].repeat) == (2, 10)
    outputs = 8 * 512 * 2
    assert attends["attention"].write_bytes_per_token == outputs + full.bytes_per_token // 2
    queries = next(op for op in program if op.name == "q_proj_full")
    assert (queries.repeat, queries.in_layers) == (1, (11,))


def test_sinks_and_gates_belong_to_their_layers() -> None:
    program = operators(parsed(MIMO), Layout(), Dtypes())
    sinks = {op.name: op.weight_bytes for op in program if isinstance(op, Attention)}
    assert sinks == {"attention": 0, "attention_sliding": 16 * 2}
    gates = operators(load_model("stepfun-ai/Step-3.5-Flash"), Layout(), Dtypes())
    widths = {op.name: op.gemm_n for op in gates if op.name.startswith("gate_proj")}
    assert widths == {"gate_proj": 64, "gate_proj_sliding": 96}


def test_stages_keep_layers_beside_their_keys() -> None:
    model = parsed(GEMMA4, num_kv_shared_layers=4)
    with pytest.raises(InputError, match="earlier layer in another stage"):
        operators(model, Layout(stage_layers=(8, 4), stage=1), Dtypes())
    assert operators(model, Layout(stage_layers=(5, 7), stage=1), Dtypes())


def test_layers_of_a_list_differ_one_by_one() -> None:
    config = {
        **MIMO, "model_type": "laguna", "num_hidden_layers": 4, "num_experts": 8,
        "num_attention_heads_per_layer": [16, 32, 32, 8], "gating": "per-element",
    }  # fmt: skip
    model = parsed(config)
    assert [one.shape.heads for one in model.softmax_groups] == [16, 32, 8]
    four = parsed(config, num_attention_heads_per_layer=[16, 32, 8, 4])
    assert len(four.softmax_groups) == 4
    seven = {"num_attention_heads_per_layer": [4, 8, 12, 16, 20, 24, 28], "num_key_value_heads": 4}
    with pytest.raises(NotYetError, match="attend in 7 ways"):
        parsed({**config, "num_hidden_layers": 7}, **seven)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_kv_shared_layers": 12}, "earlier layers of their kind, which there are not"),
        ({"per_layer_config": {"3": {"rms_norm_eps": 1}}}, 'changes "rms_norm_eps" in layer 3'),
        ({"per_layer_config": [1]}, "object of objects"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
    ],
)
def test_wrong_shapes_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, NotYetError), match=words):
        parsed(GEMMA4, **changes)


@pytest.mark.parametrize(
    ("name", "tp", "tables", "blocks"),
    [
        ("XiaomiMiMo/MiMo-V2-Flash", 1, [(0, 9, 32), (128, 39, 16)], 58_254),
        ("XiaomiMiMo/MiMo-V2-Flash", 8, [(0, 9, 16), (128, 39, 16)], 466_033),
        ("google/gemma-4-26B-A4B-it", 1, [(1024, 25, 16), (0, 5, 32)], 65_536),
        ("google/gemma-4-31B-it", 1, [(1024, 50, 16), (0, 10, 32)], 16_384),
        ("openai/gpt-oss-20b", 1, [(128, 12, 16), (0, 12, 16)], 109_226),
    ],
)
def test_tables_have_block_sizes_of_their_own(
    name: str, tp: int, tables: list[tuple[int, int, int]], blocks: int
) -> None:
    """Of 40 GiB, as vLLM 0.33 divides them; a rank of eight has one head of every layer."""
    found = kv_tables(load_model(name), Layout(tp), Dtypes(), 16)
    rows = zip(found.windows, found.layers, found.block_sizes, strict=True)
    layers: dict[tuple[int, int], int] = {}
    for window, number, size in rows:
        layers[window, size] = layers.get((window, size), 0) + number
    assert layers == {(window, size): number for window, number, size in tables}
    assert 40 * (1 << 30) // found.block_bytes == blocks
