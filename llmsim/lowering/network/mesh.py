"""A full mesh per dimension, with the rates of `link_bw`: the network without a topology file."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group, LinkSpec
from llmsim.config.errors import InputError
from llmsim.costs.nccl.plans import Place
from llmsim.lowering.network.all_to_all import Ports, ports_of
from llmsim.lowering.network.base import Episode, MeshDescription, NetworkView, NominalNote
from llmsim.lowering.network.nccl import NcclModel, ServerLinks
from llmsim.model import Collective, Hardware

REMEDY = "name a topology in the cluster file, whose routes collectives then take"


def servers_beside(link: LinkSpec, hardware: Hardware, group: Group) -> ServerLinks | None:
    """The servers of a cluster file without a topology; None where nothing says what joins them.

    The last entry of link_bw is the network between them where it is below the first, else the data
    sheet's card is. A group on several nodes of the file has servers of its devices on one of them.
    """
    joined = [hardware.link_domain_devices, on_each_node(group)]
    devices = min((one for one in joined if one is not None), default=None)
    if devices is None:
        return None
    inside, between = link.bandwidth_bytes_per_s[0], link.bandwidth_bytes_per_s[-1]
    if between < inside:
        return ServerLinks(devices, between, from_sheet=False)
    card = hardware.network_card_bytes_per_s
    if card is None:
        return None
    return ServerLinks(devices, min(card, inside), from_sheet=True)


def on_each_node(group: Group) -> int | None:
    """Devices of a group on each of its nodes; None where it is on one node of the file."""
    return group.devices_on_node if group.nnodes > 1 else None


@dataclass(frozen=True, eq=False)
class MeshView(NetworkView):
    """The links of a group, or of all members of its data-parallel domain: one full mesh per
    dimension.

    Dimensions, innermost first, as in LLMServingSim: tensor-parallel ranks, pipeline stages (if
    there are several), data-parallel ranks (likewise). Each takes its entry of the file's lists,
    the last one where they end before; data-parallel ranks on several nodes take the last one in
    any case, which is between nodes.
    """

    spec: LinkSpec
    node_devices: int | None = None
    """Devices on each node, where the file puts a group on several; None: on one node each."""

    def __post_init__(self) -> None:
        """InputError for an algorithm that needs a switch."""
        if self.algorithms.on_switch:
            raise InputError(
                "inSwitch needs a switch that all ranks hang on, and link_bw describes links "
                "between pairs of devices; name a topology in the cluster file"
            )

    def link(self, op: Collective) -> tuple[int, int]:
        """(bytes/s, latency in ps) of the links that it crosses; of the farther ones where there
        are two kinds.
        """
        return self._link(self.dimension(op), self._crosses(op))

    @property
    def inside(self) -> tuple[int, int]:
        """(bytes/s, latency in ps) of the links between data-parallel ranks on one node."""
        return self.entry(0 if self.nodes > 1 else self.members_dimension)

    @cached_property
    def _servers(self) -> int:
        """Servers that the domain is on: each node of the file has as many as its devices fill."""
        domain = self.layout.stage_ranks * self.layout.pp * self.members
        nodes = self.nodes if self.members > 1 else 1
        return nodes * self._filled(-(-domain // nodes))

    def _filled(self, devices: int) -> int:
        """Servers that so many devices of one node fill."""
        servers = None if self.nccl is None else self.nccl.servers
        each = self.node_devices if servers is None else servers.devices
        return 1 if each is None else -(-devices // each)

    def _crosses(self, op: Collective) -> bool:
        """Whether the ranks of a collective are on several servers."""
        if op.among in ("members", "everyone"):
            return self._servers > 1
        stages = self.layout.pp if op.among == "stages" else 1
        return self._filled(self.layout.stage_ranks * stages) > 1

    def _link(self, dimension: int, crosses: bool) -> tuple[int, int]:
        """An entry of the file's lists, between nodes of the file the last one; between servers no
        more than a network card carries, unless the user names algorithms, whose links are those of
        the file.
        """
        between_nodes = crosses and self.node_devices is not None
        last = len(self.spec.bandwidth_bytes_per_s) - 1
        rate, latency = self.entry(last if between_nodes else dimension)
        servers = None if self.nccl is None else self.nccl.servers
        if servers is None or not crosses or self.algorithms.choices:
            return rate, latency
        if servers.from_sheet or dimension == 0:
            rate = min(rate, servers.card_bytes_per_s)
        return rate, latency

    def _places(self, op: Collective, stage: int, nccl: NcclModel) -> list[Place]:
        """One place for all: every rank has a network card of its own.

        Ranks with a server each are a ring over ports, which the links price.
        """
        ranks = self.layout.ranks(op.among)
        if not self._crosses(op):
            inside = nccl.plans_inside(lambda rate: True)
            return [Place(ranks, 1, ranks)] if inside else []
        among_members = op.among in ("members", "everyone")
        filled = self._servers if among_members else self._filled(self.layout.stage_ranks)
        nodes = min(ranks, filled)
        if nccl.servers is None or ranks == nodes:
            return []
        card = nccl.servers.card_bytes_per_s / 1e9
        hop_us = self.spec.latency_ps[-1] / 1e6
        return [Place(ranks, nodes, ranks // nodes, card, hop_us)]

    def _library(self, nccl: NcclModel, op: Collective, stage: int) -> NcclModel:
        """The library on the links of the file among the ranks; of those on several servers, on
        the links inside one.
        """
        dimension = 0 if self._crosses(op) else self.dimension(op)
        bytes_per_s, latency_ps = self.entry(dimension)
        return nccl.on_stated_links(bytes_per_s, latency_ps)

    @property
    def _takes_cards(self) -> bool:
        """Whether the data sheet's network cards stand for a network that the file does not
        describe.
        """
        servers = None if self.nccl is None else self.nccl.servers
        return servers is not None and servers.from_sheet and not self.algorithms.choices

    @property
    def members_dimension(self) -> int:
        """The dimension between data-parallel ranks: the last one on several nodes."""
        last = len(self.spec.bandwidth_bytes_per_s) - 1
        return last if self.nodes > 1 else super().members_dimension

    @property
    def dimensions(self) -> tuple[tuple[int, int, int], ...]:
        """(devices, bytes/s, ps) of each: all devices of the domain, one member's stage first, then
        its others.
        """
        inside = self._link(0, self._filled(self.layout.stage_ranks) > 1)
        dimensions = [(self.layout.stage_ranks, *inside)]
        if self.layout.pp > 1:
            crosses = self._filled(self.layout.stage_ranks * self.layout.pp) > 1
            dimensions.append((self.layout.pp, *self._link(1, crosses)))
        if self.members > 1:
            entry = self._link(self.members_dimension, self._servers > 1)
            dimensions.append((self.members, *entry))
        return tuple(one for one in dimensions if one[0] > 1) or tuple(dimensions[:1])

    @property
    def description(self) -> MeshDescription:
        """The network as exported graphs describe it."""
        return MeshDescription(self.dimensions)

    @property
    def stages_alike(self) -> bool:
        """All stages have links of the same rates."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on algorithms for which a link per pair is more than a port has."""
        if not self.algorithms.fan_out:
            return ()
        return (
            "direct collectives use a link of link_bw to every other rank at once; where these "
            f"share one port, {REMEDY}",
        )

    def exact(self) -> bool:
        """Every link is between two ranks alone, and members are alike."""
        return True

    def config(self, specs: "Sequence[_native.CollectiveSpec]") -> "_native.ExpandedConfig":
        """How the engine runs the domain's nodes.

        Where ranks do not end a collective together, they go on together when the last one has.
        """
        mesh = _native.mesh(list(self.dimensions))
        devices = [] if self.algorithms.in_step else list(range(mesh.num_devices))
        return _native.ExpandedConfig(mesh, self.network, specs, self.members, devices)

    def nominal_notes(
        self, deployment: Deployment, group: Group, hardware: Hardware | None
    ) -> tuple[NominalNote, ...]:
        """Ranks on several nodes, or of several servers, at the rate inside one."""
        found = []
        if self._takes_cards:
            return (self._over_cards(deployment, group),) if self._servers > 1 else ()
        if self.nccl is not None and self.nccl.servers is not None and not self.algorithms.choices:
            return ()  # the file says what is between servers
        if between := self._between_nodes(deployment, group):
            found.append(NominalNote(between, of_group=False))
        if beyond := self._beyond_a_server(group, hardware):
            found.append(NominalNote(beyond, of_group=True))
        return tuple(found)

    def _over_cards(self, deployment: Deployment, group: Group) -> NominalNote:
        """What ranks on several servers talk over, where the file gives the rate inside one."""
        assert self.nccl is not None and self.nccl.servers is not None
        servers = self.nccl.servers
        inside = deployment.link.bandwidth_bytes_per_s[0]
        remedy = f"give link_bw a last entry for the network between servers, or {REMEDY}"
        if self.nodes > 1 and self.members > 1:
            nodes = sorted(
                {other.node for other in deployment.groups if other.dp_group == group.dp_group}
            )
            who = (
                f'the ranks of dp_group "{group.dp_group}" are on the nodes '
                f"{', '.join(map(str, nodes))}"
            )
        else:
            devices = self.layout.stage_ranks * self.layout.pp * self.members
            who = (
                f"{devices} {group.hardware} devices of node {group.node} are on {self._servers} "
                f"servers of {servers.devices}"
            )
        return NominalNote(
            f"{who}, and link_bw {inside / 1e9:g} GB/s is the rate inside one: between servers "
            f"collectives take the data sheet's network cards, {servers.card_bytes_per_s / 1e9:g} "
            f"GB/s a device; {remedy}",
            of_group=not (self.nodes > 1 and self.members > 1),
        )

    def _between_nodes(self, deployment: Deployment, group: Group) -> str:
        """Data-parallel ranks on several nodes, where the file gives no rate of its own between
        nodes.
        """
        if self.nodes == 1 or self.members == 1:
            return ""
        rates = deployment.link.bandwidth_bytes_per_s
        between, inside = rates[-1], rates[0]
        if between < inside:
            return ""
        nodes = sorted(
            {other.node for other in deployment.groups if other.dp_group == group.dp_group}
        )
        return (
            f'the ranks of dp_group "{group.dp_group}" on the nodes '
            f"{', '.join(map(str, nodes))} exchange tokens at link_bw {between / 1e9:g} GB/s "
            f"between nodes, not below the {inside / 1e9:g} GB/s inside an instance; give "
            f"link_bw a last entry for the network between nodes, or {REMEDY}"
        )

    def _beyond_a_server(self, group: Group, hardware: Hardware | None) -> str:
        """Ranks on one node of the file that are more than a server joins, at the rate inside a
        server.
        """
        most = None if hardware is None else hardware.link_domain_devices
        if most is None:
            return ""
        devices, crossing = 1, None
        inside = self.dimensions[0][1]
        for number, (ranks, bytes_per_s, _) in enumerate(self.dimensions):
            among_members = self.members > 1 and number == len(self.dimensions) - 1
            if among_members and self.nodes > 1:
                ranks = -(-ranks // self.nodes)
            devices *= ranks
            if devices > most and bytes_per_s >= inside and crossing is None:
                crossing = bytes_per_s
        if crossing is None:
            return ""
        return (
            f"{devices} {group.hardware} devices of node {group.node} talk at link_bw "
            f"{crossing / 1e9:g} GB/s, the rate inside a server, but a server joins {most} of "
            f"them; {REMEDY}"
        )

    def _ports(self, op: Collective, stage: int) -> Ports:
        link, inside, nodes = self.link(op), self.inside, self.nodes
        if self._takes_cards and self._crosses(op):
            if self.layout.ranks(op.among) % self._servers == 0:
                nodes = self._servers
            elif nodes == 1:
                inside = link
        return ports_of(self.layout, op, nodes, inside, link)

    def _episodes(self, op: Collective, stage: int) -> list[Episode]:
        return [self._among(self.layout.ranks(op.among), self.link(op))]

    def _first_ranks(self, ranks: int) -> Episode:
        return self._among(ranks, self.entry(0))

    def _among(self, ranks: int, link: tuple[int, int]) -> Episode:
        topology = engine.Topology.fully_connected(ranks, *link)
        return Episode(topology, (tuple(range(ranks)),))

    def _where(self, op: Collective, episodes: Sequence[Episode]) -> str:
        return f"on links of {self.link(op)[0] / 1e9:g} GB/s"

    def _message(self) -> str:
        return "message"

    def entry(self, dimension: int) -> tuple[int, int]:
        """(bytes/s, latency in ps) that the file's lists have for a dimension."""
        index = min(dimension, len(self.spec.bandwidth_bytes_per_s) - 1)
        return self.spec.bandwidth_bytes_per_s[index], self.spec.latency_ps[index]
