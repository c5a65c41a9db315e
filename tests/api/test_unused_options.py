"""Options of images, windows and states that nothing of a run has: a note names each."""

from typing import Any

import pytest

import llmsim

LOAD = "synthetic:n=4,rate=10,input=fixed:64,output=fixed:8"
PLAIN, WINDOWS, STATES = (
    "meta-llama/Llama-3.1-8B",
    "openai/gpt-oss-20b",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
)
IMAGES = "no request of the trace has encoder_inputs"


def unused(load: Any = LOAD, model: str = PLAIN, **options: Any) -> list[str]:
    """What the notes of a run say of options without effect."""
    cluster = llmsim.Cluster.build(model, "H100")
    result = llmsim.run(cluster, load, cost_source="roofline", **options)
    return [note for note in result.notes if " changes nothing: " in note]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("max_num_encoder_input_tokens", 4096, "4096"),
        ("encoder_cache_size", 8192, "8192"),
        ("disable_chunked_mm_input", True, "true"),
    ],
)
def test_options_of_images_need_images(option: str, value: Any, said: str) -> None:
    asked = {option: value, "engine_profile": "vllm-0.33"}
    assert unused(**asked) == [f"{option} {said} changes nothing: {IMAGES}"]
    image = llmsim.Request(0.0, 64, 8, encoder_inputs=[{"offset": 0, "tokens": 32, "id": "a"}])
    assert unused([image], **asked) == []


@pytest.mark.parametrize(
    ("option", "value", "lacks"),
    [
        ("swa_full_tokens_ratio", 0.5, "windows in a pool of their own"),
        ("mamba_full_memory_ratio", 0.5, "states"),
        ("max_mamba_cache_size", 90, "states"),
        ("mamba_radix_cache_strategy", "extra_buffer", "states"),
        ("mamba_track_interval", 64, "states"),
    ],
)
def test_options_of_pools_need_a_model_with_them(option: str, value: Any, lacks: str) -> None:
    asked = {option: value, "scheduler": "sglang"}
    [note] = unused(**asked)
    assert note.startswith(option) and note.endswith(f"changes nothing: {PLAIN} has no {lacks}")
    assert unused(model=STATES if lacks == "states" else WINDOWS, **asked) == []


def test_prefixes_of_windowed_layers_need_windows() -> None:
    asked = {"prefix_cache_retention_interval": 512, "engine_profile": "vllm-0.33"}
    assert unused(**asked) == [
        f"prefix_cache_retention_interval 512 changes nothing: {PLAIN} has no windows or states"
    ]
    assert unused(model=WINDOWS, **asked) == []


def test_defaults_are_nobodys_options() -> None:
    for profile in ("vllm-0.24", "vllm-0.33"):
        assert unused(engine_profile=profile) == []
    assert unused(scheduler="sglang") == []
