"""Memory tiers and energy from Python."""

from types import ModuleType

import pytest

TB_PER_S = 10**12  # a byte per picosecond


def test_offload_meets_a_message_and_a_full_tier_refuses(engine: ModuleType) -> None:
    topology = engine.Topology.switch(4, TB_PER_S, 10)
    hbm = engine.Tier("hbm", engine.one_per_device(4), 4 * TB_PER_S, capacity_bytes=10_000)
    pool = engine.Tier(
        "pool",
        engine.one_for_all(4),
        2 * TB_PER_S,
        latency_ps=100,
        capacity_bytes=1000,
        sharing=engine.TierSharing.FIFO,
        held_by=[3],
    )
    system = engine.MemorySystem.make(topology, [hbm, pool])
    run = engine.Engine(topology, engine.NetworkKind.FAIR_SHARE, memory=system)
    run.reserve(1, 0, 1000)
    with pytest.raises(
        engine.OutOfMemory, match="1 bytes do not fit into memory tier 'pool' of device 2"
    ):
        run.reserve(1, 2, 1)
    first, second = run.access(1, 0, 1000, True, 0), run.access(1, 1, 1000, True, 0)
    message = run.transfer(2, 3, 500, 0)  # halves the way into device 3
    assert [run.advance() for _ in range(3)] == [(message, 1020), (first, 1620), (second, 2620)]
    counters = run.tier_counters()
    assert counters["stores"][system.place(1, 0)] == 2
    assert counters["waiting_ps"][system.place(1, 0)] == 1500
    assert len(run.link_counters()["bytes"]) == topology.num_links + system.num_links == 8 + 5


def test_loads_are_nodes_on_their_own_stream(engine: ModuleType) -> None:
    topology = engine.Topology.switch(2, TB_PER_S, 10)
    ssd = engine.Tier("ssd", engine.one_per_node(2, 2), TB_PER_S // 10, latency_ps=1000)
    run = engine.Engine(topology, memory=engine.MemorySystem.make(topology, [ssd]))
    builder = engine.GraphBuilder(2)
    load = builder.add(engine.NodeKind.MEMORY_LOAD, engine.Stream.COPY_IN, 0, 100, 0, 0)
    builder.compute(0, 500)
    builder.compute(0, 10, [load])
    graph = run.submit(builder.build(), 0)
    run.advance()
    assert list(run.times(graph)[1]) == [2000, 500, 2010]
    assert run.energy_nj([2_000_000])["class_nj"][0] == 2_000_000 * 2510 // 10**6


def test_a_tier_that_cannot_be_is_named(engine: ModuleType) -> None:
    topology = engine.Topology.switch(2, TB_PER_S, 10)
    with pytest.raises(engine.InvalidTopology, match="memory tier 'x' has 0 channels"):
        engine.MemorySystem.make(topology, [engine.Tier("x", engine.one_for_all(2), 1, channels=0)])
