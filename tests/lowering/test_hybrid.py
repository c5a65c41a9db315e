"""Runs of models whose layers keep different parts of a sequence."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import NotYetError
from llmsim.lowering import LoweringOptions, lower

from .clusters import cluster, lowered, run

TRACE = (
    "synthetic:n=40,rate=50,input=lognormal:300:max=900,output=lognormal:60:max=200,"
    "prefixes=4:tokens=256,seed=5"
)


def instance(model: str, **more: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "max_num_seqs": 16,
        "max_model_len": 2048,
        "num_gpu_blocks_override": 220,
    }
    return cluster(model, **(keys | more))


def test_a_model_with_windows_shares_its_blocks() -> None:
    """gpt-oss-20b: 12 layers with a window of 128 and 12 without in two tables; under pressure all
    invariants hold.
    """
    one = instance("openai/gpt-oss-20b")
    group = lowered(one).groups[0]
    assert group.scheduler.kv.tables.windows == [128, 0]
    assert group.ledger.block_bytes == 12 * 16 * 2 * 8 * 64 * 2
    results = run(one, trace=TRACE)
    assert set(results.invariants.values()) == {"ok"}
    assert results.requests.preemptions.sum() > 0
    roomy = run(instance("openai/gpt-oss-20b", num_gpu_blocks_override=5000), trace=TRACE)
    assert roomy.requests.preemptions.sum() == 0


def test_a_model_with_states_has_large_blocks_and_no_prefix_cache_by_default() -> None:
    group = lowered(instance("Qwen/Qwen3-Next-80B-A3B-Instruct", tp_size=4)).groups[0]
    assert group.scheduler.kv.tables.windows == [0, -1, -1, -1]
    assert (group.scheduler.kv.block_size, group.engine.enable_prefix_caching) == (272, False)
    assert (
        "state" in group.engine.origin["block_size"]
        and "states" in group.engine.origin["enable_prefix_caching"]
    )
    results = run(
        instance("Qwen/Qwen3-Next-80B-A3B-Instruct", tp_size=4, num_gpu_blocks_override=40),
        trace=TRACE,
    )
    assert set(results.invariants.values()) == {"ok"}


def test_asked_for_a_prefix_cache_states_are_set_aside() -> None:
    group = lowered(
        instance("Qwen/Qwen3-Next-80B-A3B-Instruct", tp_size=4, enable_prefix_caching=True)
    ).groups[0]
    assert group.scheduler.kv.tables.windows == [0] and group.scheduler.kv.block_size == 16
    assert any("set aside" in note for note in group.ledger.notes)


@pytest.mark.parametrize("more", [{"scheduler": "sarathi"}, {"skip_prefill": True}])
def test_elsewhere_blocks_hold_whole_sequences(more: dict[str, Any]) -> None:
    group = lowered(instance("openai/gpt-oss-20b", **more)).groups[0]
    assert group.scheduler.kv.tables.windows == [0] and group.ledger.tables is None


def test_tiers_hold_no_states(tmp_path: Path) -> None:
    document = instance("Qwen/Qwen3-Next-80B-A3B-Instruct", tp_size=4)
    deployment = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    with pytest.raises(NotYetError, match="hold no states"):
        lower(deployment, LoweringOptions(cost_source="roofline", tiers=True))
