"""`block_configs`: what each layer of a searched architecture has."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError, NotYetError
from llmsim.model import Dtypes, Layout, ModelConfig, load_model, operators, parameter_count
from llmsim.model.families.hf_config import parse_config
from llmsim.model.families.presets import config_path

SUPER = "nvidia/Llama-3_3-Nemotron-Super-49B-v1"
FIELDS: dict[str, Any] = {
    "model_type": "nemotron-nas", "hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 640,
    "num_attention_heads": 8, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
ABSENT = {"no_op": True}


def grouped(heads: int) -> dict[str, Any]:
    return {"n_heads_in_group": heads, "no_op": False, "replace_with_linear": False}


def parsed(*blocks: dict[str, Any]) -> ModelConfig:
    return parse_config({**FIELDS, "block_configs": list(blocks)}, name="m", source="config.json")


def test_each_layer_by_hand() -> None:
    model = parsed(
        {"attention": grouped(4), "ffn": {"ffn_mult": 2.0}},
        {"attention": ABSENT, "ffn": {"intermediate_size": 1024}},
        {"attention": grouped(8), "ffn": ABSENT},
    )
    assert model.layer_kinds == ("full", "none", "full")
    assert model.layers_with_ffn == (True, True, False)
    assert [group.shape.kv_heads for group in model.softmax_groups] == [2, 1]
    # int(2 * 2 * 512 / 3) = 682, rounded up to 768.
    assert model.dense_groups == ((768, (0,)), (1024, (1,)))
    attention = (2 * 512 + 2 * 2 * 64 + 2 * 64) * 512 + 2 * 512 * 512
    mlps = 3 * 512 * (768 + 1024)
    norms = (2 + 2 + 1) * 512
    assert parameter_count(model) == attention + mlps + norms + 2 * 640 * 512


def test_the_preset_has_layers_without_attention() -> None:
    model = load_model(SUPER)
    assert (model.softmax_layers, model.ffn_layers) == (49, 80)
    ops = operators(model, Layout(8), Dtypes())
    assert sum(op.repeat for op in ops if op.name.startswith("gate_up_proj")) == 80
    assert sum(op.repeat for op in ops if op.name == "qkv_proj") == 49


@pytest.mark.parametrize(
    ("attention", "ffn", "error", "words"),
    [
        ({**grouped(4), "replace_with_linear": True}, ABSENT, NotYetError, "replace_with_linear"),
        ({**grouped(4), "window_length": 128}, ABSENT, NotYetError, "window_length"),
        (grouped(3), ABSENT, InputError, "must divide the 8 heads"),
        (grouped(4), {"ffn_mult": -1}, InputError, "above 0"),
        (grouped(4), {}, InputError, "intermediate_size"),
        (None, ABSENT, InputError, '"attention" is missing'),
    ],
)
def test_what_is_not_described_is_refused(
    attention: Any, ffn: Any, error: type[Exception], words: str
) -> None:
    block = {"attention": attention, "ffn": ffn}
    with pytest.raises(error, match=words) as refusal:
        parsed(block, block, block)
    assert "block_configs[0]" in str(refusal.value)


def test_a_block_for_every_layer(tmp_path: Path) -> None:
    fields = json.loads(config_path(SUPER).read_text())
    fields["block_configs"].pop()
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match="each of 80 layers"):
        load_model(str(tmp_path))
