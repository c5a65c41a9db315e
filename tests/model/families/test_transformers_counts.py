"""The number of weights of every described type is that of transformers' own model, for configs as
transformers writes them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import NotYetError
from llmsim.model import family_types, parameter_count
from llmsim.model.families.hf_config import parse_config

RECORDED = json.loads(
    (Path(__file__).parent / "transformers_counts.json").read_text(encoding="utf-8")
)
"""Written by `record_transformers_counts.py`."""
UNTOLD = {
    "deepseek_v2": "the default config has no num_experts_per_tok",
    "glm4_moe": "the default config has no head_dim, and no whole one follows from it",
    "minimax": "the default config has no head_dim",
}
FEWER_BIASES = {
    "afmoe", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "longcat_flash",
    "minicpm3", "nemotron_h", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe",
    "qwen3_next",
}  # fmt: skip
"""Types of which vLLM, which is simulated, gives fewer of attention's projections a bias than
transformers does; published configs ask for none.
"""
TWO_EMBEDDINGS = ("bailing_hybrid", "kimi_linear", "nemotron_h")
ACTIVATION_WEIGHTS = {"apertus": 2}
"""Learned numbers of a layer's activation, which are not counted."""
IDLE_PROJECTIONS = ("longcat_flash",)
"""Types whose experts that return a token as it is have two matrices in transformers, which neither
checkpoints nor vLLM have.
"""
DESCRIBED = [
    (name, index)
    for name, rows in RECORDED["models"].items()
    for index, found in enumerate(rows)
    if name in family_types() and name not in UNTOLD
    if not (name in FEWER_BIASES and found["config"]["attention_bias"])
]


def row(name: str, index: int) -> tuple[dict[str, Any], int]:
    found = RECORDED["models"][name][index]
    return found["config"], found["parameters"]


@pytest.mark.parametrize(("name", "index"), DESCRIBED)
def test_weights_are_counted_as_transformers_has_them(name: str, index: int) -> None:
    config, parameters = row(name, index)
    try:
        model = parse_config(config, name=name, source="config.json")
    except NotYetError as error:
        assert 'field "mlp_bias" is True' in str(error)
        return
    ours = parameter_count(model) + ACTIVATION_WEIGHTS.get(name, 0) * model.num_layers
    if name in IDLE_PROJECTIONS:
        each = 2 * model.hidden_size * model.moe_intermediate_size
        ours += model.num_moe_layers * model.zero_experts * each
    if name in TWO_EMBEDDINGS and config["tie_word_embeddings"]:
        pytest.skip("transformers keeps two embeddings of the type whatever the config says")
    assert ours == parameters


def test_most_types_of_transformers_are_described() -> None:
    assert len({name for name, _ in DESCRIBED}) >= 80


def test_layers_with_experts_come_from_their_types() -> None:
    config, _ = row("exaone_moe", 0)
    types = ["sparse", "dense"] * (config["num_hidden_layers"] // 2)
    model = parse_config({**config, "mlp_layer_types": types}, name="m", source="config.json")
    assert model.moe_layers == (True, False) * (config["num_hidden_layers"] // 2)
