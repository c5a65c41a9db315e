"""Graphs through the bindings: columns, errors, many at once, counters, determinism."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

relaxed = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def random_graph(
    engine: ModuleType, rng: np.random.Generator, num_devices: int, num_nodes: int
) -> Any:
    """Compute and transfers with dependencies on earlier nodes only."""
    transfer = (rng.random(num_nodes) < 0.4) & (num_devices > 1)
    device = rng.integers(0, num_devices, num_nodes)
    peer = np.where(
        transfer,
        (device + rng.integers(1, max(2, num_devices), num_nodes)) % num_devices,
        2**32 - 1,
    )
    parents: list[int] = []
    begin = [0]
    for node in range(num_nodes):
        parents += (
            sorted(rng.choice(node, size=min(node, int(rng.integers(0, 3))), replace=False))
            if node
            else []
        )
        begin.append(len(parents))
    builder = engine.GraphBuilder(num_devices)
    kind = np.where(transfer, int(engine.NodeKind.TRANSFER), int(engine.NodeKind.COMPUTE)).astype(
        np.uint8
    )
    builder.add_columns(
        kind,
        rng.integers(0, 6, num_nodes).astype(np.uint8),
        device.astype(np.uint32),
        rng.integers(0, 10_000, num_nodes),
        peer.astype(np.uint32),
        np.zeros(num_nodes, np.uint32),
        np.array(begin),
        np.array(parents, np.uint64),
    )
    return builder.build(), begin, parents


@relaxed
@given(seed=st.integers(0, 2**32), aware=st.booleans())
def test_random_graphs_respect_their_dependencies(
    engine: ModuleType, seed: int, aware: bool
) -> None:
    rng = np.random.default_rng(seed)
    num_devices = int(rng.integers(2, 6))
    topology = engine.Topology.switch(num_devices, 10**12, 100)
    network = (
        engine.NetworkKind.CONGESTION_AWARE if aware else engine.NetworkKind.CONGESTION_UNAWARE
    )

    def run() -> list[Any]:
        local = np.random.default_rng(seed)
        runtime = engine.Engine(topology, network)
        graphs = [
            random_graph(engine, local, num_devices, int(local.integers(1, 30))) for _ in range(3)
        ]
        ids = [runtime.submit(graph, int(local.integers(0, 20_000))) for graph, _, _ in graphs]
        ends = {}
        while (done := runtime.advance()) is not None:
            ends[done[0]] = done[1]
        out: list[Any] = [runtime.link_counters()["bytes"].tolist()]
        for number, (_, begin, parents) in zip(ids, graphs, strict=True):
            start_ps, end_ps = runtime.times(number)
            assert ends[number] == end_ps.max()
            assert (end_ps >= start_ps).all() and (start_ps >= 0).all()
            for node in range(len(start_ps)):
                for parent in parents[begin[node] : begin[node + 1]]:
                    assert start_ps[node] >= end_ps[parent]
            out.append((start_ps.tolist(), end_ps.tolist()))
        return out

    assert run() == run()


def test_errors_name_the_node(engine: ModuleType) -> None:
    builder = engine.GraphBuilder(2)
    builder.compute(0, 5, [3])
    with pytest.raises(
        engine.InvalidGraph, match=r"node 0 .compute on device 0. depends on node 3"
    ):
        builder.build()
    builder.clear()
    builder.compute(0, 5, [1])
    builder.compute(1, 5, [0])
    with pytest.raises(engine.InvalidGraph, match="cycle: node 0"):
        builder.build()
    builder.clear()
    with pytest.raises(engine.InvalidGraph, match="columns of a graph have 1 and 0 entries"):
        one, none = np.zeros(1, np.uint8), np.zeros(0, np.uint8)
        builder.add_columns(one, none, one, one, one, one, np.array([0, 0]), none)
    with pytest.raises(engine.InvalidGraph, match="parent_begin has to rise"):
        builder.add_columns(one, one, one, one, one, one, np.array([0, 2]), none)
    with pytest.raises(engine.InvalidTopology, match="bandwidth is 0"):
        engine.Topology.ring(4, 0, 0)
    assert issubclass(engine.Stalled, engine.EngineError)


def test_stalled_names_who_waits(engine: ModuleType) -> None:
    builder = engine.GraphBuilder(2)
    plan = builder.add_plan(
        engine.CollectiveKind.ALL_REDUCE, engine.Algorithm.RING, builder.add_group([0, 1])
    )
    for device, calls in ((0, (0, 1)), (1, (1, 0))):
        for call in calls:
            builder.collective(device, plan, call, 8)
    run = engine.Engine(engine.Topology.ring(2, 10**9, 0))
    run.submit(builder.build(), 0)
    with pytest.raises(engine.Stalled, match=r"node 0 .* waits for node 3"):
        run.run()


def test_contention_between_graphs(engine: ModuleType) -> None:
    """Two transfers over one uplink take turns; in a congestion-unaware network they do not notice
    each other.
    """
    for network, second_end in (
        (engine.NetworkKind.CONGESTION_AWARE, 3020),
        (engine.NetworkKind.CONGESTION_UNAWARE, 1020),
    ):
        run = engine.Engine(engine.Topology.switch(3, 10**12, 10), network)
        ends = []
        for target in (1, 2):
            builder = engine.GraphBuilder(3)
            builder.transfer(0, target, 1000, stream=engine.Stream.NONE)
            run.submit(builder.build(), 0)
        while (done := run.advance()) is not None:
            ends.append(done[1])
        assert ends[-1] == second_end
        counters = run.link_counters()
        assert counters["bytes"].tolist() == [2000, 0, 0, 0, 1000, 1000]
