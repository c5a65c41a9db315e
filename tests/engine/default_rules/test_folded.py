"""Folded evaluation of a tensor-parallel iteration equals the expanded one, to the picosecond
(invariant 9).
"""

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..collectives.reference import Site
from ..collectives.test_collectives import native_site, sites

relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
spans_ps = st.integers(0, 3_000_000)


@st.composite
def chains(draw: st.DrawFn, engine: ModuleType, site: Site, skewed: bool) -> Any:
    """A chain whose sites differ in kind and algorithm, one of them measured."""
    first = native_site(engine, site)
    table = engine.MeasuredTable([0, 4096, 1 << 20], [5_000_000, 5_500_001, 40_000_000])
    network = (
        engine.NetworkKind.CONGESTION_AWARE if site.aware else engine.NetworkKind.CONGESTION_UNAWARE
    )
    topology_site = (first.topology, site.group)
    others = []
    for _ in range(2):
        measured = draw(st.booleans())
        algorithm = "MEASURED" if measured else draw(st.sampled_from(["RING", "DIRECT"]))
        kind = draw(st.sampled_from(["ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL"]))
        others.append(
            engine.CollectiveSite(
                *topology_site,
                getattr(engine.CollectiveKind, kind),
                getattr(engine.Algorithm, algorithm),
                table if measured else None,
                network,
                site.endpoint_delay_ps,
            )
        )
    n = len(site.group)
    durations = (
        st.lists(spans_ps, min_size=n, max_size=n)
        if skewed
        else st.lists(spans_ps, min_size=1, max_size=1)
    )
    compute = durations.map(engine.ChainItem.compute)
    collective = st.builds(engine.ChainItem.collective, st.integers(0, 2), st.integers(0, 1 << 21))
    items = st.lists(st.one_of(compute, collective), min_size=1, max_size=4)
    blocks = draw(st.lists(st.tuples(st.integers(0, 5), items), max_size=3))
    return engine.Chain([first, *others], blocks)


@relaxed
@given(site=sites(), start=st.integers(0, 10**9), data=st.data())
def test_equal_starts(engine: ModuleType, site: Site, start: int, data: st.DataObject) -> None:
    chain = data.draw(chains(engine, site, skewed=False))
    starts = np.full(len(site.group), start, np.int64)
    folded = engine.FoldedChain(chain)
    expanded = engine.expanded_ends(chain, starts)
    try:
        ends = folded.ends(starts)
    except engine.NotFoldable:
        assert not folded.linear
        # Refused only where ranks really drift apart or may have: never on symmetric networks.
        assert site.topology == "ring"
        return
    assert ends.tolist() == expanded.tolist()


@relaxed
@given(site=sites(), data=st.data())
def test_skewed_starts_and_costs(engine: ModuleType, site: Site, data: st.DataObject) -> None:
    chain = data.draw(chains(engine, site, skewed=True))
    spread = data.draw(st.sampled_from([1, 10**6, 10**10]))
    n = len(site.group)
    starts = np.array(data.draw(st.lists(st.integers(0, spread), min_size=n, max_size=n)), np.int64)
    folded = engine.FoldedChain(chain)
    try:
        ends = folded.ends(starts)
    except engine.NotFoldable:
        assert not folded.linear
        return
    assert ends.tolist() == engine.expanded_ends(chain, starts).tolist()


def far_topology(engine: ModuleType, rng: random.Random) -> Any:
    """Routes of several links at several speeds: grids, and devices in a circle with a switch
    between neighbours.
    """
    speeds = rng.choice(((10**9,), (10**9, 10**10, 10**11)))

    def speed() -> tuple[int, int]:
        return rng.choice(speeds), rng.choice((0, 1_000))

    if rng.random() < 0.5:
        shapes = (
            engine.TopologyKind.RING,
            engine.TopologyKind.SWITCH,
            engine.TopologyKind.FULLY_CONNECTED,
        )
        dims = rng.randint(1, 2)
        return engine.Topology.grid(
            [(rng.choice(shapes), rng.randint(2, 6), *speed(), 0) for _ in range(dims)]
        )
    n = rng.randint(3, 5)
    builder = engine.TopologyBuilder(n, True)
    for device in range(n):
        between = builder.add_switch()
        builder.add_link(device, between, *speed())
        builder.add_link(between, (device + 1) % n, *speed())
    return builder.build()


def far_site(
    engine: ModuleType,
    rng: random.Random,
    topology: Any,
    group: list[int],
    network: Any,
    plain: bool,
) -> Any:
    """Any kind and algorithm that go together; `plain`: ring and direct of the first four kinds."""
    if rng.random() < 0.15:
        table = engine.MeasuredTable([0, 4096], [1000, rng.randint(1000, 10**7)])
        kind, measured = engine.CollectiveKind.ALL_REDUCE, engine.Algorithm.MEASURED
        return engine.CollectiveSite(topology, group, kind, measured, table, network)
    kinds = ["ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL"]
    kinds += [] if plain else ["BROADCAST", "REDUCE", "GATHER", "SCATTER", "BARRIER"]
    algorithms = ["RING", "DIRECT"] + ([] if plain else ["HALVING_DOUBLING", "DOUBLE_BINARY_TREE"])
    shape = (
        engine.CollectiveShape()
        if plain
        else engine.CollectiveShape(root=rng.randrange(len(group)))
    )
    while True:
        kind = getattr(engine.CollectiveKind, rng.choice(kinds))
        algorithm = getattr(engine.Algorithm, rng.choice(algorithms))
        try:
            return engine.CollectiveSite(
                topology, group, kind, algorithm, network=network, shape=shape
            )
        except engine.InvalidTopology:
            continue


@pytest.mark.parametrize("network", ["CONGESTION_UNAWARE", "CONGESTION_AWARE", "FAIR_SHARE"])
@pytest.mark.parametrize("plain", [False, True])
def test_long_ways_and_unlike_links(engine: ModuleType, network: str, plain: bool) -> None:
    """A message of a collective may be behind the last one of the collective before: exact, or
    refused.
    """
    equal = skewed = 0
    for seed in range(400):
        rng = random.Random(seed)
        topology = far_topology(engine, rng)
        group = rng.sample(
            range(topology.num_devices), rng.randint(2, min(topology.num_devices, 5))
        )
        kind = getattr(engine.NetworkKind, network)
        sites = [far_site(engine, rng, topology, group, kind, plain) for _ in range(3)]
        items = []
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.6:
                size = rng.choice((0, 3, 30_000, 3_000_000))
                items.append(engine.ChainItem.collective(rng.randrange(3), size))
            else:
                items.append(engine.ChainItem.compute([rng.randint(0, 10**7) for _ in group]))
        chain = engine.Chain(sites, [(rng.randint(1, 3), items)])
        spread = rng.choice((0, 10**7, 10**10))
        starts = np.array([rng.choice((0, rng.randint(0, spread))) for _ in group])
        try:
            ends = engine.FoldedChain(chain).ends(starts)
        except engine.NotFoldable:
            continue
        assert ends.tolist() == engine.expanded_ends(chain, starts).tolist(), seed
        equal += 1
        skewed += int(len(set(starts.tolist())) > 1)
    assert equal > 50
    assert skewed > (200 if network == "CONGESTION_UNAWARE" else 5)


def test_a_graph_is_reused_with_other_amounts(engine: ModuleType) -> None:
    """What `--exact` does: one structure, new durations and sizes each iteration, on an engine that
    keeps its clock.
    """
    site = Site("ring", 8, 450 * 10**9, 500_000, list(range(8)), "all_reduce", "ring", aware=True)
    where = native_site(engine, site)
    run = engine.Engine(where.topology)

    def chain(compute_ps: int, num_bytes: int) -> Any:
        layer = [engine.ChainItem.compute([compute_ps]), engine.ChainItem.collective(0, num_bytes)]
        return engine.Chain([where], [(80, layer)])

    graph = engine.expand(chain(1, 1), np.zeros(8, np.int64))
    for compute_ps, num_bytes in ((5_000_000, 1 << 20), (7_000_001, 12_345)):
        amounts = graph.amounts
        amounts[8:].reshape(80, 2, 8)[:, 0] = compute_ps
        amounts[8:].reshape(80, 2, 8)[:, 1] = num_bytes
        submitted_ps = run.now_ps
        done = run.submit(graph, submitted_ps, amounts)
        assert run.advance() == (
            done,
            submitted_ps + 80 * (compute_ps + engine.isolated_duration(where, num_bytes)),
        )
        run.release(done)


def test_refusals_are_one_sentence(engine: ModuleType) -> None:
    site = Site("switch", 4, 10**9, 1000, [0, 1, 2, 3], "all_to_all", "direct", aware=True)
    where = native_site(engine, site)
    chain = engine.Chain([where], [(1, [engine.ChainItem.collective(0, 1 << 20)])])
    with pytest.raises(engine.NotFoldable, match="drifted apart"):
        engine.FoldedChain(chain).ends(np.array([0, 1, 2, 3]))
    with pytest.raises(engine.InvalidGraph, match="2 start times for 4 ranks"):
        engine.FoldedChain(chain).ends(np.array([0, 1]))
    with pytest.raises(engine.InvalidGraph, match="names site 3"):
        engine.FoldedChain(engine.Chain([where], [(1, [engine.ChainItem.collective(3, 1)])]))
    with pytest.raises(engine.InvalidTopology, match="device 4"):
        engine.CollectiveSite(
            where.topology, [0, 4], engine.CollectiveKind.ALL_REDUCE, engine.Algorithm.RING
        )
