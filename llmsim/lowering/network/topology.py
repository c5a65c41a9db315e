"""Prices a group's collectives on the routes of the cluster's topology file, with all that runs at
the same time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import inf

from msgspec import Struct

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group
from llmsim.config.topology.placement import PlacedTopology
from llmsim.costs.nccl.plans import Place
from llmsim.lowering.network.algorithms import is_ring
from llmsim.lowering.network.all_to_all import Ports, check_even
from llmsim.lowering.network.base import (
    NO_INCAST,
    Episode,
    NetworkView,
    NominalNote,
    TopologyDescription,
)
from llmsim.lowering.network.nccl import (
    NcclModel,
    Servers,
    alike_and_fast,
    ring_bytes_per_s,
    servers_of,
)
from llmsim.lowering.network.topology_all_to_all import routed_ports
from llmsim.model import Collective, Hardware
from llmsim.model.layout import Among
from llmsim.model.operator import collective

PPM_PER_PERCENT = 10_000
MAX_COMPARED_DEVICES = 64
"""Routes between all pairs of so many devices are compared in milliseconds."""


class Routes(Struct, frozen=True, eq=False, dict=True):
    """A topology in the engine, and its devices by group and rank."""

    placed: PlacedTopology
    native: "engine.Topology"

    @cached_property
    def speeds(self) -> list[tuple[int, int]]:
        """(bytes/s, latency in ps) by link."""
        return [(bandwidth, latency) for bandwidth, latency in self.native.link_speeds()]

    @cached_property
    def incast(self) -> "engine.Incast":
        """What bursts of many senders cost at the switches."""
        given = self.placed.incast
        if given is None:
            return NO_INCAST
        return engine.Incast(
            given.buffer_bytes, given.burst_bytes, given.efficiency_percent * PPM_PER_PERCENT
        )

    @cached_property
    def queues(self) -> frozenset[int]:
        """Links that leave a switch, where bursts of many senders cost something."""
        if self.placed.incast is None:
            return frozenset()
        devices = self.placed.spec.num_devices()
        ends = self.native.links()
        return frozenset(link for link, (sender, _) in enumerate(ends) if sender >= devices)

    @cached_property
    def servers(self) -> Servers | None:
        """The servers of the topology; None where it does not say which they are."""
        return servers_of(self.placed.spec, self.native)

    def domain(self, deployment: Deployment, group: Group) -> tuple[int, ...]:
        """Devices of a group, or of all members of its dp_group, by t + tp * (stage + stages *
        member).
        """
        members = [other.index for other in deployment.groups if _together(other, group)]
        return tuple(device for index in members for device in self.placed.devices[index])

    def switch_among(self, devices: Sequence[int]) -> tuple[int, int] | None:
        """(bytes/s, latency in ps) of the ports of the one switch that joins devices; None where
        they are joined otherwise, or some port differs.
        """
        leaving: dict[int, set[int]] = {device: set() for device in devices}
        entering: dict[int, set[int]] = {device: set() for device in devices}
        for a, b in permutations(devices, 2):
            links = self.native.route(a, b)
            if len(links) != 2:
                return None
            leaving[a].add(links[0])
            entering[b].add(links[1])
        ports = [link for ends in (leaving, entering) for of in ends.values() for link in of]
        speeds = {self.speeds[link] for link in ports}
        own = len(ports) == len(set(ports)) == 2 * len(devices)
        return speeds.pop() if own and len(speeds) == 1 else None

    def signature(self, devices: Sequence[int]) -> tuple[object, ...]:
        """Equal for devices whose routes among each other are alike: the same speeds, shared in the
        same way.
        """
        if len(devices) > MAX_COMPARED_DEVICES:
            return tuple(devices)
        labels: dict[int, int] = {}
        routes = [
            tuple(labels.setdefault(link, len(labels)) for link in self.native.route(a, b))
            for a in devices
            for b in devices
            if a != b
        ]
        return (*routes, *(self.speeds[link] for link in labels))


def _together(other: Group, group: Group) -> bool:
    return other.index == group.index or (
        group.dp_group is not None and other.dp_group == group.dp_group
    )


def routes_of(deployment: Deployment) -> Routes | None:
    """The deployment's topology, ready for the engine; None where it has none. InputError where it
    cannot exist.
    """
    placed = deployment.topology
    return None if placed is None else Routes(placed, placed.spec.build(engine))


@dataclass(frozen=True, eq=False)
class TopologyView(NetworkView):
    """A domain on the devices of a topology; `llmsim.lowering.network.mesh.MeshView` is the same on
    nominal links.

    All ranks go on together when a collective's last rank, or a hand-over's last message, has
    ended; the exchanges between the members, one for each tensor-parallel rank, run side by side on
    the same network.
    """

    routes: Routes
    domain: tuple[int, ...]

    @property
    def description(self) -> TopologyDescription:
        """The network as exported graphs describe it."""
        spec = self.routes.placed.spec
        network = str(self.network).rsplit(".", 1)[-1].lower().replace("_", "-")
        given = self.routes.placed.incast
        incast = (
            ""
            if given is None
            else f"{given.buffer_bytes}:{given.burst_bytes}:{given.efficiency_percent}"
        )
        devices = tuple(self.domain)
        return TopologyDescription(spec.as_file(), spec.num_devices(), devices, network, incast)

    @property
    def stages_alike(self) -> bool:
        """Stages are on devices of their own, with routes of their own."""
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        """Which routes collectives take, and why every rank's nodes run in the engine where they
        do.
        """
        description = self.description
        said = (
            f"topology {self.routes.placed.spec.name}: collectives on its routes "
            f"({description.network})"
        )
        if description.incast:
            said += f", incast {description.incast}"
        if self._spans_servers():
            said += "; between servers as NCCL plans them"
        if not self.exact():
            said += (
                "; every rank's nodes run in the engine, as with --exact, since "
                f"{self._why_expanded}"
            )
        return (said,)

    @property
    def measured_notes(self) -> tuple[str, ...]:
        """That the routes do not price collectives, unless the engine runs every rank's nodes."""
        if not self.exact():
            return self.notes
        name = self.routes.placed.spec.name
        return (f"topology {name}: its links fit the measured times of collectives",)

    def exact(self) -> bool:
        """False where the members' links differ, or where members that are not in step share
        one on a network that knows contention.
        """
        return self._why_expanded is None

    def config(self, specs: "Sequence[_native.CollectiveSpec]") -> "_native.ExpandedConfig":
        """How the engine runs the domain's nodes."""
        return _native.ExpandedConfig(
            self.routes.native, self.network, specs, self.members, self.domain, self.routes.incast
        )

    def nominal_notes(
        self, deployment: Deployment, group: Group, hardware: Hardware | None
    ) -> tuple[NominalNote, ...]:
        """No notes: the topology says every rate."""
        return ()

    @cached_property
    def _why_expanded(self) -> str | None:
        members = range(self.members)
        if self.members == 1:
            return None
        if len({self.routes.signature(self._devices_of(member)) for member in members}) > 1:
            return "the members' links differ"
        if self.network == engine.NetworkKind.CONGESTION_UNAWARE:
            return None
        seen: set[int] = set()
        for member in members:
            mine = {
                link
                for flow in self._flows_of_member(member)
                for link in self.routes.native.route(*flow)
            }
            if seen & mine:
                return "its members share links while they are not in step"
            seen |= mine
        return None

    def _spans_servers(self) -> bool:
        """Whether some collective has ranks in several servers that NCCL plans."""
        servers = self.routes.servers
        return (
            self.nccl is not None
            and self.nccl.scope != "nowhere"
            and servers is not None
            and len(servers.nodes(self.domain)) > 1
            and len(self.domain) > len(servers.nodes(self.domain))
        )

    def _places(self, op: Collective, stage: int, nccl: NcclModel) -> list[Place]:
        """Each group of ranks, while those that run at the same time share the network.

        On one server the routes price a collective, unless NCCL is to plan everything, or all of
        its cards' own links.
        """
        servers = self.routes.servers
        inside = nccl.plans_inside(lambda rate: self.fits(op.among, rate))
        if servers is None:
            ranks = self.layout.ranks(op.among)
            return [Place(ranks, 1, ranks)] if inside else []
        runs = self._runs(op, stage)
        places = [servers.place(group, run) for run in runs for group in run]
        if inside or any(place.nodes > 1 for place in places):
            return list(dict.fromkeys(places))
        return []

    def _library(self, nccl: NcclModel, op: Collective, stage: int) -> NcclModel:
        """The library on the slowest links inside the servers."""
        groups = [group for run in self._runs(op, stage) for group in run]
        servers = self.routes.servers
        if servers is None:
            return nccl.on_routes(
                min(ring_bytes_per_s(self.routes.native, group) for group in groups)
            )
        slowest = min(servers.inside_bytes_per_s(group) for group in groups)
        return nccl if slowest == inf else nccl.on_routes(slowest)

    def fits(self, among: Among, bytes_per_s: int) -> bool:
        """Whether all ranks that a collective is among are joined alike by links of a rate, inside
        a server: then times that were measured there are theirs.
        """
        servers, native = self.routes.servers, self.routes.native
        probe = collective("probe", "all_gather", among, 1, part="layer", repeat=1)
        groups = [
            group
            for stage in range(self.layout.pp)
            for run in self._runs(probe, stage)
            for group in run
        ]
        return all(
            (servers is None or len(servers.nodes(group)) == 1)
            and alike_and_fast(native, group, bytes_per_s)
            for group in groups
        )

    def _device(self, rank: int, stage: int, member: int) -> int:
        return self.domain[rank + self.layout.stage_ranks * (stage + self.layout.pp * member)]

    def _devices_of(self, member: int) -> tuple[int, ...]:
        each = self.layout.stage_ranks * self.layout.pp
        return self.domain[member * each : (member + 1) * each]

    def _flows_of_member(self, member: int) -> Iterable[tuple[int, int]]:
        ranks = range(self.layout.stage_ranks)
        for stage in range(self.layout.pp):
            at = [self._device(rank, stage, member) for rank in ranks]
            yield from _flows(at, ring=self.algorithms.all_rings)
            if stage + 1 < self.layout.pp:
                yield from ((at[rank], self._device(rank, stage + 1, member)) for rank in ranks)

    def _ports(self, op: Collective, stage: int) -> Ports:
        check_even(self.layout, op, self.nodes)
        return routed_ports(self.routes, self._exchanging(op, stage), self.nodes)

    def _exchanging(self, op: Collective, stage: int) -> list[list[int]]:
        """Devices by rank of each exchange of tokens: of all ranks, or of each tensor-parallel rank
        with its peers.
        """
        tp, members = range(self.layout.stage_ranks), range(self.members)
        if op.among == "everyone":
            return [[self._device(rank, stage, member) for member in members for rank in tp]]
        return [[self._device(rank, stage, member) for member in members] for rank in tp]

    def _episodes(self, op: Collective, stage: int) -> list[Episode]:
        return [
            Episode(self.routes.native, tuple(map(tuple, run)), self.routes.incast)
            for run in self._runs(op, stage)
        ]

    def _first_ranks(self, ranks: int) -> Episode:
        devices = tuple(self._device(rank, 0, 0) for rank in range(ranks))
        return Episode(self.routes.native, (devices,), self.routes.incast)

    def _where(self, op: Collective, episodes: Sequence[Episode]) -> str:
        where = f"on routes of {self.routes.placed.spec.name}"
        if op.collective == "broadcast":
            return where
        ring = is_ring(self.algorithm(op))
        flows = (
            flow
            for episode in episodes
            for group in episode.groups
            for flow in ([group] if op.collective == "send" else _flows(group, ring=ring))
        )
        links = (link for flow in flows for link in self.routes.native.route(*flow))
        slowest = min(self.routes.speeds[link][0] for link in links)
        return f"{where}, slowest link {slowest / 1e9:g} GB/s"

    def _message(self) -> str:
        return "messages"

    def _runs(self, op: Collective, stage: int) -> list[list[list[int]]]:
        """What runs at once, for each member: lists of devices, each a collective (a send: sender
        and receiver).
        """
        tp, members = range(self.layout.stage_ranks), range(self.members)
        if op.collective in ("broadcast", "all_to_all"):
            return [self._exchanging(op, stage)]
        if op.among == "everyone":
            # To and fro, so that a hop of the ring stays in a member or goes to the same rank of
            # the next one.
            to_and_fro: list[int] = []
            for member in members:
                ranks = tp if member % 2 == 0 else reversed(tp)
                to_and_fro += [self._device(rank, stage, member) for rank in ranks]
            return [[to_and_fro]]
        if op.among == "members":
            return [[[self._device(rank, stage, member) for member in members] for rank in tp]]
        if op.collective == "send":
            ends = [
                [[self._device(t, s, member) for s in (stage, stage + 1)] for t in tp]
                for member in members
            ]
            return self._distinct(ends)
        groups = self._groups(op)
        return self._distinct(
            [
                [[self._device(rank, stage, member) for rank in group] for group in groups]
                for member in members
            ]
        )

    def _groups(self, op: Collective) -> list[list[int]]:
        """The ranks of a stage that do a collective together, group by group."""
        size, stride = self.layout.ranks(op.among), self.layout.stride(op.among)
        firsts = [rank for rank in range(self.layout.stage_ranks) if rank // stride % size == 0]
        return [[first + i * stride for i in range(size)] for first in firsts]

    def _distinct(self, runs: list[list[list[int]]]) -> list[list[list[int]]]:
        """Without members whose routes are those of another."""
        found = {
            self.routes.signature([device for part in run for device in part]): run
            for run in reversed(runs)
        }
        return list(found.values())


def _flows(group: Sequence[int], *, ring: bool) -> list[tuple[int, int]]:
    """Between whom a collective's messages travel at most: neighbours on a ring, else any two."""
    if ring:
        pairs = zip(group, [*group[1:], *group[:1]], strict=True)
        return [(a, b) for a, b in pairs if a != b]
    return [(a, b) for a in group for b in group if a != b]
