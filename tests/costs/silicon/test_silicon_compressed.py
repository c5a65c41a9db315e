"""Attention to a compressed context and residual streams: what was measured comes out; what is
inside the measured modules takes nothing.
"""

import json
from typing import Any

import numpy as np
import pytest

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.lowering import LoweringOptions, lower
from tests.lowering.clusters import cluster

pytest.importorskip("pyarrow")

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
WAITS = {"indexer": "sparse_prefills", "attention_compressed": "attention_compressed_prefills"}
"""What a step with short prompts waits for the host, by the operator that has a module's time."""


def costs_of(hardware: str, devices: int, model: str = FLASH) -> dict[str, Any]:
    """Costs of the operators by name."""
    memory = {"mem_size": 141, "mem_bw": 4800, "mem_latency": 0}
    document = cluster(
        model, num_npus=devices, tp_size=devices, hardware=hardware, npu_mem=memory,
        max_num_batched_tokens=8192, max_num_seqs=128,
    )  # fmt: skip
    lowered = lower(
        resolve(parse_cluster(json.dumps(document)), EngineOverrides()), LoweringOptions()
    )
    return {cost.name: cost for cost in lowered.groups[0].program_costs}


@pytest.mark.parametrize(
    ("name", "decode_us", "many_us", "prompts_us"),
    [
        ("indexer", 81.4, 105.2, {2048: 671.5}),
        ("attention_compressed", 59.0, 71.5, {2048: 492.4, 8192: 1825.2}),
    ],
)
def test_measured_modules_are_the_time(
    name: str, decode_us: float, many_us: float, prompts_us: dict[int, float]
) -> None:
    """H200, vLLM 0.24, 16 heads: one decode and 64 behind 1,024 tokens, and whole prompts. Prompts
    have their share of a batch of prompts, which at 1,024 and 8,192 tokens of sparse layers is a
    quarter less than alone.
    """
    costs = costs_of("H200", 4)
    grid, waits = costs[name].grid, costs[WAITS[name]].ps
    for sequences, measured_us in ((1, decode_us), (64, many_us)):
        row = grid.decode_ps[int(np.searchsorted(grid.n_axis, sequences))]
        one = float(np.interp(1024, grid.kv_axis, row)) / 1e6
        assert measured_us <= one < 1.15 * measured_us
    for tokens, measured_us in prompts_us.items():
        one = float(np.interp(tokens, grid.q_axis, grid.prefill_ps[:, 0])) + float(waits[tokens])
        assert one / 1e6 == pytest.approx(measured_us, rel=1 / 7), tokens


def test_operators_inside_the_modules_take_nothing() -> None:
    costs = costs_of("H200", 4)
    sparse = costs["attention_sparse"].grid
    assert sparse.prefill_ps.sum() == sparse.decode_ps.sum() == 0
    for name in ("qkv_a_proj", "o_a_proj", "o_proj", "pool_compressed", "indexer_k_proj_rows"):
        assert costs[name].ps.sum() == 0, name
    assert "kv_write" not in costs


def test_streams_take_half_of_the_rows_of_two_sites() -> None:
    """H200, vLLM 0.24: 1,024 tokens take 47.1 us in front of two half layers, 43.4 behind."""
    costs = costs_of("H200", 4)
    assert costs["streams_in"].ps[1024] / 1e6 == pytest.approx(47.1 / 2, rel=0.01)
    assert costs["streams_out"].ps[1024] / 1e6 == pytest.approx(43.4 / 2, rel=0.01)


def test_cards_without_the_modules_take_the_data_sheet() -> None:
    costs = costs_of("A100", 8)
    for name in ("indexer", "attention_sparse", "attention_compressed", "attention_sliding"):
        assert "data sheet" in costs[name].source, name
    assert costs["qkv_a_proj"].ps[1] > 0


def test_blocks_of_minimax_m3_take_their_module_beside_layers_with_everything() -> None:
    """H200, vLLM 0.24, 8 heads in bfloat16: one decode behind 1,023 tokens takes 28.2 us, a prompt
    of 2,048 takes 273 us.
    """
    costs = costs_of("H200", 8, "MiniMaxAI/MiniMax-M3")
    grid = costs["indexer"].grid
    assert 28.2 <= float(np.interp(1023, grid.kv_axis, grid.decode_ps[0])) / 1e6 < 28.2 * 1.15
    prompt = float(np.interp(2048, grid.q_axis, grid.prefill_ps[:, 0]))
    prompt += float(costs["sparse_prefills"].ps[2048])
    assert 0.75 * 272.6 < prompt / 1e6 <= 272.6  # its share of a batch of prompts
    assert costs["attention_sparse"].grid.decode_ps.sum() == 0
    assert costs["qkv_proj_block_sparse"].ps.sum() == costs["o_proj_block_sparse"].ps.sum() == 0
    for name in ("qkv_proj", "o_proj"):
        assert costs[name].ps[1] > 0, name
    assert costs["attention"].grid.decode_ps.sum() > 0
    assert "kv_write" in costs
