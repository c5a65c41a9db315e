"""Attention and FFN on devices of their own, with ways that take no time and one lane, are today's
step of the same shardings.
"""

from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, cluster, ffn, written

import llmsim

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


NAMES = ["arrival_ps", "first_token_ps", "finish_ps", "itl_ps"]


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
    assert first.requests[NAMES].equals(second.requests[NAMES])


@pytest.mark.usefixtures("no_ways")
def test_rows_that_stay_shared_out_are_sequence_parallelism(tmp_path: Path) -> None:
    """The FFN's ranks gather and scatter the rows that tensor-parallel ones do beside attention.

    Without CUDA graphs, as each of the FFN's ranks pads its own rows to a captured size, and with
    hosts that launch kernels in no time, as each side has one.
    """
    shared_out = {"enable_sequence_parallelism": True}
    together = {"model_name": DENSE, "hardware": "H100", "tp_size": 4, **shared_out}
    apart = [attention(DENSE, 4, afd_micro_batches=1, **shared_out), ffn(DENSE, 4)]
    trace = "synthetic:n=4,rate=1e6,input=64,output=20"
    first, second = (
        llmsim.run(
            written(tmp_path, cluster(*instances, engine={"launch_ns": 0})),
            trace,
            enforce_eager=True,
        )
        for instances in ([together], apart)
    )
    assert first.requests[NAMES].equals(second.requests[NAMES])


@pytest.mark.parametrize(
    ("model", "ffn_tp", "ffn_ep", "dispatch", "fewer"),
    [(DENSE, 4, 1, "dense", 4), (DENSE, 2, 1, "dense", 3), (MOE, 1, 4, "dense", 4)],
)
def test_shared_out_rows_cross_once(
    tmp_path: Path, model: str, ffn_tp: int, ffn_ep: int, dispatch: str, fewer: int
) -> None:
    """There, a row goes to as many ranks as hold it together with others of their FFN instance, and
    back to the four of attention; shared out, it goes to one of them and back to one.
    """
    moved = []
    for shared_out in (False, True):
        keys = {"afd_micro_batches": 1, "afd_dispatch": dispatch}
        sides = [
            attention(model, 4, enable_sequence_parallelism=shared_out, **keys),
            ffn(model, ffn_tp, ffn_ep),
        ]
        fields = cluster(*sides)
        result = llmsim.run(
            written(tmp_path, fields),
            "synthetic:n=1,rate=1,input=64,output=1",
            enforce_eager=True,
            async_scheduling=False,
        )
        moved.append(result.summary["afd"][0]["m2n_bytes"])
    assert moved[0] == fewer * moved[1]
