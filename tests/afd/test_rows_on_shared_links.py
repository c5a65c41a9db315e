"""Rows between attention and FFN on ports that KV takes, too."""

from typing import Any

import numpy as np
import pytest
from afd.clusters import attention, cluster, ffn
from afd.sides import FEATURE, TOKENS, hop, limits, side
from simulations import router, simulation

import llmsim
from llmsim import _native

MS = 10**9
PS_PER_S = 10**12
RATE = 10**9
ROW, KV_PER_TOKEN = 10**6, 500_000
ATTENTION_PS, FFN_PS, LAYERS = 2 * MS, 1 * MS, 2
PROMPT = 23


def run(*, shared: bool = True, exact: bool = False, sharing: str = "FAIR") -> Any:
    """A prefill group, an attention group and an FFN group. One request decodes while the KV of
    another one, 11.5 MB, comes to the attention's port, by which rows of 1 MB come, too.
    """
    network = _native.NetworkConfig(getattr(_native.Sharing, sharing))
    places, ports = [], []
    for _ in range(3):
        ports.append((network.add_link(RATE, 0), network.add_link(RATE, 0)))
        places.append(network.add_place(0, ports[-1], (-1, -1)))
    prompts = side()
    prompts.add("layer", FEATURE.TOKENS, 1, table=MS)
    prompts.attention(1)
    a, f = side(), side()
    a.add("qkv", FEATURE.TOKENS, LAYERS, table=ATTENTION_PS)
    a.attention(LAYERS)
    f.add("ffn", FEATURE.GATHERED, LAYERS, table=FFN_PS)
    config = _native.AfdConfig(
        attention_members=1, lanes=1, columns=1, sharing=1,
        bands=[_native.AfdBand(0, LAYERS, [_native.AfdLayer([0, 1], [0])])],
        hops=[hop(0, 0, 0, ROW)], latency_ps=0,
        attention_bytes_per_s=RATE, ffn_bytes_per_s=RATE,
    )  # fmt: skip
    port = _native.SharedPort(0, 0, False, [(places[2], places[1], [ports[1][1]])])
    kv = _native.KvTransferConfig(False, False, [[places[0]], [places[1]], []])
    kv.add_route(
        0, 1, kv.add_table([(0, 0, [(list(range(LAYERS)), KV_PER_TOKEN // LAYERS, 0, 0)])])
    )
    lockstep = _native.LockstepSpec([1, 2], 1, config, exact, [port] if shared else [])
    sim = simulation(
        [(0, 1, 30), (50 * MS, PROMPT, 2)],
        [_group(0, "PREFILL", prompts), _group(1, "DECODE", a), _group(2, "FFN", f)],
        lockstep=[lockstep],
        network=network,
        kv_transfer=kv,
        router=router("RR"),
        decode_router=router("RR"),
    )
    while not sim.run(10_000):
        pass
    assert sim.num_finished == 2
    return sim


def _group(index: int, role: str, made: Any) -> Any:
    group = _native.GroupConfig()
    group.index, group.role = index, getattr(_native.Role, role)
    scheduler = None if role == "FFN" else limits(TOKENS, 1)
    if scheduler is not None:
        scheduler.kv_producer, scheduler.kv_consumer = role == "PREFILL", role == "DECODE"
    return _native.GroupSpec(group, scheduler, made.program(), record_steps=True)


def lengths(sim: Any) -> list[int]:
    """Of the attention group's steps in which one request decodes, in order."""
    steps = sim.steps()
    mine = (steps["group"] == 1) & (steps["tokens"] == 1)
    return list((steps["end_ps"] - steps["start_ps"])[mine])


def kv_ps(sim: Any) -> int:
    """How long the KV of the second request was on its way."""
    kv = sim.kv_transfers()
    return int(kv["kv_landed_ps"][1] - kv["kv_reserved_ps"][1])


@pytest.mark.parametrize("exact", [False, True])
def test_by_hand(exact: bool) -> None:
    """In MB that have come to the port, with t in ms after the KV and a step have begun:

    t  0 to 3: KV 3.  3 to 5: KV 4, a row.  5 to 8: KV 7.  8 to 10: KV 8, a row.  It takes 10.
    t 10 to 13: KV 11. 13 to 14: KV 11.5, half a row. 14 to 14.5: the rest of the row.
    The second layer meets nobody and takes 4: it takes 8.5.
    """
    sim = run(exact=exact)
    usual = LAYERS * (ATTENTION_PS + FFN_PS + MS)
    slowed = [one for one in lengths(sim) if one != usual]
    assert slowed == [10 * MS, 8 * MS + MS // 2]
    assert kv_ps(sim) == 14 * MS


def test_blame() -> None:
    """A usual step waits 2 ms for rows; the two that KV slows, 4 and 2.5 ms."""
    sim = run()
    decodes = len(lengths(sim))
    with_other = int((sim.steps()["tokens"][sim.steps()["group"] == 1] == 2).sum())
    rows = 2 * MS * decodes + 4 * MS * with_other
    assert int(sim.blame()["m2n_ps"][0]) == rows + 2 * MS + MS // 2


def test_not_shared_is_as_if_alone() -> None:
    sim = run(shared=False)
    assert set(lengths(sim)) == {LAYERS * (ATTENTION_PS + FFN_PS + MS)}
    assert kv_ps(sim) == PROMPT * KV_PER_TOKEN * PS_PER_S // RATE


@pytest.mark.parametrize("sharing", ["FAIR", "FIFO"])
def test_bytes_are_conserved(sharing: str) -> None:
    """The port carries both KV and the rows of all steps, and no more than its rate allows."""
    sim = run(sharing=sharing)
    steps = sim.steps()
    tokens = int(steps["padded_tokens"][steps["group"] == 1].sum())  # dummies send rows, too
    link = 3  # into the attention device
    carried, busy = int(sim.network()["bytes"][link]), int(sim.network()["busy_ps"][link])
    assert carried == (1 + PROMPT) * KV_PER_TOKEN + LAYERS * ROW * tokens
    assert carried * PS_PER_S == busy * RATE
    assert busy <= int(np.max(steps["end_ps"]))


@pytest.mark.parametrize("exact", [False, True])
def test_kv_tiers_share_the_attention_ports(exact: bool) -> None:
    """KV to and from host memory takes the ports of rows; FFN groups have no part of the pool."""
    model = "Qwen/Qwen3-30B-A3B"
    fields = cluster(attention(model), attention(model), ffn(model), link_bw=[450, 20, 50])
    fields["nodes"][0]["cpu_mem"] = {"mem_size": 512, "mem_bw": 300, "mem_latency": 0}
    options = {
        "cost_source": "roofline", "num_gpu_blocks_override": 400, "max_model_len": 4096,
        "enable_prefix_sharing": True, "prefix_storage": "CPU", "request_routing_policy": "RR",
    }  # fmt: skip
    load = "synthetic:n=60,rate=50,input=fixed:600,output=fixed:20,seed=1,prefixes=8:tokens=512"
    summary = llmsim.run(fields, load, exact=exact, **options).summary
    [pool] = summary["kv_tiers"]
    assert pool["written_chunks"] > 0
    assert pool["capacity_bytes"] == 512 * 2**30
    kept = [group["capacity_tokens"] > 0 for group in summary["kv_cache"]]
    assert kept == [True, True, False]
