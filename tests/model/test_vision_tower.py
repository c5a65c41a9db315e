"""Vision towers: their weights are those of transformers' own modules, and take memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.model.families.hf_config import parse_config
from llmsim.model.families.vision_tower import vision_tower
from llmsim.model.layout import Layout
from llmsim.model.vision import VisionTower

RECORDED = json.loads((Path(__file__).parent / "vision_counts.json").read_text(encoding="utf-8"))
"""Default configs of transformers 5.20 and the parameters beside the text part that its models have
(without SigLIP's pooling head, which Gemma 3 has not).
"""


@pytest.mark.parametrize("found", RECORDED, ids=lambda found: found["model_type"])
def test_weights_are_counted_as_transformers_has_them(found: dict[str, Any]) -> None:
    tower = vision_tower(found, found["text_width"])
    assert tower is not None
    assert tower.parameters == found["parameters"]


def test_ranks_share_the_layers_of_a_tower_as_far_as_they_share_its_heads() -> None:
    tower = VisionTower(1000, 7, heads=16)
    assert tower.device_parameters(Layout(tp=4)) == 257
    assert tower.device_parameters(Layout(tp=3)) == 1007


@pytest.mark.parametrize(
    "config", [None, {"model_type": "unknown"}, {"model_type": "qwen2_5_vl", "depth": 32}]
)
def test_what_is_not_described_is_not_counted(config: dict[str, Any] | None) -> None:
    assert vision_tower({"model_type": "qwen2_5_vl", "vision_config": config}, 4096) is None


TEXT = {
    "model_type": "qwen2_5_vl_text", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 1000,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_note_says_what_of_the_encoders_counts() -> None:
    found = next(one for one in RECORDED if one["model_type"] == "qwen2_5_vl")
    for vision, said in (
        (found["vision_config"], "the 3.08 billion weights of its vision tower take memory"),
        ({"model_type": "unknown"}, "the weights and the work of its encoders are not counted"),
    ):
        fields = {"model_type": "qwen2_5_vl", "text_config": TEXT, "vision_config": vision}
        model = parse_config(fields, name="m", source="config.json")
        assert any(said in note for note in model.notes)
        assert (model.vision is None) == ("unknown" in str(vision))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("patch_size", 0, "it must be an integer from 1 to"),
        ("patch_size", [], "it must be an integer from 1 to"),
        ("patch_size", "14", "it must be an integer from 1 to"),
        ("num_heads", 0, "it must be an integer from 1 to"),
        ("depth", float("inf"), "it must be an integer from 1 to"),
        ("depth", 10**9, "it must be an integer from 1 to 10000"),
        ("spatial_merge_size", "two", "it must be an integer from 1 to"),
        ("mlp_ratio", float("inf"), "it must be a number above 0"),
        ("mlp_ratio", float("nan"), "it must be a number above 0"),
        ("mlp_ratio", "4", "it must be a number above 0"),
        (None, ["qwen2_vl"], "it must be an object"),
    ],
)
def test_sizes_that_no_tower_can_have_are_named(field: str | None, value: Any, said: str) -> None:
    found = next(one for one in RECORDED if one["model_type"] == "qwen2_vl")
    vision = value if field is None else {**found["vision_config"], field: value}
    fields = {"model_type": "qwen2_vl", "text_config": TEXT, "vision_config": vision}
    with pytest.raises(InputError) as caught:
        parse_config(fields, name="m", source="config.json")
    where = "config.json" if field is None else "config.json: vision_config"
    assert str(caught.value).startswith(f'{where}: field "{field or "vision_config"}" is ')
    assert said in str(caught.value)
