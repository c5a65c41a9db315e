"""Families without a bundled preset: published configs, as their authors wrote them, give the published counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import LlmsimError
from llmsim.model import load_model, parameter_count

HF = "safetensors metadata on huggingface.co"
Config = dict[str, Any]


def shape(layers: int, hidden: int, width: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> Config:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab, "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, **more,
    }  # fmt: skip


PUBLISHED: dict[str, tuple[float, str, Config]] = {
    "GLM-4-9B-0414": (9_400_279_040, HF, shape(40, 4096, 13696, 32, 2, 151552, model_type="glm4", head_dim=128)),
    "granite-3.1-8b": (
        8_170_848_256, HF,
        shape(40, 4096, 12800, 32, 8, 49155, model_type="granite", tie_word_embeddings=True, logits_scaling=16.0),
    ),
    "granite-3.1-3b-a800m": (
        3.3e9, "model card",
        shape(32, 1536, 512, 24, 8, 49155, model_type="granitemoe", tie_word_embeddings=True, num_local_experts=40,
              num_experts_per_tok=8),
    ),
    "OLMoE-1B-7B": (
        6_919_161_856, HF,
        shape(16, 2048, 1024, 16, 16, 50304, model_type="olmoe", num_experts=64, num_experts_per_tok=8),
    ),
    "SmolLM3-3B": (
        3_075_098_624, HF,
        shape(36, 2048, 11008, 16, 4, 128256, model_type="smollm3", tie_word_embeddings=True, sliding_window=None,
              use_sliding_window=False),
    ),
    "Seed-OSS-36B": (
        36_151_104_512, HF,
        shape(64, 5120, 27648, 80, 8, 155136, model_type="seed_oss", head_dim=128, attention_bias=True,
              attention_out_bias=False),
    ),
    "Nemotron-4-15B": (
        15.6e9, "Nemotron-4 15B technical report, table 1",
        shape(32, 6144, 24576, 48, 8, 256000, model_type="nemotron", hidden_act="relu2"),
    ),
}  # fmt: skip


def write(folder: Path, config: Config) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(tmp_path: Path, name: str) -> None:
    published, _, config = PUBLISHED[name]
    assert parameter_count(load_model(write(tmp_path, config))) == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (shape(32, 4544, 18176, 71, 1, 65024, model_type="falcon", multi_query=True, parallel_attn=True), "falcon"),
        (shape(40, 8192, 22528, 64, 64, 256000, model_type="cohere", logit_scale=0.0625), "cohere"),
        (shape(61, 7168, 18432, 128, 128, 129280, model_type="deepseek_v32", index_topk=2048), "sparse attention"),
        (shape(56, 4480, 15680, 40, 8, 131072, model_type="nemotron_h", ssm_state_size=128), "state-space"),
        (shape(32, 4096, 14336, 32, 8, 65536, model_type="jamba", attn_layer_period=8), "state-space"),
    ],
)
def test_others_are_refused_by_what_is_missing(tmp_path: Path, config: Config, words: str) -> None:
    with pytest.raises(LlmsimError, match=words):
        load_model(write(tmp_path, config))
