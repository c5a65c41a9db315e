"""Sparse attention's modules: what was measured comes out, alone and in batches; elsewhere the data
sheet answers.
"""

import json
from typing import Any

import numpy as np
import pytest

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.lowering import LoweringOptions, lower
from tests.costs.builders import split_grid
from tests.lowering.clusters import cluster

pytest.importorskip("pyarrow")


def costs_of(hardware: str, devices: int) -> dict[str, Any]:
    """Costs of DeepSeek-V3.2's operators by name."""
    memory = {"mem_size": 141, "mem_bw": 4800, "mem_latency": 0}
    document = cluster(
        "deepseek-ai/DeepSeek-V3.2",
        num_npus=devices,
        tp_size=devices,
        hardware=hardware,
        npu_mem=memory,
        max_num_batched_tokens=8192,
    )
    lowered = lower(
        resolve(parse_cluster(json.dumps(document)), EngineOverrides()), LoweringOptions()
    )
    return {cost.name: cost for cost in lowered.groups[0].program_costs}


def test_the_measured_module_is_the_time() -> None:
    """H200, 16 heads, fp8 weights: rows of one prompt, and of four at once, within a seventh."""
    costs = costs_of("H200", 8)
    chosen, grid, waits = (
        costs["attention_sparse"],
        split_grid(costs["indexer"]),
        costs["sparse_prefills"].ps,
    )
    assert split_grid(chosen).prefill_ps.sum() == split_grid(chosen).decode_ps.sum() == 0
    for tokens, prompts, measured_ms in (
        (128, 1, 1.538),
        (2048, 1, 1.668),
        (8192, 1, 6.750),
        (2048, 4, 4.909),
    ):
        one = float(np.interp(tokens, grid.q_axis, grid.prefill_ps[:, 0]))
        step_ms = (prompts * one + float(waits[min(prompts * tokens, len(waits) - 1)])) / 1e9
        assert step_ms == pytest.approx(measured_ms, rel=1 / 7), (tokens, prompts)


def test_operators_inside_the_module_take_nothing() -> None:
    costs = costs_of("H200", 8)
    for name in (
        "qkv_a_proj",
        "q_b_proj",
        "kv_b_proj",
        "o_proj",
        "indexer_q_proj",
        "indexer_k_proj",
        "indexer_norm",
    ):
        assert costs[name].ps.sum() == 0
    assert "kv_write" not in costs


def test_cards_without_the_module_take_the_data_sheet() -> None:
    costs = costs_of("A100", 16)
    assert all("data sheet" in costs[name].source for name in ("indexer", "attention_sparse"))
    assert costs["indexer_q_proj"].ps[1] > 0 and "sparse_prefills" not in costs
