"""The KV cache of bundled models, against what vLLM 0.33.0 planned for them on the meta device
(`evaluation/kv_specs.py --output`).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.kv_specs import BLOCK_SIZE, ours_of, tables_of, wrong
from llmsim.config import EngineOverrides, load_cluster, resolve
from llmsim.lowering import LoweringOptions, lower
from llmsim.model import load_model
from llmsim.model.memory.sizes import INDEXED_TOKENS

SPECS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "kv_specs_of_vllm.json").read_text(encoding="utf-8")
)
SPARSE = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5")
"""Sparse latent attention, for which vLLM takes blocks of 64 tokens unless it is told a size."""
CLUSTER = Path(__file__).resolve().parents[3] / "cluster_config" / "h200_deepseek_v32_tp8.json"


def test_every_kind_of_cache_is_there() -> None:
    kinds = {layer["type"] for theirs in SPECS.values() for layer in theirs["layers"]}
    assert kinds == {
        "FullAttentionSpec",
        "SlidingWindowSpec",
        "ChunkedLocalAttentionSpec",
        "MLAAttentionSpec",
        "MambaSpec",
    }
    assert len(SPECS) >= 26


@pytest.mark.parametrize("name", SPECS)
def test_blocks_and_tables_are_vllms(name: str) -> None:
    """The number of blocks in 40 GiB; windows, tokens and layers of the tables that share them."""
    assert wrong(name, SPECS[name]) == []
    assert (SPECS[name]["block_size"] == INDEXED_TOKENS) == (name in SPARSE)


@pytest.mark.parametrize(
    ("change", "tokens"),
    [({}, 64), ({"block_size": 32}, 32), ({"scheduler": "sglang"}, 1)],
    ids=["default", "given", "sglang"],
)
def test_blocks_of_sparse_latent_attention(change: dict[str, Any], tokens: int) -> None:
    """64 tokens by default on NVIDIA's cards; SGLang has pages of its own."""
    deployment = resolve(load_cluster(CLUSTER), EngineOverrides(**change))
    (group,) = lower(deployment, LoweringOptions(cost_source="roofline")).groups
    assert group.engine.block_size == tokens


def test_a_plan_that_differs_is_seen() -> None:
    theirs = SPECS["google/gemma-3-27b-it"]
    blocks, tables = ours_of(load_model("google/gemma-3-27b-it"), BLOCK_SIZE)
    assert tables == tables_of(theirs) and len(tables) == 7
    assert wrong("google/gemma-3-27b-it", {**theirs, "blocks": blocks + 1}) == [
        f"{blocks} blocks instead of {blocks + 1}"
    ]
    one_less = {**theirs, "groups": theirs["groups"][1:]}
    assert "tables" in wrong("google/gemma-3-27b-it", one_less)[0]
