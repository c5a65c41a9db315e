"""Durations of what starts together, by closed form or by a walk: those of the engine's simulation,
for every algorithm, kind, network and number of ranks.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim._native import engine

RATE, LATENCY = 7_000_000_001, 1_009
NETWORKS = (
    engine.NetworkKind.CONGESTION_UNAWARE,
    engine.NetworkKind.CONGESTION_AWARE,
    engine.NetworkKind.FAIR_SHARE,
)
KINDS = (
    engine.CollectiveKind.ALL_REDUCE,
    engine.CollectiveKind.ALL_GATHER,
    engine.CollectiveKind.REDUCE_SCATTER,
    engine.CollectiveKind.ALL_TO_ALL,
)
WORDS = (*engine.algorithm_words(), "direct2")
SIZES = np.array([0, 1, 5, 4096, 1_048_579, 87_654_321], np.int64)


def topology(name: str, devices: int) -> "engine.Topology":
    """A mesh, a switch, a ring, a grid of two, or a mesh whose links are of two speeds."""
    kinds = engine.TopologyKind
    if name == "grid":
        inner = 2 if devices % 2 == 0 else 1
        sizes = [(kinds.FULLY_CONNECTED, inner), (kinds.SWITCH, devices // inner)]
        return engine.Topology.grid([(kind, n, RATE, LATENCY, 0) for kind, n in sizes if n > 1])
    if name == "uneven":
        builder = engine.TopologyBuilder(devices)
        for a, b in itertools.combinations(range(devices), 2):
            builder.add_link(a, b, RATE * (1 + (a + b) % 2), LATENCY * (1 + a % 3))
        return builder.build()
    if name == "mesh":
        return engine.Topology.fully_connected(devices, RATE, LATENCY)
    return engine.Topology.grid([(getattr(kinds, name.upper()), devices, RATE, LATENCY, 0)])


def simulated(
    network: "engine.Topology",
    how: "engine.NetworkKind",
    groups: list[list[int]],
    kind: "engine.CollectiveKind | None",
    choice: "engine.AlgorithmChoice",
) -> list[int]:
    """Every message of every size in the engine."""
    windows = [choice.window] if choice.window else []
    needs = network if choice.on_switch else None
    builder = engine.GraphBuilder(network.num_devices)
    for call, group in enumerate(groups):
        if kind is None:
            builder.transfer(group[0], group[1], 1)
            continue
        shape = engine.CollectiveShape(topology=needs, windows=windows)
        plan = builder.add_plan(kind, choice.algorithm, builder.add_group(group), shape=shape)
        for device in group:
            builder.collective(device, plan, call, 1)
    graph, found = builder.build(), []
    for size in SIZES:
        runs = engine.Engine(network, how)
        number = runs.submit(graph, 0, np.full(graph.num_nodes, size, np.int64))
        runs.run()
        found.append(int(np.max(np.asarray(runs.times(number)[1]))))
    return found


def same(network: Any, how: Any, groups: list[list[int]], kind: Any, word: str) -> int:
    """Compares; the messages that were simulated."""
    choice = engine.AlgorithmChoice.parse(word)
    durations = engine.ConcurrentDurations(network, how, groups, kind, choice)
    wanted = simulated(network, how, groups, kind, choice)
    assert durations.durations_ps(SIZES).tolist() == wanted
    return int(durations.num_simulated)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", ["mesh", "switch", "ring", "grid", "uneven"])
def test_one_collective(name: str, word: str) -> None:
    choice = engine.AlgorithmChoice.parse(word)
    closed = checked = 0
    for ranks, kind, how in itertools.product((2, 3, 4, 6, 8), KINDS, NETWORKS):
        if not choice.can(kind) or (choice.on_switch and name != "switch"):
            continue
        group = list(range(ranks))[::-1]
        closed += same(topology(name, ranks), how, [group], kind, word) == 0
        checked += 1
    assert (checked > 0) == (name == "switch" or not choice.on_switch)
    if name in ("mesh", "uneven"):
        assert closed == checked  # links of two ranks alone: nothing has to be simulated


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["mesh", "switch", "ring", "grid", "uneven"]),
    st.sampled_from(NETWORKS),
    st.sampled_from([*KINDS, None]),
    st.sampled_from([word for word in WORDS if word != "inSwitch"]),
    st.permutations(range(8)),
    st.sampled_from([[8], [4, 4], [2, 2, 2, 2], [3, 3], [2, 6]]),
)
def test_several_at_once(
    name: str, how: Any, kind: Any, word: str, order: list[int], sizes: list[int]
) -> None:
    if kind is None:
        sizes = [2] * len(sizes)
    elif not engine.AlgorithmChoice.parse(word).can(kind):
        word = "ring"
    ends = list(itertools.accumulate(sizes, initial=0))
    groups = [order[first:last] for first, last in itertools.pairwise(ends)]
    same(topology(name, 8), how, groups, kind, word)


def test_shares_in_turn_by_hand() -> None:
    """Of 3 ranks each has a third: two hops of latency and one serialisation a share."""
    network = engine.Topology.fully_connected(3, 10**9, 100)
    took = engine.broadcasts_in_turn(network, [[0, 1, 2]], np.array([9, 10], np.int64))
    assert took.tolist() == [3 * (3_000 + 200), 3 * (4_000 + 200)]
    shared = engine.Topology.grid([(engine.TopologyKind.RING, 4, 10**9, 100, 0)])
    # From 0 to 2 to 0: the two chains cross each link of the ring once or twice.
    took = engine.broadcasts_in_turn(shared, [[0, 2], [1, 3]], np.array([8], np.int64))
    assert took.tolist() == [2 * (2 * 4_000 + 200)]


def test_words_that_no_algorithm_has() -> None:
    for word in ("", "rings", "ring2", "direct0", "onetwo", "measured", "custom", "DIRECT"):
        with pytest.raises(ValueError, match="was expected"):
            engine.AlgorithmChoice.parse(word)


def test_impossible_algorithms_are_one_sentence() -> None:
    mesh, gathers = topology("mesh", 4), engine.CollectiveKind.ALL_GATHER
    for word in ("doubleBinaryTree", "inSwitch"):
        with pytest.raises(engine.InvalidTopology) as caught:
            engine.ConcurrentDurations(
                mesh, NETWORKS[1], [[0, 1, 2, 3]], gathers, engine.AlgorithmChoice.parse(word)
            )
        assert str(caught.value).count("\n") == 0
