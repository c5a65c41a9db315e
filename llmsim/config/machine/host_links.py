"""The links between devices and what is below them: host memory, storage of the node, pools."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

DevicePlace = tuple[int, int]
"""The node that a device is on, and its number among the devices of that node."""
LinkPlace = tuple[int, int]
"""The node that a link is on, and its number there."""


class HostLink(Struct, frozen=True):
    """A full-duplex link between a host and one or several of its devices."""

    bandwidth_bytes_per_s: int
    """In each direction."""
    latency_ps: int
    devices_per_link: int = 1


class Port(Struct, frozen=True):
    """What each of several devices has of its link to the host while all of them move bytes."""

    link_bytes_per_s: int
    latency_ps: int
    sharers: int = 1
    """Those of the devices that are on one link."""

    @property
    def bandwidth_bytes_per_s(self) -> int:
        """The share of one device, bytes/s."""
        return self.link_bytes_per_s // self.sharers

    @property
    def rate_q16(self) -> int:
        """The share of one device in units of 2^-16 bytes/s."""
        return (self.link_bytes_per_s << 16) // self.sharers


class HostLinks(Struct, frozen=True):
    """Says which link a transfer between a device and what is below it takes."""

    stated: Mapping[int, HostLink]
    """By node, those of the cluster file."""
    nominal: HostLink
    """Of the other nodes, whose devices take their port to the node's other instances."""
    places: tuple[tuple[DevicePlace, ...], ...]
    """By group and rank."""

    def of_node(self, node: int) -> HostLink:
        """The kind of link that devices of a node have."""
        return self.stated.get(node, self.nominal)

    def link_of(self, device: DevicePlace) -> LinkPlace:
        """The link that a device is on."""
        node, number = device
        return node, number // self.of_node(node).devices_per_link

    def links(self, group: int) -> tuple[LinkPlace, ...]:
        """The link of each rank of a group."""
        return tuple(self.link_of(device) for device in self.places[group])

    def port(self, group: int, together: int) -> Port:
        """The port of the rank with the least of its link while `together` consecutive ranks of a
        group move bytes, and the latency of the slowest one.
        """
        if not self.stated:  # links of one device each, all alike
            return Port(self.nominal.bandwidth_bytes_per_s, self.nominal.latency_ps)
        links, ports = self.links(group), []
        for first in range(0, len(links), together):
            for (node, _), sharers in Counter(links[first : first + together]).items():
                link = self.of_node(node)
                ports.append(Port(link.bandwidth_bytes_per_s, link.latency_ps, sharers))
        slowest = min(ports, key=lambda port: port.rate_q16)
        latency_ps = max(port.latency_ps for port in ports)
        return Port(slowest.link_bytes_per_s, latency_ps, slowest.sharers)

    def apart(self, nodes: Iterable[int]) -> bool:
        """Whether devices of all these nodes reach what is below them by links of its own."""
        return all(node in self.stated for node in nodes)
