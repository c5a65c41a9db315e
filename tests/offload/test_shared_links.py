"""Copies that meet others on the cluster's network: alone equal to the folded times, else max-min
fair shares.
"""

from copy import copy
from typing import Any

import numpy as np
import pytest
import simulations
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim import _native
from tests.offload.test_streams import (
    SEQUENCES,
    TOKENS,
    US,
    attention_node,
    drawn_config,
    operator,
    program,
)

FAST, SLOW = (
    10**14,
    10**12,
)  # bytes/s: a port that never limits, and a memory that takes 1 ps per byte


def shared_network(
    ranks: int, groups: int = 1
) -> tuple[Any, list[list[int]], int, list[list[int]]]:
    """(fabric, places of the devices by group, the host's place, places of each rank's memory that
    computes).
    """
    config = _native.NetworkConfig(_native.Sharing.FAIR)

    def place(near: tuple[int, int]) -> int:
        number: int = config.add_place(0, near, (-1, -1))
        return number

    def fast() -> tuple[int, int]:
        return config.add_link(FAST, 0), config.add_link(FAST, 0)

    link = config.add_link(SLOW, 0)
    host = place((link, link))
    devices = [[place(fast()) for _ in range(ranks)] for _ in range(groups)]
    # As in drawn_config: 5 us of latency each way, 10^9 + 7 bytes/s.
    memory = [
        [
            place((config.add_link(10**9 + 7, 5 * US), config.add_link(10**9 + 7, 5 * US)))
            for _ in range(ranks)
        ]
        for _ in range(groups)
    ]
    return config, devices, host, memory


def simulation(
    programs: list[Any], offloads: list[Any], requests: list[tuple[int, int, int]], network: Any
) -> Any:
    """One group for each program; requests take turns at them."""
    specs = []
    for index, (a_program, offload) in enumerate(zip(programs, offloads, strict=True)):
        scheduler, kv = _native.SchedulerConfig(), _native.KvCacheConfig()
        scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = SEQUENCES, TOKENS
        scheduler.async_scheduling = True
        kv.num_blocks, kv.max_model_len = 30, 10_000
        scheduler.kv = kv
        group = _native.GroupConfig()
        group.index, group.model, group.depth, group.offload = index, index, 2, offload
        specs.append(_native.GroupSpec(group, scheduler, a_program, record_steps=True))
    model = [row % len(programs) for row in range(len(requests))]
    sim = simulations.simulation(requests, specs, model=model, network=network)
    while not sim.run(10_000):
        pass
    return sim


def staged(layers: int, stages: int, table: Any, rng: Any, gap: int) -> Any:
    """Embedding and head around six-operator layers, in one stage or two."""
    ops = [operator("embedding", 0, 1, table(TOKENS))]
    ops += [operator("qkv", 1, layers, table(TOKENS)), attention_node(layers)]
    ops += [operator("gate", 1, layers, table(TOKENS)), operator("moe", 1, layers, table(TOKENS))]
    ops += [operator("head", 2, 1, table(SEQUENCES), _native.Feature.SEQUENCES)]
    return program(ops, rng.integers(0, 10**8, 4), rng.integers(0, 10**8, 4), gap)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_alone_it_is_the_folded_time(data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    layers, ranks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))

    def table(size: int) -> Any:
        return np.sort(rng.integers(0, 10**8, size + 1))

    a_program = staged(layers, 1, table, rng, data.draw(st.sampled_from([0, 777])))
    config = drawn_config(data, rng, layers, table)
    network, devices, host, memory = shared_network(ranks)
    weights = config.weights
    weights.sources = [_native.CopySource(0, (SLOW << 16) // ranks, host)]
    config.weights = weights
    if config.host.runs:
        processors = config.host
        latency = processors.latency_ps = 7 * US
        processors.rate_q16 = (SLOW << 16) // ranks
        # Reads and writes of the processors have a link each, apart from that of the copies.
        processors.place = network.add_place(
            0, (network.add_link(SLOW, latency), network.add_link(SLOW, latency)), (-1, -1)
        )
        config.host = processors
    if config.has_pim:
        pim = config.pim
        pim.places = memory[0]
        config.pim = pim
    if config.interleaving == _native.Interleaving.WHEN_SHORTER:
        config.interleaving = _native.Interleaving.NEVER  # chosen by other start times
    config.ranks = devices
    rows = sorted(
        (int(rng.integers(0, 10**10)), int(rng.integers(1, 150)), int(rng.integers(1, 20)))
        for _ in range(6)
    )
    folded = simulation([a_program], [copy(config)], rows, None)
    config.shared = True
    shared = simulation([a_program], [config], rows, network)
    a, b = folded.steps(), shared.steps()
    assert len(a["end_ps"]) > 5
    assert all((a[name] == b[name]).all() for name in a)
    assert folded.activity(0)["offload"] == shared.activity(0)["offload"]


def two_groups(requests: list[tuple[int, int, int]], copy_ps: int, layers: int = 4) -> Any:
    """Two groups that copy from one host; every layer of each computes for 1 us."""
    network, devices, host, _ = shared_network(1, groups=2)
    flat = np.full(TOKENS + 1, US)
    programs, configs = [], []
    for group in range(2):
        ops = [operator("qkv", 1, layers, flat), attention_node(layers)]
        ops.append(operator("head", 2, 1, np.zeros(SEQUENCES + 1), _native.Feature.SEQUENCES))
        programs.append(program(ops, np.zeros(4), np.zeros(4)))
        config, weights = _native.OffloadConfig(), _native.WeightStreaming()
        weights.sources = [_native.CopySource(0, SLOW << 16, host)]
        weights.ahead, weights.ahead_from, weights.buffers = [[copy_ps] * layers], [[0] * layers], 2
        config.weights, config.shared, config.ranks = weights, True, [devices[group]]
        configs.append(config)
    return simulation(programs, configs, requests, network)


def lengths(sim: Any, group: int) -> Any:
    steps = sim.steps()
    mine = steps["group"] == group
    return (steps["end_ps"] - steps["start_ps"])[mine]


def test_only_those_that_are_active_share() -> None:
    # The second request comes long after the first is done, and the other way round nobody is
    # there.
    apart = two_groups([(0, 8, 12), (10**13, 8, 12)], 100 * US)
    assert (lengths(apart, 0)[4:] == 4 * 100 * US).all()
    assert (lengths(apart, 1)[4:] == 4 * 100 * US).all()
    together = two_groups([(0, 8, 40), (0, 8, 40)], 100 * US)
    for group in (0, 1):
        assert (lengths(together, group)[4:30] == 4 * 200 * US).all()


def test_a_neighbour_that_computes_longer_takes_less() -> None:
    alone = two_groups([(0, 8, 30), (10**13, 8, 2)], 100 * US)
    both = two_groups([(0, 8, 30), (0, 8, 30)], 100 * US)
    assert lengths(alone, 0).sum() < lengths(both, 0).sum() <= 2 * lengths(alone, 0).sum()
    used = both.network()
    assert int(used["busy_ps"].max()) <= int(both.steps()["end_ps"].max()) + 10**10
    assert int(used["bytes"][0]) % (100 * US) == 0


def test_activations_of_two_groups_share_the_memory() -> None:
    """Two layers run on the processors; their activations take 100 us to them and 100 us back."""

    def steps(requests: list[tuple[int, int, int]]) -> Any:
        network, devices, host, _ = shared_network(1, groups=2)
        flat = np.full(TOKENS + 1, US)
        programs, configs = [], []
        for group in range(2):
            ops = [operator("qkv", 1, 2, flat), attention_node(2), operator("mlp", 1, 2, flat)]
            ops.append(operator("head", 2, 1, np.zeros(SEQUENCES + 1), _native.Feature.SEQUENCES))
            programs.append(program(ops, np.zeros(4), np.zeros(4)))
            config, processors = _native.OffloadConfig(), _native.HostOperators()
            processors.runs = [False, False, True, False]
            processors.input_bytes = processors.output_bytes = [100 * US] * 4
            processors.rate_q16, processors.place = SLOW << 16, host
            config.host, config.shared, config.ranks = processors, True, [devices[group]]
            configs.append(config)
        return simulation(programs, configs, requests, network)

    alone = lengths(steps([(0, 1, 20), (10**13, 1, 20)]), 0)
    assert (alone == 2 * (1 + 100 + 1 + 100) * US).all()
    together = steps([(0, 1, 20), (0, 1, 20)])
    for group in (0, 1):
        assert (lengths(together, group) == 2 * (1 + 200 + 1 + 200) * US).all()


def test_the_network_is_needed() -> None:
    with pytest.raises(ValueError, match="need the network"):
        devices = shared_network(1)[1]
        config = _native.OffloadConfig()
        config.shared, config.ranks = True, devices
        rng = np.random.default_rng(0)
        a_program = staged(1, 1, lambda size: np.zeros(size + 1, np.int64), rng, 0)
        simulation([a_program], [config], [(0, 8, 2)], None)


def test_a_step_that_takes_nothing_still_lasts_a_picosecond() -> None:
    """So that time goes on where every time of a step is zero."""
    network, [devices], host, _ = shared_network(1)
    flat = [np.zeros(TOKENS + 1), np.zeros(TOKENS + 1), np.zeros(SEQUENCES + 1)]
    ops = [operator("qkv", 1, 1, flat[0]), attention_node(1), operator("mlp", 1, 1, flat[1])]
    ops.append(operator("head", 2, 1, flat[2], _native.Feature.SEQUENCES))
    weights = _native.WeightStreaming()
    weights.sources = [_native.CopySource(0, SLOW << 16, host)]
    config = _native.OffloadConfig()
    config.weights, config.shared, config.ranks = weights, True, [devices]
    steps = simulation(
        [program(ops, np.zeros(4), np.zeros(4))], [config], [(0, 8, 5)], network
    ).steps()
    assert (steps["end_ps"] - steps["start_ps"]).tolist() == [1] * 5
