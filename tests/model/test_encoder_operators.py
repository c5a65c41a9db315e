"""What a vision tower computes for an image, against the sizes of its config."""

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from llmsim.model import Collective, Dtypes, EncoderAttention, Gemm, Layout, Operator, load_model
from llmsim.model.operators.encoder import EncoderOperators

QWEN3_VL = "Qwen/Qwen3-VL-30B-A3B-Instruct"
WIDTH, INNER, LAYERS, OUT, MERGED = 1152, 4304, 27, 2048, 4 * 1152
PAIR_TOKENS = 16384


def of(model: str | Path, tp: int = 1) -> tuple[Operator, ...]:
    tower = load_model(str(model)).vision
    assert tower is not None and tower.shapes is not None
    return EncoderOperators(tower, tower.shapes, Layout(tp=tp), Dtypes()).of_step(PAIR_TOKENS)


def test_matrices_are_those_of_the_config() -> None:
    """Four of attention and two of the MLP per layer; four mergers of two matrices."""
    shapes = {op.name: (op.gemm_k, op.gemm_n) for op in of(QWEN3_VL) if isinstance(op, Gemm)}
    assert shapes["encoder_patch"] == (3 * 2 * 16 * 16, WIDTH)
    assert shapes["encoder_qkv"] == (WIDTH, 3 * WIDTH)
    assert shapes["encoder_out"] == (WIDTH, WIDTH)
    assert shapes["encoder_up"] == (WIDTH, INNER)
    assert shapes["encoder_down"] == (INNER, WIDTH)
    mergers = [shape for name, shape in shapes.items() if "merger" in name]
    assert mergers == [(MERGED, MERGED), (MERGED, OUT)] * 4
    in_layers = [op for op in of(QWEN3_VL) if op.repeat == LAYERS]
    assert all(op.units == (4, 1) for op in in_layers if isinstance(op, Gemm))


def test_weights_of_the_matrices_are_those_that_take_memory() -> None:
    tower = load_model(QWEN3_VL).vision
    assert tower is not None
    gemms = [op for op in of(QWEN3_VL) if isinstance(op, Gemm) and op.name != "encoder_patch"]
    biases = 4 * (MERGED + OUT)
    weights = sum(op.gemm_k * op.gemm_n * op.repeat for op in gemms)
    assert weights + biases == tower.layer_parameters


def test_attention_sees_all_pairs_of_patches_of_an_image() -> None:
    """1,000 tokens are 4,000 patches: products of queries, keys and values, both ways."""
    (attention,) = (op for op in of(QWEN3_VL) if isinstance(op, EncoderAttention))
    assert (attention.feature, attention.repeat) == ("encoder_pairs", LAYERS)
    units = 1000 * 1000 / PAIR_TOKENS
    assert attention.flops_per_token * units == pytest.approx(4 * WIDTH * 4000 * 4000)


def test_ranks_share_layers_and_sum_up() -> None:
    one, two = of(QWEN3_VL), of(QWEN3_VL, tp=2)
    alone = {op.name: op for op in one}
    for op in two:
        if isinstance(op, Collective):
            assert op.collective == "all_reduce" and op.feature == "encoder_tokens"
        elif isinstance(op, Gemm) and op.name != "encoder_patch":
            assert op.flops_per_token == ceil(alone[op.name].flops_per_token / 2)
    sums = [op for op in two if isinstance(op, Collective)]
    assert sum(op.repeat for op in sums) == 2 * LAYERS + 4
    assert not any(isinstance(op, Collective) for op in one)
    whole = of(QWEN3_VL, tp=3)  # 16 heads: each rank has all of the tower
    assert [op.flops_per_token for op in whole] == [op.flops_per_token for op in one]


def config(folder: Path, **vision: Any) -> Path:
    """A multimodal model with these sizes of its tower."""
    text = {
        "model_type": "qwen2",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 4096,
        "vocab_size": 1000,
        "max_position_embeddings": 32768,
    }
    wrapper = {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    path = folder / "config.json"
    path.write_text(json.dumps({**wrapper, "text_config": text, "vision_config": vision}))
    return path


def test_most_layers_of_some_towers_see_windows(tmp_path: Path) -> None:
    """Qwen2.5-VL: four of 32 layers see the whole image, the others 8 x 8 patches."""
    path = config(
        tmp_path,
        model_type="qwen2_5_vl",
        depth=32,
        hidden_size=1280,
        intermediate_size=3420,
        num_heads=16,
        out_hidden_size=2048,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=2,
        window_size=112,
        fullatt_block_indexes=[7, 15, 23, 31],
    )
    full, windowed = (op for op in of(path) if isinstance(op, EncoderAttention))
    assert (full.feature, full.repeat) == ("encoder_pairs", 4)
    assert (windowed.feature, windowed.repeat) == ("encoder_tokens", 28)
    assert windowed.flops_per_token == 4 * 1280 * 4 * 64
    up = next(op for op in of(path) if op.name == "encoder_up")
    assert isinstance(up, Gemm) and up.gemm_n == 2 * 3420


def test_a_tower_whose_tokens_are_left_open_has_no_times() -> None:
    tower = load_model("google/gemma-3-27b-it").vision
    assert tower is not None and tower.shapes is None
