"""Groups share a program where their devices' routes are alike; large groups only where they are
the same devices.
"""

from typing import cast

from llmsim import _native
from llmsim.config.topology.placement import PlacedTopology
from llmsim.lowering.network.topology import MAX_COMPARED_DEVICES, Routes


class Ring:
    """A ring of links between neighbours; every second one is slow."""

    def __init__(self, devices: int) -> None:
        self.devices = devices

    def route(self, a: int, b: int) -> list[int]:
        return [(a + step) % self.devices for step in range((b - a) % self.devices)]

    def link_speeds(self) -> list[tuple[int, int]]:
        return [(10**9 if link % 2 else 10**11, 1000) for link in range(self.devices)]


def routes(devices: int) -> Routes:
    placed, native = cast(PlacedTopology, None), cast(_native.engine.Topology, Ring(devices))
    return Routes(placed, native)


def test_groups_alike_by_speeds_and_by_what_they_share() -> None:
    ring = routes(8)
    assert ring.signature((0, 1, 2)) == ring.signature((2, 3, 4)) == ring.signature((6, 7, 0))
    assert ring.signature((0, 1, 2)) != ring.signature((1, 2, 3))  # the slow link is elsewhere
    assert ring.signature((0, 2)) != ring.signature((0, 1))


def test_large_groups_are_alike_only_where_they_are_the_same() -> None:
    ring = routes(4 * MAX_COMPARED_DEVICES)
    most, more = range(MAX_COMPARED_DEVICES), range(MAX_COMPARED_DEVICES + 1)
    assert ring.signature(most) == ring.signature([device + 2 for device in most])
    assert ring.signature(more) == ring.signature(more)
    assert ring.signature(more) != ring.signature([device + 2 for device in more])
