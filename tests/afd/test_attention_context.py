"""Attention instances whose tensor-parallel ranks share the KV of a head by tokens, and stages of
dense models.
"""

from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, cluster, ffn, written

import llmsim

MOE, LATENT, DENSE = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3-0.6B"
SHARDINGS = [(MOE, 8, 2, 1, 8), (LATENT, 4, 4, 1, 4), (DENSE, 16, 2, 16, 1)]
"""Model, ranks of the attention, those that share the KV of a head, and ranks of the FFN."""
LOAD = "synthetic:n=30,rate=100,input=lognormal:600,output=lognormal:30,seed=3"
SHORT = {"max_model_len": 4096, "max_num_batched_tokens": 1024, "cost_source": "roofline"}
SAME = ["scheduled_ps", "first_token_ps", "finish_ps", "emitted_tokens"]


def run(folder: Path, *instances: dict[str, Any], **options: Any) -> llmsim.Result:
    keys = options.pop("engine", {})
    path = written(folder, cluster(*instances, engine=keys))
    return llmsim.run(path, LOAD, check_every_step=True, **SHORT, **options)


@pytest.mark.usefixtures("no_ways")
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_equal_to_one_set_of_devices(tmp_path: Path, sharding: tuple[Any, ...]) -> None:
    model, tp, ranks, ffn_tp, ffn_ep = sharding
    shared = {"decode_context_parallel_size": ranks}
    together = {
        "model_name": model,
        "hardware": "H100",
        **{"attn_tp_size": tp, "ffn_tp_size": ffn_tp, "ffn_ep_size": ffn_ep},
        **shared,
    }
    apart = [attention(model, tp, afd_micro_batches=1, **shared), ffn(model, ffn_tp, ffn_ep)]
    first, second = (
        run(
            tmp_path,
            *instances,
            engine={"launch_ns": 0},
            enforce_eager=True,
            num_gpu_blocks_override=400,
        )
        for instances in ([together], apart)
    )
    assert first.requests[SAME].equals(second.requests[SAME])


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_folded_equals_expanded(tmp_path: Path, sharding: tuple[Any, ...], lanes: int) -> None:
    model, tp, ranks, ffn_tp, ffn_ep = sharding
    sides = [
        attention(model, tp, 2, decode_context_parallel_size=ranks, afd_micro_batches=lanes),
        ffn(model, ffn_tp, ffn_ep),
    ]
    folded, expanded = (run(tmp_path, *sides, exact=exact) for exact in (False, True))
    assert folded.steps.equals(expanded.steps)
    assert set(folded.summary["invariants"].values()) == {"ok"}


def test_ranks_hold_the_tokens_of_a_head_once(tmp_path: Path) -> None:
    """Eight ranks for four heads: each head is on two, which hold every second token."""
    capacities = []
    for ranks in (1, 2):
        shared = {"decode_context_parallel_size": ranks}
        result = run(tmp_path, attention(MOE, 8, **shared), ffn(MOE, 1, 8))
        attends, computes = (one["capacity_tokens"] for one in result.summary["kv_cache"])
        capacities.append(attends)
        assert computes == 0
    assert capacities[1] == pytest.approx(2 * capacities[0], rel=0.001)


def test_prompts_of_context_parallel_prefill_instances(tmp_path: Path) -> None:
    """Each rank of the attention takes the tokens that it holds; contended ports, node by node."""
    prefill = {
        **{"model_name": MOE, "hardware": "H100", "pd_type": "prefill", "tp_size": 4},
        "prefill_context_parallel_size": 2,
    }
    sides = [attention(MOE, 8, 2, decode_context_parallel_size=2), ffn(MOE, 1, 8), prefill]
    folded, expanded = (run(tmp_path, *sides, exact=exact) for exact in (False, True))
    assert folded.requests[SAME].equals(expanded.requests[SAME])
    assert (folded.requests["kv_transfer_bytes"] > 0).all()


@pytest.mark.parametrize("overlapped", [None, True, False])
def test_stages_of_a_dense_model(tmp_path: Path, overlapped: bool | None) -> None:
    """Both sides have as many batches in flight, whichever model runner the engine takes."""
    ahead = {} if overlapped is None else {"async_scheduling": overlapped}
    sides = [attention(DENSE, 2, pp_size=2, **ahead), ffn(DENSE, 2, pp_size=2)]
    folded, expanded = (run(tmp_path, *sides, exact=exact) for exact in (False, True))
    assert folded.steps.equals(expanded.steps)
    assert set(folded.summary["invariants"].values()) == {"ok"}
