"""Schedulers of attention instances: with ways that take no time and one lane, each schedules as on
one set of devices.
"""

from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, cluster, ffn, written

import llmsim

MOE, DENSE = "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B"
NAMES = ["arrival_ps", "first_token_ps", "finish_ps", "itl_ps"]
WHOLE = {"max_model_len": 2048, "max_num_batched_tokens": 2048}
CHUNKS = {"max_model_len": 2048, "max_num_batched_tokens": 256, "enable_chunked_prefill": True}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "vllm_v1": CHUNKS,
    "mlfq": {**CHUNKS, "enable_prefix_caching": True},
    "mlfq, whole prompts": WHOLE,
    "srpt": CHUNKS,
    "sglang": {"max_model_len": 2048, "max_num_batched_tokens": 256},
    "sarathi": {"max_model_len": 2048, "max_num_batched_tokens": 256},
    "orca": WHOLE,
    "static": WHOLE,
    "tensorrt_llm": WHOLE,
}
SHARDINGS = [(MOE, 2, 1, 1, 2), (DENSE, 2, 1, 2, 1)]
"""Model, ranks of the attention (tensor, data), and of the FFN (tensor, expert)."""
LOAD = "synthetic:n=60,rate=400,input=lognormal:300,output=lognormal:60,seed=3"


def options(scheduler: str) -> dict[str, Any]:
    """A small pool, so that requests lose their KV and wait."""
    block = {"sglang": 1, "tensorrt_llm": 32}.get(scheduler, 16)
    pool = 4096 if SCHEDULERS[scheduler] is not WHOLE else 8192
    return {
        "scheduler": scheduler.split(",")[0],
        "num_gpu_blocks_override": pool // block,
        "max_num_seqs": 24,
        **SCHEDULERS[scheduler],
    }


@pytest.mark.usefixtures("no_ways")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_equal_to_one_set_of_devices(
    tmp_path: Path, sharding: tuple[Any, ...], scheduler: str
) -> None:
    model, tp, dp, ffn_tp, ffn_ep = sharding
    together = {
        "model_name": model,
        "hardware": "H100",
        **{"attn_tp_size": tp, "attn_dp_size": dp, "ffn_tp_size": ffn_tp, "ffn_ep_size": ffn_ep},
    }
    apart = [attention(model, tp, dp, afd_micro_batches=1), ffn(model, ffn_tp, ffn_ep)]
    first, second = (
        llmsim.run(
            written(tmp_path, cluster(*instances, engine={"launch_ns": 0})),
            LOAD,
            cost_source="roofline",
            enforce_eager=True,  # each side pads to its own captured sizes
            check_every_step=True,
            **options(scheduler),
        )
        for instances in ([together], apart)
    )
    assert first.requests[NAMES].equals(second.requests[NAMES])
    assert set(second.summary["invariants"].values()) == {"ok"}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_nothing_is_lost_on_real_ways(tmp_path: Path, scheduler: str, lanes: int) -> None:
    """Two attention instances, whose FFN is on other devices, with lanes and routed rows."""
    sides = [
        attention(MOE, 1, 2, afd_micro_batches=lanes, afd_dispatch="routed"),
        attention(MOE, 1, 2),
        ffn(MOE, 1, 4),
    ]
    result = llmsim.run(
        written(tmp_path, cluster(*sides)), LOAD, check_every_step=True, **options(scheduler)
    )
    assert (result.requests["status"] == "finished").all()
    assert set(result.summary["invariants"].values()) == {"ok"}


@pytest.mark.parametrize("scheduler", ["mlfq", "sglang", "srpt"])
def test_prompts_from_prefill_instances_of_the_scheduler(tmp_path: Path, scheduler: str) -> None:
    first = {"model_name": MOE, "hardware": "H100", "num_npus": 2, "pd_type": "prefill"}
    sides = [first, attention(MOE, 1, 2), ffn(MOE, 1, 2)]
    result = llmsim.run(
        written(tmp_path, cluster(*sides)), LOAD, check_every_step=True, **options(scheduler)
    )
    assert (result.requests["status"] == "finished").all()
    assert (result.requests["kv_transfer_bytes"] > 0).any()
    assert set(result.summary["invariants"].values()) == {"ok"}
