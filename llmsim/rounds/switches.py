"""Topologies as ASTRA-sim's network files can say them: a switch, or switches in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from llmsim.lowering import LoweredGroup
from llmsim.lowering.network.base import MeshDescription
from llmsim.lowering.network.topology import Routes, TopologyView

Port = tuple[int, int]
"""Bytes/s and latency in ps."""


def switches_of(lowered: LoweredGroup) -> MeshDescription | None:
    """The switches of a topology that join all ranks of a group and its members; None where they
    are joined otherwise, or there is no topology.
    """
    view = lowered.links
    if not isinstance(view, TopologyView):
        return None
    routes, devices = view.routes, view.domain
    port = routes.switch_among(devices)
    if port is not None:
        return MeshDescription(((len(devices), *port),), "Switch")
    for size in range(len(devices) // 2, 1, -1):
        found = _rails(routes, devices, size)
        if found is not None:
            return found
    return None


def _rails(routes: Routes, devices: Sequence[int], size: int) -> MeshDescription | None:
    """Servers of `size` neighbouring ranks behind a switch each, and a switch for the ranks of
    equal place in all servers; None: it is not so.
    """
    if len(devices) % size:
        return None
    servers = [devices[first : first + size] for first in range(0, len(devices), size)]
    inside = _common(routes, servers)
    between = _common(routes, list(zip(*servers, strict=True)))
    if inside is None or between is None:
        return None
    return MeshDescription(((size, *inside), (len(servers), *between)), "Switch")


def _common(routes: Routes, groups: Sequence[Sequence[int]]) -> Port | None:
    """The ports of the switches that join the devices of each group; None where they differ, or a
    group has no switch.
    """
    ports = {routes.switch_among(devices) for devices in groups}
    return ports.pop() if len(ports) == 1 else None
