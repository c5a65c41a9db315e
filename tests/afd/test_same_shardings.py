"""Attention and FFN on devices of their own, with ways that take no time and one lane, are today's
step of the same shardings.
"""

from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, cluster, ffn, written

import llmsim
from llmsim import _native
from llmsim.lowering.afd import domain, ports

MOE, DENSE = "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B"
SHARDINGS = [
    (MOE, 1, 1, 1, 1),
    (MOE, 1, 2, 1, 2),
    (MOE, 2, 2, 1, 4),
    (MOE, 2, 2, 2, 2),
    (MOE, 2, 2, 4, 1),
    (DENSE, 2, 1, 2, 1),
    (DENSE, 1, 2, 2, 1),
    (DENSE, 2, 2, 4, 1),
]
"""Model, ranks of the attention (tensor, data), and of the FFN (tensor, expert)."""


@pytest.fixture
def no_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes time between attention and FFN."""
    nothing = _native.PortBytes(_native.Feature.TOKENS, 0)
    hop = _native.M2nHop(nothing, nothing, nothing, nothing)
    monkeypatch.setattr(domain, "hops_of", lambda *_: [hop, hop])
    monkeypatch.setattr(domain, "way_between", lambda *_: ports.Way(1, 1, 0))


@pytest.mark.usefixtures("no_ways")
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_equal_to_one_set_of_devices(tmp_path: Path, sharding: tuple[Any, ...]) -> None:
    model, tp, dp, ffn_tp, ffn_ep = sharding
    together = {
        "model_name": model,
        "hardware": "H100",
        **{"attn_tp_size": tp, "attn_dp_size": dp, "ffn_tp_size": ffn_tp, "ffn_ep_size": ffn_ep},
    }
    one_lane = {"afd_micro_batches": 1}
    apart = [attention(model, tp, dp, **one_lane), ffn(model, ffn_tp, ffn_ep)]
    trace = f"synthetic:n={4 * dp},rate=1e6,input=64,output=20"
    first, second = (
        llmsim.run(written(tmp_path, cluster(*instances)), trace)
        for instances in ([together], apart)
    )
    names = ["arrival_ps", "first_token_ps", "finish_ps", "itl_ps"]
    assert first.requests[names].equals(second.requests[names])
