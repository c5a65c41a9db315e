"""Attention to blocks that an indexer chooses, beside layers that see everything (MiniMax M3)."""

import json
from pathlib import Path

import pytest

from llmsim.config.errors import InputError
from llmsim.model import (
    Attention,
    Dtypes,
    Gemm,
    IndexerScores,
    Layout,
    kv_groups,
    load_model,
    operators,
)
from llmsim.model.families.presets import config_path
from llmsim.model.operator import Operator

M3 = "MiniMaxAI/MiniMax-M3"


def by_name(tp: int) -> dict[str, Operator]:
    return {op.name: op for op in operators(load_model(M3), Layout(tp, tp), Dtypes())}


def test_layers_and_choice() -> None:
    model = load_model(M3)
    assert model.layers_of("full") == 3
    assert model.layers_of("block_sparse") == model.num_indexer_layers == 57
    assert model.indexer is not None
    assert (model.indexer.topk, model.indexer.block) == (16 * 128, 128)
    assert model.moe_layers == (False,) * 3 + (True,) * 57
    assert model.dense_groups == ((12288, (0, 1, 2)),)


def test_index_heads_come_with_the_projections() -> None:
    alone, eight = by_name(1), by_name(8)
    widths = {}
    for tp, ops in ((1, alone), (8, eight)):
        own, full = ops["qkv_proj_block_sparse"], ops["qkv_proj"]
        assert isinstance(own, Gemm)
        assert isinstance(full, Gemm)
        widths[tp] = (full.gemm_n, own.gemm_n)
    # Four KV heads and four index heads; with eight ranks one of each on every rank.
    assert widths == {1: (72 * 128, (72 + 5) * 128), 8: (10 * 128, (10 + 2) * 128)}


def test_pairs_and_bytes() -> None:
    ops = by_name(4)
    full, sparse, scores = ops["attention"], ops["attention_sparse"], ops["indexer"]
    assert isinstance(full, Attention)
    assert isinstance(sparse, Attention)
    assert isinstance(scores, IndexerScores)
    assert (full.window, full.sparse, full.repeat) == (0, False, 3)
    assert (sparse.window, sparse.sparse, sparse.repeat) == (2048, True, 57)
    assert sparse.flops_per_context_token == full.flops_per_context_token == 4 * 16 * 128
    assert sparse.kv_bytes_per_context_token == 2 * 128 * 2
    assert scores.flops_per_context_token == 2 * 1 * 128
    assert scores.kv_bytes_per_context_token == 128 * 2


def test_a_token_in_the_cache_of_a_rank() -> None:
    # vLLM 0.33: K and V of a rank's heads, and MiniMaxM3IndexerCache's one key in 16 bits.
    for tp, heads in ((1, 4), (4, 1), (8, 1)):
        full, sparse = kv_groups(load_model(M3), Layout(tp, tp), Dtypes())
        assert full.bytes_per_token == 3 * heads * 2 * 128 * 2
        assert sparse.bytes_per_token == 57 * (heads * 2 * 128 * 2 + 128 * 2)
        assert full.window == sparse.window == 0


def test_without_sparse_layers_there_is_no_indexer(tmp_path: Path) -> None:
    fields = json.loads(config_path(M3).read_text())
    fields["sparse_attention_config"]["sparse_attention_freq"] = [0] * 60
    (tmp_path / "config.json").write_text(json.dumps(fields))
    model = load_model(str(tmp_path))
    assert model.indexer is None
    assert model.layer_kinds == ()
    assert "indexer" not in {op.name for op in operators(model, Layout(), Dtypes())}


def test_context_parallelism_is_refused() -> None:
    with pytest.raises(InputError, match="chooses among all of them"):
        operators(load_model(M3), Layout(8, 8, decode_context=2), Dtypes())
