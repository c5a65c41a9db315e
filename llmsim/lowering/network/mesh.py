"""A full mesh per dimension, with the rates of `link_bw`: the network without a topology file."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group, LinkSpec
from llmsim.config.errors import InputError
from llmsim.lowering.network.all_to_all import Ports, ports_of
from llmsim.lowering.network.base import Episode, MeshDescription, NetworkView, NominalNote
from llmsim.model import Collective, Hardware

REMEDY = "name a topology in the cluster file, whose routes collectives then take"


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
        return self._entry(self.dimension(op))

    @property
    def inside(self) -> tuple[int, int]:
        """(bytes/s, latency in ps) of the links between data-parallel ranks on one node."""
        return self._entry(0 if self.nodes > 1 else self.members_dimension)

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
        dimensions = [(self.layout.stage_ranks, *self._entry(0))]
        if self.layout.pp > 1:
            dimensions.append((self.layout.pp, *self._entry(1)))
        if self.members > 1:
            dimensions.append((self.members, *self._entry(self.members_dimension)))
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
        if between := self._between_nodes(deployment, group):
            found.append(NominalNote(between, of_group=False))
        if beyond := self._beyond_a_server(group, hardware):
            found.append(NominalNote(beyond, of_group=True))
        return tuple(found)

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
        return ports_of(self.layout, op, self.nodes, self.inside, self.link(op))

    def _episodes(self, op: Collective, stage: int) -> list[Episode]:
        return [self._among(self.layout.ranks(op.among), self.link(op))]

    def _first_ranks(self, ranks: int) -> Episode:
        return self._among(ranks, self._entry(0))

    def _among(self, ranks: int, link: tuple[int, int]) -> Episode:
        topology = engine.Topology.fully_connected(ranks, *link)
        return Episode(topology, (tuple(range(ranks)),))

    def _where(self, op: Collective, episodes: Sequence[Episode]) -> str:
        return f"on links of {self.link(op)[0] / 1e9:g} GB/s"

    def _message(self) -> str:
        return "message"

    def _entry(self, dimension: int) -> tuple[int, int]:
        index = min(dimension, len(self.spec.bandwidth_bytes_per_s) - 1)
        return self.spec.bandwidth_bytes_per_s[index], self.spec.latency_ps[index]
