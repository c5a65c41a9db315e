"""Weights copied in and attention in memory: folded equals expanded, and closed forms of what
overlaps.
"""

from copy import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import simulation

from llmsim import _native

TOKENS, SEQUENCES = 64, 8
US = 10**6
ONE_PS_PER_BYTE = _native.CopySource(0, 10**12 << 16)


def operator(
    name: str, part: int, repeat: int, ps: Any, feature: Any = _native.Feature.TOKENS
) -> Any:
    table = np.asarray(ps, np.int64)
    kind = _native.NodeKind.COMPUTE
    return _native.Operator(
        name, kind, feature, part, repeat, table, np.zeros(len(table), np.uint8)
    )


def attention_node(layers: int) -> Any:
    empty = np.empty(0, np.int64), np.empty(0, np.uint8)
    return _native.Operator(
        "attention", _native.NodeKind.ATTENTION, _native.Feature.TOKENS, 1, layers, *empty
    )


def program(ops: list[Any], prefill_ps: Any, decode_ps: Any, gap: int = 0) -> Any:
    axis = np.array([0, 64], np.int64)
    grids = (np.asarray(prefill_ps, np.int64), np.asarray(decode_ps, np.int64))
    attention = _native.Attention.split([axis, axis], grids[0], [axis, axis], grids[1], 0, 0)
    return _native.Program(
        ops, attention, np.arange(TOKENS + 1, dtype=np.int32), _native.LowerBound(), gap
    )


def run(a_program: Any, offload: Any, requests: list[tuple[int, int, int]], depth: int = 2) -> Any:
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = SEQUENCES, TOKENS
    scheduler.async_scheduling = depth == 2
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.max_model_len = 30, 10_000
    scheduler.kv = kv
    group = _native.GroupConfig()
    group.depth = depth
    group.offload = offload
    spec = _native.GroupSpec(group, scheduler, a_program, record_steps=True)
    sim = simulation(requests, [spec])
    while not sim.run(10_000):
        pass
    return sim


def drawn_config(data: Any, rng: Any, layers: int, table: Any) -> Any:
    """Of the six operators below."""
    config, weights = _native.OffloadConfig(), _native.WeightStreaming()
    weights.buffers, weights.sources = data.draw(st.integers(2, 9)), [ONE_PS_PER_BYTE]
    if data.draw(st.booleans()):
        ahead = [
            rng.integers(0, 10**8, repeat).tolist() for repeat in (1, layers, 0, layers, layers, 1)
        ]
        weights.ahead = [times if data.draw(st.booleans()) else [] for times in ahead]
        weights.ahead_from = [[0] * len(times) for times in weights.ahead]
    if data.draw(st.booleans()):
        weights.by_batch = [[], [], [], [], table(TOKENS).tolist(), []]
        weights.by_batch_from = [0] * 6
        weights.demand = [False] * 4 + [data.draw(st.booleans()), False]
    config.weights = weights
    names = ("NEVER", "WHEN_SHORTER", "ALWAYS")
    hosted = [data.draw(st.booleans()) for _ in range(6)] if data.draw(st.booleans()) else []
    if data.draw(st.booleans()):
        pim = _native.PimConfig()
        pim.context, pim.ps, pim.sets = [0, 100], [1000, 10**8], data.draw(st.integers(1, 5))
        pim.latency_ps, pim.bytes_per_s = 5 * US, 10**9 + 7
        pim.query_bytes, pim.output_bytes, pim.kv_bytes = 1001, 503, 255
        pim.concurrent = data.draw(st.booleans())
        config.pim = pim
        hosted[2:3] = [False] * len(hosted[2:3])
    if hosted:
        host = _native.HostOperators()
        host.runs, host.input_bytes, host.output_bytes = hosted, [100] * 6, [300] * 6
        host.latency_ps, host.rate_q16 = 7 * US, (10**9 + 9) << 16
        config.host = host
    config.interleaving = getattr(_native.Interleaving, data.draw(st.sampled_from(names)))
    return config


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_folded_equals_expanded(data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    layers = data.draw(st.integers(1, 5))

    def table(size: int) -> Any:
        return np.sort(rng.integers(0, 10**8, size + 1))

    ops = [
        operator("embedding", 0, 1, table(TOKENS)),
        operator("qkv", 1, layers, table(TOKENS)),
        attention_node(layers),
        operator("gate", 1, layers, table(TOKENS)),
        operator("moe", 1, layers, table(TOKENS)),
        operator("head", 2, 1, table(SEQUENCES), _native.Feature.SEQUENCES),
    ]
    a_program = program(
        ops,
        rng.integers(0, 10**8, 4),
        rng.integers(0, 10**8, 4),
        data.draw(st.sampled_from([0, 777])),
    )
    config = drawn_config(data, rng, layers, table)
    rows = [
        (int(rng.integers(0, 10**10)), int(rng.integers(1, 150)), int(rng.integers(1, 20)))
        for _ in range(6)
    ]
    found = []
    for expanded in (False, True):
        config.expanded = expanded
        found.append(run(a_program, copy(config), sorted(rows)))
    a, b = (sim.steps() for sim in found)
    assert len(a["end_ps"]) > 5
    assert all((a[name] == b[name]).all() for name in a)
    assert found[0].activity(0)["offload"] == found[1].activity(0)["offload"]
    assert (a["start_ps"][1:] >= a["end_ps"][:-1]).all() and (a["end_ps"] > a["start_ps"]).all()


def layered(layers: int, compute_ps: int) -> Any:
    flat = np.full(TOKENS + 1, compute_ps)
    ops = [
        operator("qkv", 1, layers, flat),
        attention_node(layers),
        operator("mlp", 1, layers, np.zeros(TOKENS + 1)),
    ]
    ops.append(operator("head", 2, 1, np.zeros(SEQUENCES + 1), _native.Feature.SEQUENCES))
    return program(ops, np.zeros(4), np.zeros(4))


def durations(
    copy_ps: int, compute_ps: int, buffers: int = 2, layers: int = 4, arrival: int = 0
) -> Any:
    config = _native.OffloadConfig()
    weights = _native.WeightStreaming()
    weights.ahead, weights.buffers = [[copy_ps] * layers], buffers
    weights.ahead_from, weights.sources = [[0] * layers], [ONE_PS_PER_BYTE]
    config.weights = weights
    steps = run(layered(layers, compute_ps), config, [(arrival, 8, 12)], depth=1).steps()
    return steps["end_ps"] - steps["start_ps"]


@pytest.mark.parametrize(("copy_ps", "compute_ps"), [(100, 7), (7, 100), (50, 50)])
def test_a_step_takes_the_longer_of_copies_and_computing(copy_ps: int, compute_ps: int) -> None:
    steady = durations(copy_ps * US, compute_ps * US)[4:]
    assert (steady == 4 * max(copy_ps, compute_ps) * US).all()


def test_the_first_copies_ran_before_the_first_request() -> None:
    assert durations(100 * US, 7 * US, arrival=10**12)[0] == 2 * 100 * US + 7 * US + 7 * US
    assert durations(100 * US, 7 * US, arrival=10**12, buffers=9)[0] == 4 * 7 * US


def test_without_copies_nothing_changes() -> None:
    plain = run(layered(4, 7 * US), None, [(0, 8, 12)], depth=1).steps()
    assert (durations(0, 7 * US) == plain["end_ps"] - plain["start_ps"]).all()


def pim_steps(
    requests: list[tuple[int, int, int]], sets: int, interleaving: str = "NEVER", compute: int = 0
) -> Any:
    pim = _native.PimConfig()
    pim.context, pim.ps, pim.sets = [0, 1024], [0, 1024 * US], sets  # 1 us per token of context
    pim.bytes_per_s = 10**12
    config = _native.OffloadConfig()
    config.pim, config.interleaving = pim, getattr(_native.Interleaving, interleaving)
    sim = run(layered(1, compute), config, requests, depth=1)
    return sim.steps(), sim.activity(0)["offload"]


def test_attention_in_memory_grows_with_the_present_context() -> None:
    steps, _ = pim_steps([(0, 8, 6)], 1)
    assert (steps["end_ps"] - steps["start_ps"])[1:].tolist() == [
        context * US for context in range(9, 14)
    ]


def test_channels_work_side_by_side_and_each_one_after_the_other() -> None:
    for sets, longest in ((1, 4), (2, 2), (4, 1), (9, 1)):
        steps, counters = pim_steps([(0, 8, 2)] * 4, sets)
        assert int((steps["end_ps"] - steps["start_ps"])[-1]) == longest * 9 * US
        assert counters["channel_busy_ps"] == 4 * 9 * US


def test_halves_overlap_only_where_that_is_shorter() -> None:
    whole, _ = pim_steps([(0, 8, 6)] * 4, 4, compute=20 * US)
    ruled, counters = pim_steps([(0, 8, 6)] * 4, 4, "WHEN_SHORTER", compute=20 * US)
    forced, always = pim_steps([(0, 8, 6)] * 4, 4, "ALWAYS", compute=20 * US)
    span = [int(steps["end_ps"][-1]) for steps in (whole, ruled, forced)]
    assert span[1] == span[0] < span[2]  # a layer's operators do not get faster with half the batch
    assert counters["interleaved_steps"] == 0 < always["interleaved_steps"]


def test_a_later_chunk_waits_for_the_keys_of_the_earlier_ones() -> None:
    """Chunks of 64 and 36 tokens of 1 us each way: the second waits until the first are stored, and
    are read again.
    """
    pim = _native.PimConfig()
    pim.context, pim.ps, pim.sets, pim.bytes_per_s, pim.kv_bytes = [0, 1024], [0, 0], 1, 10**12, US
    config = _native.OffloadConfig()
    config.pim = pim
    sim = run(layered(1, 5 * US), config, [(0, 100, 3)], depth=1)
    steps, moved = sim.steps(), sim.activity(0)["offload"]
    took_us = ((steps["end_ps"] - steps["start_ps"]) / US).tolist()
    assert took_us == [5, 64 + 64, 36, 5]  # the first token's decode waits for the second chunk
    assert (moved["to_memory_bytes"], moved["from_memory_bytes"]) == (100 * US, 64 * US)


@pytest.mark.parametrize(("output", "expected"), [(1, []), (3, [(0, 1, 101 * 1000 // 64)])])
def test_attention_beyond_its_table_says_how_far(
    output: int, expected: list[tuple[int, int, int]]
) -> None:
    """Contexts up to 64 are in the table; the second decode has 101 cached tokens."""
    found = run(
        layered(1, 5 * US), None, [(0, 100 if output > 1 else 60, output)], depth=1
    ).attention_reach()
    assert found == expected
