"""How many requests SGLang runs at once where nobody says it (`resolve_max_num_reqs`)."""

from typing import Any

import pytest

import llmsim
from llmsim.config.engine.args import EngineArgs

LOAD = "synthetic:n=2,rate=50,input=fixed:64,output=fixed:4"
MODEL = "meta-llama/Llama-3.2-1B"
RANKS = {"tp": 1, "dp": 4, "ep": 4}
DRAFTS = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7}


def settled(
    model: str = MODEL, *, layout: dict[str, int] | None = None, **engine: Any
) -> EngineArgs:
    cluster = llmsim.Cluster.build(model, "H200", **(layout or {})).fields()
    cluster["engine"] = engine
    run = llmsim.run(cluster, LOAD, engine_profile="sglang-0.5.23", cost_source="roofline")
    args: EngineArgs = run._prepared.lowered.groups[0].engine
    return args


@pytest.mark.parametrize(
    ("tokens", "context", "sequences"),
    [
        (400_000, 131_072, 2048),  # 1,562 by the pool
        (655_360, 131_072, 2560),
        (655_360, 16_384, 4096),  # 20,480 by the pool
        (3_000, 2_048, 1500),  # half of the pool
    ],
)
def test_the_pool_of_kv_decides(tokens: int, context: int, sequences: int) -> None:
    pool = {"num_gpu_blocks_override": tokens + 1, "max_model_len": context}
    assert settled(**pool).max_num_seqs == sequences


def test_what_is_given_stays_as_far_as_the_pool_reaches() -> None:
    assert settled(max_num_seqs=100).max_num_seqs == 100
    small = {"num_gpu_blocks_override": 1_001, "max_model_len": 512}
    assert settled(max_num_seqs=600, **small).max_num_seqs == 500
    # More than a step of prompts has tokens.
    assert settled(max_num_seqs=900, max_num_batched_tokens=512).max_num_seqs == 900


def test_drafts_leave_48_to_all_ranks() -> None:
    assert settled(speculative_config=DRAFTS).max_num_seqs == 48
    assert settled(speculative_config=DRAFTS, max_num_seqs=64).max_num_seqs == 64
    ranks = settled("Qwen/Qwen3-30B-A3B", layout=RANKS, speculative_config=DRAFTS)
    assert ranks.max_num_seqs == 12 and ranks.max_num_batched_tokens == 2048
    assert ranks.origin["max_num_batched_tokens"].endswith("divided by 4 ranks")
