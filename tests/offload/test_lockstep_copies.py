"""Ranks in lock-step that copy weights in: closed forms of each rank's steps, when their batches
differ.
"""

from copy import copy
from typing import Any

import numpy as np
import pytest
from simulations import router, simulation
from test_streams import ONE_PS_PER_BYTE, SEQUENCES, TOKENS, US, attention_node, operator, program

from llmsim import _native

QKV_US, MLP_US = 7, 11
AHEAD_US = 50
BATCH_US_PER_TOKEN = 3


def one_layer() -> Any:
    """One layer: QKV, attention that takes no time, MLP, head."""
    ops = [
        operator("qkv", 1, 1, np.full(TOKENS + 1, QKV_US * US)),
        attention_node(1),
        operator("mlp", 1, 1, np.full(TOKENS + 1, MLP_US * US)),
        operator("head", 2, 1, np.zeros(SEQUENCES + 1), _native.Feature.SEQUENCES),
    ]
    return program(ops, np.zeros(4), np.zeros(4))


def copies() -> Any:
    """QKV's weights come ahead, those of the MLP by the rank's own tokens."""
    weights = _native.WeightStreaming()
    weights.buffers, weights.sources = 2, [ONE_PS_PER_BYTE]
    weights.ahead, weights.ahead_from = [[AHEAD_US * US], [], [], []], [[0], [], [], []]
    by_tokens = [BATCH_US_PER_TOKEN * US * tokens for tokens in range(TOKENS + 1)]
    weights.by_batch, weights.by_batch_from = [[], [], by_tokens, []], [0] * 4
    weights.demand = [False] * 4
    config = _native.OffloadConfig()
    config.weights = weights
    return config


def run_in_lockstep(ranks: int, prompts: list[int], offload: Any, output: int = 1) -> Any:
    """Prompts that come all at once, one after the other to each rank."""
    groups = []
    for index in range(ranks):
        scheduler = _native.SchedulerConfig()
        scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = SEQUENCES, TOKENS
        kv = _native.KvCacheConfig()
        kv.num_blocks, kv.max_model_len = 30, 10_000
        scheduler.kv = kv
        group = _native.GroupConfig()
        group.index, group.offload = index, copy(offload)
        groups.append(_native.GroupSpec(group, scheduler, one_layer(), record_steps=True))
    members = list(range(ranks))
    together = [_native.LockstepSpec(members, 1)] if ranks > 1 else []
    rows = [(0, prompt, output) for prompt in prompts]
    sim = simulation(rows, groups, router=router("RR"), lockstep=together)
    while not sim.run(10_000):
        pass
    return sim


@pytest.mark.parametrize("prompts", [[8, 40], [40, 8], [5, 60, 21]])
def test_each_rank_waits_for_the_weights_of_its_own_batch(prompts: list[int]) -> None:
    """Nothing was copied before the run, so that both copies are on the way before the
    MLP begins.
    """
    sim = run_in_lockstep(len(prompts), prompts, copies())
    steps = sim.steps()
    for rank, tokens in enumerate(prompts):
        first = np.flatnonzero(steps["group"] == rank)[0]
        took_us = (steps["end_ps"] - steps["start_ps"])[first] / US
        assert took_us == AHEAD_US + BATCH_US_PER_TOKEN * tokens + MLP_US
        offload = sim.activity(rank)["offload"]
        assert offload["stalled_ps"] == (took_us - QKV_US - MLP_US) * US


@pytest.mark.parametrize("halves", ["NEVER", "WHEN_SHORTER", "ALWAYS"])
def test_equal_ranks_take_as_long_as_one_alone(halves: str) -> None:
    """Four decodes each attend in memory, in one batch or in two halves that alternate."""
    pim = _native.PimConfig()
    pim.context, pim.ps, pim.sets = [0, 64], [40 * US, 40 * US], 4
    pim.bytes_per_s, pim.query_bytes, pim.output_bytes, pim.kv_bytes = 10**12, 9 * US, 3 * US, 1000
    config = _native.OffloadConfig()
    config.pim, config.interleaving = pim, getattr(_native.Interleaving, halves)
    lengths = []
    for ranks in (1, 3):
        sim = run_in_lockstep(ranks, [10] * 4 * ranks, config, output=6)
        steps = sim.steps()
        took = steps["end_ps"] - steps["start_ps"]
        lengths += [took[steps["group"] == rank].tolist() for rank in range(ranks)]
        split = [sim.activity(rank)["offload"]["interleaved_steps"] for rank in range(ranks)]
        assert (
            all((number > 0) == (halves == "ALWAYS") for number in split)
            or halves == "WHEN_SHORTER"
        )
    assert len(lengths[0]) >= 6 and all(each == lengths[0] for each in lengths)
