"""Parameter, weight and KV counts against what was published."""

import pytest

from llmsim.model import (
    Dtypes,
    Layout,
    kv_bytes_per_token,
    kv_groups,
    load_model,
    model_names,
    parameter_count,
    resolve_dtypes,
    state_bytes_per_sequence,
    weight_bytes,
)
from tests.model.published import (
    KV_BYTES_PER_TOKEN,
    PARAMETERS,
    WEIGHT_GIB,
    WHOLE_WITH_VISION,
    WITH_MORE,
)

GIB = 1 << 30


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    published, _ = PARAMETERS[name]
    assert parameter_count(load_model(name)) == pytest.approx(published, rel=0.005)


def test_at_least_twenty_presets_are_compared() -> None:
    assert len({load_model(name).source for name in (*PARAMETERS, *WHOLE_WITH_VISION)}) >= 30
    assert len(model_names()) >= 30


def test_every_preset_is_compared() -> None:
    compared = {load_model(name).source for name in (*PARAMETERS, *WHOLE_WITH_VISION, *WITH_MORE)}
    assert {name for name in model_names() if load_model(name).source not in compared} == set()


def siglip(width: int, inner: int, layers: int, patch: int, image: int) -> int:
    """SigLIP vision transformer: patch and position embeddings, blocks with biases,
    the final norm.
    """
    block = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    return (
        3 * patch * patch * width
        + width
        + (image // patch) ** 2 * width
        + layers * block
        + 2 * width
    )


def test_gemma_3_without_its_vision_tower() -> None:
    # Besides the tower: the projection to the text width and the norm in front of it (transformers,
    # Gemma3).
    vision = siglip(1152, 4304, 27, 14, 896) + 1152 * 5376 + 1152
    published, _ = WHOLE_WITH_VISION["google/gemma-3-27b-it"]
    assert parameter_count(load_model("google/gemma-3-27b-it")) == published - vision


def test_llama_4_scout_without_its_vision_tower() -> None:
    # transformers, Llama4VisionModel: 34 blocks of 1408 with an MLP of 5632, pixel-shuffle MLP 5632
    # -> 4096 -> 4096, projector 4096 -> 5120, patches of 14 in images of 336, class embedding,
    # norms before and after.
    width, inner = 1408, 5632
    block = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    vision = 3 * 14 * 14 * width + width + ((336 // 14) ** 2 + 1) * width + 34 * block + 4 * width
    vision += inner * 4096 + 4096 * 4096 + 4096 * 5120
    published, _ = WHOLE_WITH_VISION["meta-llama/Llama-4-Scout-17B-16E-Instruct"]
    text = parameter_count(load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct"))
    assert text == pytest.approx(published - vision, rel=1e-4)


@pytest.mark.parametrize("name", WEIGHT_GIB)
def test_weight_bytes(name: str) -> None:
    model = load_model(name)
    published, _ = WEIGHT_GIB[name]
    assert weight_bytes(model, Layout(), resolve_dtypes(model)) == pytest.approx(
        published * GIB, rel=0.005
    )


@pytest.mark.parametrize("name", KV_BYTES_PER_TOKEN)
def test_kv_bytes(name: str) -> None:
    published, _ = KV_BYTES_PER_TOKEN[name]
    assert kv_bytes_per_token(load_model(name), Layout(), Dtypes()) == published


def test_fp8_checkpoints_carry_their_block_scales() -> None:
    # Half the bytes of the linear layers, one fp32 scale per 128 x 128, and the wide rest
    # (embeddings, norms, router).
    wide, narrow = load_model("Qwen/Qwen3-32B"), load_model("Qwen/Qwen3-32B-FP8")
    whole = weight_bytes(wide, Layout(), resolve_dtypes(wide))
    linear = 2 * (64 * (5120 * (64 + 16) * 128 + 64 * 128 * 5120 + 3 * 5120 * 25600))
    expected = whole - linear // 2 + linear // 2 // (128 * 128) * 4
    assert weight_bytes(narrow, Layout(), resolve_dtypes(narrow)) == expected


def test_kv_groups_of_hybrids() -> None:
    gemma = load_model("google/gemma-3-27b-it")
    groups = {
        group.kind: (group.layers, group.window) for group in kv_groups(gemma, Layout(), Dtypes())
    }
    assert groups == {
        "full": (10, 0),
        "sliding": (52, 1024),
    }  # 5 local layers to 1 global, 62 layers
    scout = load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert [(g.kind, g.layers, g.window) for g in kv_groups(scout, Layout(), Dtypes())] == [
        ("full", 12, 0),
        ("chunked", 36, 8192),
    ]


def test_state_of_a_hybrid_with_linear_attention() -> None:
    # Qwen3-Next: 36 layers, 32 value heads of 128 x 128, and 3 inputs of the convolution in bf16.
    model = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    one_layer = 32 * 128 * 128 * 2 + 3 * (2 * 16 * 128 + 32 * 128) * 2
    assert state_bytes_per_sequence(model, Layout(), Dtypes()) == 36 * one_layer
    assert state_bytes_per_sequence(model, Layout(4), Dtypes()) == 9 * one_layer
    assert kv_bytes_per_token(model, Layout(), Dtypes()) == 12 * 2 * 2 * 256 * 2


def test_latent_cache_is_whole_on_every_rank() -> None:
    model = load_model("deepseek-ai/DeepSeek-V3")
    assert {kv_bytes_per_token(model, Layout(tp), Dtypes()) for tp in (1, 2, 4, 8)} == {70_272}
