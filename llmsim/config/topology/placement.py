"""Which devices of a topology file are whose: a cluster's `topology` and its instances'
`topology_devices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from llmsim.config.cluster_file.json_positions import Location, field_path
from llmsim.config.errors import InputError, nearest

if TYPE_CHECKING:
    from llmsim.config.cluster_file.cluster import Cluster, Incast
    from llmsim.config.topology.file import TopologySpec


class PlacedTopology(Struct, frozen=True):
    """A network, and its devices by group and rank (tensor-parallel ranks of the first pipeline
    stage first).
    """

    spec: TopologySpec
    devices: tuple[tuple[int, ...], ...]
    incast: Incast | None = None
    """What bursts of many senders cost at its switches; None: nothing."""

    def as_record(self) -> dict[str, Any]:
        """For a run's manifest: the network as a topology file, and whose its devices are."""
        record: dict[str, Any] = {
            "network": self.spec.as_file(),
            "devices": [list(devices) for devices in self.devices],
        }
        return record if self.incast is None else record | {"incast": self.incast.model_dump()}


def place_topology(cluster: Cluster) -> PlacedTopology | None:
    """The cluster's topology with a device for every rank; None where the file names none.

    An instance that names its devices, or a group of them, has those. Any other takes, in the order
    of the file, the next that nobody has: on node i from the topology's group `node<i>` where it
    has such groups, else from all. Raises InputError where the file cannot be read or the devices
    do not fit.
    """
    if cluster.topology is None:
        return None
    # Its models take a while to build.
    from llmsim.config.topology.file import beside_cluster, load_topology

    where = cluster.position(("topology",))
    try:
        spec = load_topology(beside_cluster(cluster.topology, cluster.path))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    chosen: dict[int, tuple[int, ...]] = {}
    owner: dict[int, str] = {}
    for index, (location, instance) in enumerate(cluster.instances()):
        count = instance.layout.num_devices * instance.layout.replicas
        if instance.topology_devices is not None:
            position = cluster.position((*location, "topology_devices"))
            chosen[index] = _checked(instance.topology_devices, spec, position)
        elif instance.topology_group is not None:
            position = cluster.position((*location, "topology_group"))
            chosen[index] = _first_of(instance.topology_group, count, spec, position)
        else:
            continue
        _claim(chosen[index], position, field_path(location), owner)
    for index, (location, instance) in enumerate(cluster.instances()):
        if index in chosen:
            continue
        of_node = "node0" in spec.groups and cluster.layouts is None
        nodes = (instance.nnodes or 1) if of_node else 1
        count = instance.layout.num_devices * instance.layout.replicas
        found: list[int] = []
        assert isinstance(location[1], int), "nodes[i].instances[j]"
        for node in range(location[1], location[1] + nodes):
            needed = _Needed(where, location, count // nodes, node if of_node else None)
            found += _next_free(spec, needed, owner)
        chosen[index] = tuple(found)
        _claim(chosen[index], cluster.position(location), field_path(location), owner)
    devices = tuple(
        chosen[index][first : first + instance.layout.num_devices]
        for index, (_, instance) in enumerate(cluster.instances())
        for first in range(0, len(chosen[index]), instance.layout.num_devices)
    )
    return PlacedTopology(spec, devices, cluster.incast)


class _Needed(Struct, frozen=True):
    """Devices that an instance takes in order, of one node where a node is given."""

    where: str
    location: Location
    count: int
    node: int | None


def _next_free(spec: TopologySpec, needed: _Needed, owner: Mapping[int, str]) -> list[int]:
    """The next devices that nobody has; raises InputError where too few are left."""
    name = "" if needed.node is None else f"node{needed.node}"
    if name and name not in spec.groups:
        raise InputError(
            f"{needed.where}: {spec.name} has no group {name} for the instances of "
            f"nodes[{needed.node}]; give them "
            "topology_devices, or name a topology with as many nodes"
        )
    pool = spec.groups[name] if name else _in_order(spec)
    free = [device for device in pool if device not in owner]
    if len(free) < needed.count:
        raise InputError(
            f"{needed.where}: {spec.name}{f' {name}' if name else ''} has {len(pool)} devices, "
            f"of which {len(free)} "
            f"are left for the {needed.count} of {field_path(needed.location)}; name a larger "
            "topology, or give it topology_devices of several nodes"
        )
    return free[: needed.count]


def _in_order(spec: TopologySpec) -> list[int]:
    """All devices, those of its nodes first where it names nodes."""
    number = 0
    devices: list[int] = []
    while (name := f"node{number}") in spec.groups:
        devices += spec.groups[name]
        number += 1
    return list(dict.fromkeys([*devices, *range(spec.num_devices())]))


def _checked(devices: tuple[int, ...], spec: TopologySpec, position: str) -> tuple[int, ...]:
    for device in devices:
        if device >= spec.num_devices():
            raise InputError(
                f"{position} names device {device}; {spec.name} has the devices 0 to "
                f"{spec.num_devices() - 1}"
            )
    if len(set(devices)) != len(devices):
        twice = next(device for device in devices if devices.count(device) > 1)
        raise InputError(
            f"{position} names device {twice} twice; every rank needs a device of its own"
        )
    return devices


def _first_of(group: str, count: int, spec: TopologySpec, position: str) -> tuple[int, ...]:
    if group not in spec.groups:
        known = f"expected one of {', '.join(spec.groups)}" if spec.groups else "it has no groups"
        raise InputError(
            f'{position} is "{group}", no group of '
            f"{spec.name}{nearest(group, spec.groups)}; {known}"
        )
    devices = spec.groups[group]
    if len(devices) < count:
        raise InputError(
            f'{position} is "{group}", a group of {len(devices)} devices; the instance has {count}'
        )
    return devices[:count]


def _claim(devices: tuple[int, ...], position: str, path: str, owner: dict[int, str]) -> None:
    for device in devices:
        if device in owner:
            raise InputError(
                f"{position} names device {device}, which {owner[device]} has already; give each "
                "one owner"
            )
        owner[device] = path
