"""Invariant 9: the folded program and every rank's nodes in the engine end a run at the same
picosecond.
"""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import simulation

from llmsim import _native
from llmsim._native import engine

TOKENS, SEQUENCES = 64, 8


def operators(
    draw: Any, ranks: int, site: Any, bytes_per_token: int, measured: bool
) -> tuple[list[Any], list[Any]]:
    """A random program: prologue, layers with attention and two all-reduces, head."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    layers = draw(st.integers(1, 5))
    ops, specs = [], []

    def compute(name: str, part: int, repeat: int, feature: Any, size: int) -> None:
        table = rng.integers(0, 10**9, size + 1).astype(np.int64)
        ops.append(
            _native.Operator(
                name,
                _native.NodeKind.COMPUTE,
                feature,
                part,
                repeat,
                table,
                np.zeros(size + 1, np.uint8),
            )
        )

    def all_reduce() -> None:
        sizes = np.arange(1, TOKENS + 1, dtype=np.int64) * bytes_per_token
        table = (
            rng.integers(1, 10**8, TOKENS) if measured else engine.isolated_durations(site, sizes)
        )
        table = np.concatenate([[0], table]).astype(np.int64)
        specs.append(
            _native.CollectiveSpec(
                len(ops), engine.CollectiveKind.ALL_REDUCE, 0 if measured else bytes_per_token
            )
        )
        ops.append(
            _native.Operator(
                "all_reduce",
                _native.NodeKind.COLLECTIVE,
                _native.Feature.TOKENS,
                1,
                layers,
                table,
                np.zeros(TOKENS + 1, np.uint8),
            )
        )

    compute("embedding", 0, 1, _native.Feature.TOKENS, TOKENS)
    compute("qkv", 1, layers, _native.Feature.TOKENS, TOKENS)
    for index, repeat in enumerate((layers, draw(st.integers(1, layers)))):  # layers of two kinds
        empty = np.empty(0, np.int64), np.empty(0, np.uint8)
        kind, feature = _native.NodeKind.ATTENTION, _native.Feature.TOKENS
        ops.append(
            _native.Operator(
                f"attention {index}", kind, feature, 1, repeat, *empty, attention=index
            )
        )
    all_reduce()
    compute("mlp", 1, draw(st.integers(1, layers)), _native.Feature.TOKENS, TOKENS)
    all_reduce()
    compute("head", 2, 1, _native.Feature.SEQUENCES, SEQUENCES)
    return ops, specs


def run(program: Any, expanded: Any, requests: list[tuple[int, int, int]]) -> Any:
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
    group.depth = 2
    spec = _native.GroupSpec(group, scheduler, program, expanded, record_steps=True)
    sim = simulation(requests, [spec])
    while not sim.run(10_000):
        pass
    return sim


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_folded_equals_expanded(data: Any) -> None:
    ranks = data.draw(st.integers(1, 6))
    bandwidth = data.draw(st.integers(1, 900)) * 10**9 + data.draw(st.integers(0, 999))
    latency = data.draw(st.integers(0, 10**8))
    shape = data.draw(st.sampled_from(["fully_connected", "switch", "ring"]))
    network = data.draw(
        st.sampled_from(
            [engine.NetworkKind.CONGESTION_AWARE, engine.NetworkKind.CONGESTION_UNAWARE]
        )
    )
    topology = getattr(engine.Topology, shape)(max(ranks, 2), bandwidth, latency)
    ranks = max(ranks, 2)
    site = engine.CollectiveSite(
        topology,
        list(range(ranks)),
        engine.CollectiveKind.ALL_REDUCE,
        engine.Algorithm.RING,
        network=network,
    )
    ops, specs = operators(
        data.draw, ranks, site, data.draw(st.integers(1, 10_000)), data.draw(st.booleans())
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def attention(window: int) -> Any:
        axis = np.array([0, 16, 64], np.int64)
        return _native.Attention.mixed([axis] * 4, table, 12_345 << 20, window=window)

    def program() -> Any:
        return _native.Program(
            ops,
            attention(0),
            padded,
            _native.LowerBound(),
            gap,
            other_attentions=[attention(window)],
        )

    table = rng.integers(0, 10**9, 81).astype(np.int64)
    padded = np.arange(TOKENS + 1, dtype=np.int32)
    gap, window = data.draw(st.sampled_from([0, 777])), data.draw(st.integers(1, 200))
    requests = [
        (int(rng.integers(0, 10**11)), int(rng.integers(1, 150)), int(rng.integers(1, 20)))
        for _ in range(6)
    ]
    requests.sort()
    folded = run(program(), None, requests)
    exact = run(program(), _native.ExpandedConfig(topology, network, specs), requests)
    a, b = folded.steps(), exact.steps()
    assert len(a["end_ps"]) > 5
    assert all((a[name] == b[name]).all() for name in a)
    assert folded.busy_time() == exact.busy_time()
