"""Collective plans of several dimensions, windows and custom schedules, from Python."""

from types import ModuleType
from typing import Any

import pytest


def topology_of_eight(engine: ModuleType) -> Any:
    return engine.Topology.fully_connected(8, 10**12, 10)


def test_hierarchical_all_reduce(engine: ModuleType) -> None:
    """A quarter of S inside, an eighth at a tenth of the speed; there and back."""
    topology = engine.Topology.grid(
        [
            (engine.TopologyKind.FULLY_CONNECTED, 4, 10**12, 10, 0),
            (engine.TopologyKind.FULLY_CONNECTED, 2, 10**11, 100, 0),
        ]
    )
    where = engine.CollectiveSite(
        topology,
        list(range(8)),
        engine.CollectiveKind.ALL_REDUCE,
        engine.Algorithm.DIRECT,
        shape=engine.CollectiveShape(dims=[4, 2]),
    )
    assert engine.isolated_duration(where, 8000) == 2 * (2000 + 10) + 2 * (10_000 + 100)


@pytest.mark.parametrize("window", [1, 3, 7, 9])
def test_window(engine: ModuleType, window: int) -> None:
    where = engine.CollectiveSite(
        topology_of_eight(engine),
        list(range(8)),
        engine.CollectiveKind.ALL_TO_ALL,
        engine.Algorithm.DIRECT,
        shape=engine.CollectiveShape(windows=[window]),
    )
    assert engine.isolated_duration(where, 8000) == -(-7 // window) * 1010


def test_custom_schedule(engine: ModuleType) -> None:
    """Rank 0 sends half of the vector to rank 1, which passes it on."""
    schedule = engine.Schedule.custom(3, 2, [(0, 1, 0, 1, []), (1, 2, 0, 1, [0])])
    builder = engine.GraphBuilder(8)
    group = builder.add_group([5, 0, 2])
    plan = builder.add_plan(
        engine.CollectiveKind.BROADCAST, engine.Algorithm.CUSTOM, group, schedule=schedule
    )
    for device in (5, 0, 2):
        builder.collective(device, plan, 0, 4000)
    run = engine.Engine(topology_of_eight(engine))
    graph = run.submit(builder.build(), 0)
    assert run.advance() is not None
    assert list(run.times(graph)[1]) == [2000, 4010, 4020]  # rank 1: its message has left its port
    with pytest.raises(engine.InvalidTopology, match="does not arrive at its sender"):
        engine.Schedule.custom(3, 2, [(0, 1, 0, 1, []), (0, 2, 0, 1, [0])])


def test_message_without_a_graph(engine: ModuleType) -> None:
    run = engine.Engine(topology_of_eight(engine), engine.NetworkKind.FAIR_SHARE)
    first, second = (run.transfer(0, 1, 1000, 0) for _ in range(2))
    run.cancel(first)
    assert run.next_event_ps() == 0
    done = run.advance()
    assert done == (second, 1010)
    assert run.num_in_flight == 0
