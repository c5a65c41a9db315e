"""Attention to the last tokens and to a compressed context (DeepSeek-V4), and residual streams."""

import json
from pathlib import Path

import numpy as np
import pytest

from llmsim.config.errors import InputError, NotYetError
from llmsim.costs.sources.roofline import near_of
from llmsim.model import (
    Attention,
    Collective,
    Dtypes,
    IndexerScores,
    Layout,
    StreamMix,
    kv_groups,
    load_model,
    operators,
    parameter_count,
    resolve_dtypes,
    weight_bytes,
)
from llmsim.model.families.presets import config_path
from llmsim.model.parallel.transforms import split_layers

FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"
KV = Dtypes("fp8", "bf16", "fp8")


def attention(name: str, tp: int = 1) -> dict[str, Attention]:
    ops = operators(load_model(name), Layout(tp), KV)
    return {op.name: op for op in ops if isinstance(op, Attention)}


def test_layers_by_ratio() -> None:
    flash, pro = load_model(FLASH), load_model(PRO)
    assert [len(flash.layers_with(kind)) for kind in ("sliding", "compressed")] == [2, 20]
    assert flash.num_indexer_layers == len(flash.layers_with("compressed_sparse")) == 21
    assert [len(pro.layers_with(kind)) for kind in ("sliding", "compressed")] == [0, 31]
    assert pro.num_indexer_layers == 30
    assert flash.window == pro.window == 128
    assert resolve_dtypes(flash).kv == "fp8"
    assert flash.num_hashed == 3


@pytest.mark.parametrize(("name", "billions"), [(FLASH, 284), (PRO, 1573)])
def test_weights_as_published(name: str, billions: int) -> None:
    model = load_model(name)
    assert round(parameter_count(model) / 1e9) == billions
    experts = model.num_moe_layers * model.num_experts * 3
    experts *= model.hidden_size * model.moe_intermediate_size
    # MXFP4: 4 bits and 8 for 32 elements.
    stored = sum(
        op.weight_bytes * op.repeat for op in operators(model, Layout(), KV) if op.name == "moe"
    )
    assert model.format_of("experts").dtype == "fp4"
    assert stored == experts * 17 // 32
    assert weight_bytes(model, Layout(), KV) < parameter_count(model)


@pytest.mark.parametrize(("name", "block"), [(FLASH, 1_002_240), (PRO, 1_435_968)])
def test_blocks_of_the_pool_are_those_of_vllm(name: str, block: int) -> None:
    # vLLM 0.33's get_kv_cache_groups, given the specs of the model's layers: the widest group, of
    # 256 tokens; the last tokens in two groups of blocks of 64 tokens, what waits to be pooled in
    # blocks of 8 and 4.
    groups = kv_groups(load_model(name), Layout(), KV)
    assert groups[0].bytes_per_token == -(-block // 256)
    widths = {group.block_tokens: group.bytes_per_token for group in groups[1:]}
    assert widths == {64: -(-2 * block // 64), 8: -(-block // 8), 4: -(-block // 4)}
    assert [group.window for group in groups[1:]] == [128, 128, 8]


def test_pairs_and_bytes_of_attention() -> None:
    found = attention(FLASH, 2)
    heads, pair, row = 32, 4 * 32 * 512, 448 + 2 * 64 + 8
    sliding, heavy, sparse = (
        found[f"attention_{name}"] for name in ("sliding", "compressed", "sparse")
    )
    assert (sliding.heads, sliding.window, sliding.kv_bytes_per_context_token) == (heads, 128, row)
    assert sliding.flops_per_context_token == pair
    assert (heavy.window, heavy.flops_per_context_token) == (0, pair // 128)
    assert heavy.kv_bytes_per_context_token == -(-row // 128)
    assert (sparse.window, sparse.flops_per_context_token) == (512 * 4, pair // 4)
    for op in (heavy, sparse):
        assert op.beside is not None
        assert (op.beside.window, op.beside.kv_bytes_per_token) == (128, row)
        assert op.beside.flops_per_token == pair
    scores = found["indexer"]
    assert isinstance(scores, IndexerScores)
    assert scores.flops_per_context_token == 2 * 64 * 128 // 4
    assert scores.kv_bytes_per_context_token == (128 + 4) // 4


def test_what_is_seen_beside_by_hand() -> None:
    op = attention(FLASH)["attention_compressed"]
    new, before = np.array([1.0, 1.0, 3.0, 4.0]), np.array([0.0, 500.0, 126.0, 0.0])
    read, pairs = near_of(op, new, before)
    assert read.tolist() == [1, 129, 129, 4]
    assert pairs.tolist() == [1, 128, 127 + 128 + 128, 1 + 2 + 3 + 4]


def test_streams_are_read_and_written() -> None:
    ops = operators(load_model(FLASH), Layout(), KV)
    mixes = {op.name: op for op in ops if isinstance(op, StreamMix)}
    hidden = 4096 * 2
    assert mixes["streams_in"].read_bytes_per_token == 4 * hidden
    assert mixes["streams_in"].write_bytes_per_token == hidden
    assert mixes["streams_out"].read_bytes_per_token == 5 * hidden
    assert mixes["streams_out"].write_bytes_per_token == 4 * hidden
    assert mixes["streams_in"].weight_bytes == 4 * (24 * 4 * 4096 + 24 + 3)
    assert sum(op.repeat for op in ops if op.name == "streams_in") == 2 * 43


def test_stages_send_all_streams_and_their_layers_add_up() -> None:
    model = load_model(FLASH)
    layers = split_layers(43, 2)
    stages = [
        operators(model, Layout(2, 2, stage_layers=layers, stage=stage), KV) for stage in (0, 1)
    ]
    sent = next(op for op in stages[0] if op.name == "stage_send")
    assert isinstance(sent, Collective)
    assert sent.collective_bytes_per_token == 4 * 4096 * 2 // 2
    whole = operators(model, Layout(2, 2), KV)
    for name in ("attention_compressed", "indexer", "moe_gate_hashed", "streams_in"):
        there = sum(op.repeat for ops in stages for op in ops if op.name == name)
        assert there == sum(op.repeat for op in whole if op.name == name)


def test_unknown_ratios_and_unequal_groups_are_refused(tmp_path: Path) -> None:
    fields = json.loads(config_path(FLASH).read_text())
    for changes, error, words in (
        ({"compress_ratios": [16] * 44}, NotYetError, "a layer is '16'"),
        ({"o_groups": 7}, InputError, "in 7 groups"),
        ({"expert_dtype": "fp2"}, NotYetError, "fp4 and fp8"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**fields, **changes}))
        with pytest.raises(error, match=words):
            load_model(str(tmp_path))


def test_layouts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="tp must divide the 8 groups"):
        operators(load_model(FLASH), Layout(16, 16), KV)
    with pytest.raises(InputError, match="residual streams"):
        operators(load_model(FLASH), Layout(2, 2, sequence_parallel=True), KV)


def test_streams_that_are_not_mixed(tmp_path: Path) -> None:
    """Hunyuan 4: two weights for each of four streams, and each keeps its own."""
    recorded = Path(__file__).parent / "families" / "transformers_counts.json"
    fields = json.loads(recorded.read_text())["models"]["hy_v4"][0]["config"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    model = load_model(str(tmp_path))
    ops = {op.name: op for op in operators(model, Layout(), KV) if isinstance(op, StreamMix)}
    assert ops["streams_in"].weight_bytes == 4 * (8 * 4 * 2816 + 8 + 2)
    assert ops["streams_out"].flops_per_token == 4 * 4 * 2816
    assert not ops["streams_out"].mixed
    sinks = next(op for op in operators(model, Layout(2), KV) if op.name == "attention_sparse")
    assert sinks.weight_bytes == 16 * 2
    (tmp_path / "config.json").write_text(json.dumps({**fields, "enable_ihc": False}))
    with pytest.raises(NotYetError, match="enable_ihc"):
        load_model(str(tmp_path))
