"""Pipeline stages under vLLM's Model Runner V1: a batch starts when all tokens of the one before it
are known.
"""

from typing import Any

import numpy as np
import pytest
from simulations import simulation

from llmsim import _native

STAGE_PS = 5 * 10**9
TOKENS, SEQUENCES = 64, 8
LAYER, HEAD = 1, 2


def program(stages: int) -> Any:
    """Every stage takes the same; attention and what is between stages take nothing."""
    ops = []
    for stage in range(stages):
        for name, kind, table in (
            ("mlp", _native.NodeKind.COMPUTE, np.full(TOKENS + 1, STAGE_PS)),
            ("attention", _native.NodeKind.ATTENTION, np.empty(0, np.int64)),
            ("handover", _native.NodeKind.STAGE_SEND, np.zeros(TOKENS + 1, np.int64)),
        ):
            if name == "handover" and stage + 1 == stages:
                continue
            marks = np.zeros(len(table), np.uint8)
            ops.append(
                _native.Operator(name, kind, _native.Feature.TOKENS, LAYER, 1, table, marks, stage)
            )
    zeros, marks = np.zeros(SEQUENCES + 1, np.int64), np.zeros(SEQUENCES + 1, np.uint8)
    sampled = _native.Feature.SEQUENCES
    ops.append(
        _native.Operator(
            "head", _native.NodeKind.COMPUTE, sampled, HEAD, 1, zeros, marks, stages - 1
        )
    )
    axis, cells = np.array([0, 64], np.int64), np.zeros(4, np.int64)
    attention = _native.Attention.split([axis, axis], cells, [axis, axis], cells, 0, 0)
    return _native.Program(
        ops, attention, np.arange(TOKENS + 1, dtype=np.int32), _native.LowerBound(), 0
    )


def steps(stages: int, waits: bool, prompt: int = 20) -> Any:
    """Six prompts of one chunk, one after the other, and their answers."""
    n = 6
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens, scheduler.async_scheduling = (
        SEQUENCES,
        TOKENS,
        True,
    )
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.max_model_len = 100, 10_000
    scheduler.kv = kv
    group = _native.GroupConfig()
    group.depth, group.stages_wait = stages, waits
    spec = _native.GroupSpec(group, scheduler, program(stages), record_steps=True)
    sim = simulation([(i * STAGE_PS // 2, prompt, 8) for i in range(n)], [spec])
    while not sim.run(1000):
        pass
    assert (sim.requests()["status"] == 3).all()
    return sim.steps()


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_no_batch_starts_before_the_tokens_of_the_one_before(stages: int) -> None:
    """Every batch here gives tokens."""
    found = steps(stages, True)
    assert (found["start_ps"][1:] >= found["end_ps"][:-1]).all()
    assert (found["end_ps"] - found["start_ps"] == stages * STAGE_PS).all()
    overlapping = steps(stages, False)
    assert (overlapping["start_ps"][1:] < overlapping["end_ps"][:-1]).any()


@pytest.mark.parametrize("stages", [3, 4])
def test_batches_of_unfinished_prompts_are_not_waited_for(stages: int) -> None:
    """Of 250 tokens the first three chunks give none: the stages take them one behind the other."""
    found = steps(stages, True, prompt=250)
    assert found["start_ps"][:4].tolist() == [
        number * STAGE_PS for number in range(min(4, stages))
    ] + ([stages * STAGE_PS] * (4 - stages))
