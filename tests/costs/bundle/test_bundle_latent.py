"""Bundles of models with latent and sparse attention: which table prices which operator, and what
skew means there.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.config.errors import InputError
from llmsim.costs import compile_costs
from llmsim.costs.source import MixedAttention, SplitAttention
from llmsim.model import Dtypes, Layout, ModelConfig, load_model, operators
from tests.costs.builders import attention_rows, mixed_grid, request, write_csv

FIELDS = {
    "model_type": "deepseek_v32",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "q_lora_rank": 24,
    "first_k_dense_replace": 3,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 128,
}
AXES = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
SKEW = [
    (n, 1600, 400, 30.0, 30.0 + 3 * slope * 1200)
    for n, slope in ((8, 9.0), (64, 5.0), (128, 0.002), (256, 0.004))
]
"""Rows of few sequences have slopes that a kernel which cuts long sequences does not show any more.
"""


def bundle(folder: Path, *, sparse: bool) -> ModelConfig:
    """A model, and a bundle of it on the H200 below `folder`."""
    fields: dict[str, Any] = dict(FIELDS)
    if not sparse:
        fields = {name: value for name, value in fields.items() if not name.startswith("index_")}
        fields["model_type"] = "deepseek_v3"
    path = folder / "tiny.json"
    path.write_text(json.dumps(fields))
    model = load_model(str(path))
    place = folder / "perf" / "H200" / model.name.strip("/") / "bf16" / "tp1"
    ops = operators(model, Layout(1, 1), Dtypes())
    for name, feature in (("dense", "tokens"), ("per_sequence", "sequences")):
        names = dict.fromkeys(op.name for op in ops if op.feature == feature)
        write_csv(
            place / f"{name}.csv",
            f"layer,{feature},time_us",
            [(n, t, 10 + t) for n in names for t in (1, 2048)],
        )
    write_csv(place / "attention.csv", AXES, attention_rows())
    write_csv(place / "indexer.csv", AXES, [(*key, 10 * us) for *key, us in attention_rows()])
    write_csv(place / "skew.csv", "n,kv_big,kv_mean,t_mean_us,t_skew_us", SKEW)
    return model


def priced(folder: Path, model: ModelConfig, source: str = "bundle") -> Any:
    return compile_costs(
        request(model, "H200", source=source, profile_dirs=(folder / "perf",), max_model_len=512)
    )


def test_an_indexer_has_a_table_of_its_own(tmp_path: Path) -> None:
    model = bundle(tmp_path, sparse=True)
    indexer, attention = priced(tmp_path, model).attentions
    assert (indexer.name, attention.name) == ("indexer", "attention_sparse")
    assert np.array_equal(mixed_grid(indexer).ps, 10 * mixed_grid(attention).ps)
    assert "indexer.csv" in indexer.source and "attention.csv" in attention.source
    assert (indexer.window, attention.window) == (0, 128), (
        "attention is looked up by what was chosen"
    )
    assert indexer.skew_ps_per_token_q20 == 0 < attention.skew_ps_per_token_q20
    (tmp_path / "perf" / "H200" / model.name.strip("/") / "bf16" / "tp1" / "indexer.csv").unlink()
    with pytest.raises(InputError, match=r"there is no indexer\.csv"):
        priced(tmp_path, model)
    costs = priced(tmp_path, model, "auto")
    kinds = [type(attention) for attention in costs.attentions]
    assert kinds == [SplitAttention, MixedAttention]
    assert any("has no indexer.csv" in note for note in costs.notes)


def test_latents_are_read_by_tiles_of_heads_not_by_kv_heads(tmp_path: Path) -> None:
    """128 heads are two tiles of 64, so 132 SMs are full from 106 sequences on; 128 KV heads would
    be from 2 on.
    """
    cost = priced(tmp_path, bundle(tmp_path, sparse=False)).attention
    assert cost.skew_ps_per_token_q20 / 2**20 == pytest.approx(0.003 * 1e6, rel=1e-3)


def test_prompts_are_looked_up_apart_where_they_expand_latents(tmp_path: Path) -> None:
    dense, sparse = tmp_path / "dense", tmp_path / "sparse"
    for folder in (dense, sparse):
        folder.mkdir()
    assert priced(dense, bundle(dense, sparse=False)).attention.prompts_apart
    assert not any(
        cost.prompts_apart for cost in priced(sparse, bundle(sparse, sparse=True)).attentions
    )
