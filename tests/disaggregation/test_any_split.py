"""Any layouts on both sides, on one node or two, with tiers or not, whole or layer by layer: bytes,
ports, order.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_runs import assert_sound, cluster, instance, run, written

from llmsim.core import Results

KV_BYTES = 131_072
"""Of a token of Llama-3.1-8B: 32 layers, 8 KV heads."""
LAYOUTS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2))
WAYS: dict[str, tuple[str, ...]] = {
    "pull": (), "push": ("--kv-transfer-mode", "push"), "layerwise": ("--kv-transfer", "layerwise"),
}  # fmt: skip
TRACES = (
    "synthetic:n=40,rate=50,input=lognormal:300,output=lognormal:30,seed=3",
    "synthetic:n=30,rate=30,input=fixed:400,output=fixed:8,prefixes=3:tokens=256,seed=4",
)
NEAR, FAR = 20 * 10**9, 5 * 10**9
PS_PER_S = 10**12


def split(rng: random.Random) -> tuple[dict[str, Any], list[tuple[int, int]], bool]:
    """Any number of groups of each role; their (tp, pp) in order; whether KV crosses nodes."""
    sides, layouts = [], []
    for role in ("prefill", "decode"):
        mine = [rng.choice(LAYOUTS) for _ in range(rng.randint(1, 2))]
        layouts += mine
        sides.append([instance(role, num_npus=tp * pp, tp_size=tp, pp_size=pp) for tp, pp in mine])
    crosses = rng.random() < 0.5
    nodes = sides if crosses else [sides[0] + sides[1]]
    document = cluster(*nodes, link_bw=[450, NEAR / 1e9, FAR / 1e9])
    for node in document["nodes"]:
        node["cpu_mem"] = {"mem_size": 64, "mem_bw": 200, "mem_latency": 0}
    return document, layouts, crosses


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(8))
def test_kv_that_was_not_there_moves_once_and_is_waited_for(
    seed: int, way: str, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    document, layouts, crosses = split(rng)
    tiers = ["--prefix-storage", "CPU"] if rng.random() < 0.4 else []
    results = run(written(tmp_path, document), *WAYS[way], *tiers, trace=rng.choice(TRACES))
    assert_sound(results)
    h = results.kv_transfers
    assert h is not None
    missing = (results.workload.input_tokens - h.decode_cached_tokens).astype(np.int64)
    assert (missing >= 1).all() and (h.kv_transfer_bytes == missing * KV_BYTES).all()
    assert (h.decode_scheduled_ps >= h.kv_landed_ps).all() and (
        h.decode_scheduled_ps >= h.prefill_end_ps
    ).all()
    assert (results.requests.first_token_ps > h.decode_scheduled_ps).all()
    if way != "layerwise":
        begun = np.maximum(h.prefill_end_ps, h.kv_reserved_ps)
        assert (
            h.kv_landed_ps >= begun + least_ps(results, layouts, missing, FAR if crosses else NEAR)
        ).all()


def least_ps(
    results: Results, layouts: list[tuple[int, int]], missing: Any, bytes_per_s: int
) -> Any:
    """A request's KV alone, through the ports of the side with fewer ranks for it."""
    h = results.kv_transfers
    assert h is not None
    ranks = np.array([tp * pp for tp, pp in layouts])
    fewest = np.minimum(ranks[h.prefill_group], ranks[results.requests.group])
    return missing * KV_BYTES // fewest * PS_PER_S // bytes_per_s


@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (4, 2), (2, 4)])
def test_n_prompts_at_once_take_n_times_as_long(
    prefill: int, decode: int, way: str, tmp_path: Path
) -> None:
    """From when the first begins to move until the last is there, ports carry n times as much, and
    never rest.
    """
    sides = [instance(role, tp_size=tp) for role, tp in (("prefill", prefill), ("decode", decode))]
    path = written(tmp_path, cluster(sides, link_bw=[450, 0.01], link_latency=0))
    took = []
    for n in (1, 2, 5):
        results = run(
            path,
            *WAYS[way],
            trace=f"synthetic:n={n},rate=1000000,input=fixed:200,output=fixed:2,seed=1",
        )
        h = results.kv_transfers
        assert h is not None
        took.append(
            int(h.kv_landed_ps.max() - np.maximum(h.prefill_end_ps, h.kv_reserved_ps).min())
        )
    alone = 200 * KV_BYTES // min(prefill, decode) * PS_PER_S // 10**7
    for n, ps in zip((1, 2, 5), took, strict=True):
        assert ps == pytest.approx(n * alone, rel=1e-5)
