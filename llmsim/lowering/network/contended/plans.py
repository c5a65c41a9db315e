"""What the collective library's plans move for a domain: by size, between which of its devices."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import permutations

from msgspec import Struct, field

from llmsim.config import Deployment
from llmsim.costs import OpCost
from llmsim.costs.nccl.moved import Pair, Part, moved, together
from llmsim.lowering.network.contended.domains import Domain
from llmsim.lowering.network.topology import Routes
from llmsim.model import AllToAll, Collective
from llmsim.model.parallel.expert_parallel import hit

MOST_PAIRED = 64
"""Ranks whose rows to each other are flows of their own."""


class PlannedMove(Struct, frozen=True):
    """What a collective moves from a number of tokens or sequences on."""

    from_units: int
    parts: tuple[Part, ...]
    """Between devices of the domain, t + devices_per_stage * (stage + stages * member)."""

    @property
    def flows(self) -> Iterable[Pair]:
        """Every flow of every part."""
        return (flow for part in self.parts for flow in part.flows)


class PlacedDomain(Struct, frozen=True, eq=False, dict=True):
    """Where the devices of a domain are."""

    domain: Domain
    order: tuple[int, ...]
    """By device of the domain: its number in the topology, or in the domain."""
    server: tuple[int, ...]
    """The server that each is in."""
    own_links: bool
    """Whether devices of one member reach each other by links that the network does not have."""
    _known: dict[tuple[str, int, int], tuple[PlannedMove, ...]] = field(default_factory=dict)

    def ranks(self, op: Collective, stage: int, member: int) -> list[list[int]]:
        """Devices of each of the collectives that a domain, or one of its members, runs at once."""
        each, pp = self.domain.devices_per_stage, self.domain.group.layout.pp
        stages = [
            [rank + each * (stage + pp * other) for rank in range(each)]
            for other in range(len(self.domain.members))
        ]
        if op.among == "everyone":
            return [[device for ranks in stages for device in ranks]]
        if op.among == "members":
            return [list(ranks) for ranks in zip(*stages, strict=True)]
        return [stages[member]] if op.among == "tp" else []

    def servers(self, ranks: Sequence[int]) -> list[list[int]]:
        """The devices of a collective by server, in the order of their rails."""
        found: dict[int, list[int]] = {}
        for device in sorted(ranks, key=lambda one: (self.server[one], self.order[one])):
            found.setdefault(self.server[device], []).append(device)
        return list(found.values())

    def moves(self, op: Collective, stage: int, member: int) -> tuple[PlannedMove, ...]:
        """What a collective moves by the plan of each size; nothing where no plan is known."""
        key = (op.name, stage, member)
        if key not in self._known:
            self._known[key] = self._find(op, stage, member)
        return self._known[key]

    def _find(self, op: Collective, stage: int, member: int) -> tuple[PlannedMove, ...]:
        if isinstance(op, AllToAll):
            return self._rows(op, stage)
        groups = [self.servers(ranks) for ranks in self.ranks(op, stage, member)]
        nodes = {len(servers) for servers in groups}
        units = self._units.get(op.name, 0)
        if len(nodes) != 1 or not units or op.collective == "all_to_all":
            return ()
        ways = self.domain.group.links.ways(op, units, stage, nodes.pop())
        return tuple(
            PlannedMove(
                first,
                self._on_network(
                    together(moved(way, op.collective, servers) for servers in groups)
                ),
            )
            for first, way in ways
        )

    def _rows(self, op: AllToAll, stage: int) -> tuple[PlannedMove, ...]:
        """Rows of a token of the domain for all ranks under an even router, as the routes of a
        topology price them; nothing without one, or among too many ranks.
        """
        groups, nodes = self.ranks(op, stage, 0), self.domain.group.links.nodes
        if self.own_links or len(groups[0]) > MOST_PAIRED or len(groups[0]) % nodes:
            return ()
        rows = together(rows_moved(op, ranks, nodes) for ranks in groups)
        return (PlannedMove(1, rows),)

    def _on_network(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Without flows on links that belong to one member."""
        if not self.own_links:
            return parts
        each = self.domain.devices_per_stage * self.domain.group.layout.pp
        kept = (
            Part(tuple((a, b) for a, b in part.flows if a // each != b // each), part.share)
            for part in parts
        )
        return tuple(part for part in kept if part.flows)

    @cached_property
    def _units(self) -> dict[str, int]:
        """Sizes of each collective that a plan may have, by its name; those that messages of the
        engine price have none.
        """
        linked = self.domain.group.linked
        return {
            cost.name: len(cost.ps) - 1
            for cost in self.domain.group.program_costs
            if isinstance(cost, OpCost) and cost.name not in linked
        }


def rows_to(op: AllToAll, some: int, ranks: int) -> Fraction:
    """Rows that some of the ranks get for each token of the domain under an even router."""
    if op.rows.per == "expert":
        return Fraction(op.topk * some, ranks)
    return Fraction(hit(op, op.experts_total // ranks * some))


def rows_moved(op: AllToAll, ranks: Sequence[int], nodes: int) -> tuple[Part, ...]:
    """Who sends which part of a row for each token of the domain. Rows for a rank cross to another
    node once, to the rank with the sender's number there, which hands them on inside.
    """
    number, each = len(ranks), len(ranks) // nodes
    pairs = list(permutations(range(number), 2))
    to_rank = rows_to(op, 1, number)
    if op.rows.per == "rank" and nodes > 1:
        inside = [(a, b) for a, b in pairs if a // each == b // each]
        across = [(a, b) for a, b in pairs if a // each != b // each and a % each == b % each]
        parts = [(inside, to_rank / each), (across, rows_to(op, each, number) / number)]
    else:
        parts = [(pairs, to_rank / number)]
    return tuple(_part(op, ranks, flows, share) for flows, share in parts if flows and share)


def _part(op: AllToAll, ranks: Sequence[int], flows: Iterable[Pair], share: Fraction) -> Part:
    """Flows between places among the ranks; rows that come back go the other way."""
    back = op.rows.back
    return Part(
        tuple((ranks[b], ranks[a]) if back else (ranks[a], ranks[b]) for a, b in flows), share
    )


def placed_domain(deployment: Deployment, domain: Domain, routes: Routes | None) -> PlacedDomain:
    """The devices of a domain on a topology, or on the nodes of a cluster file without one."""
    if routes is None:
        nodes = [
            deployment.groups[index].node
            for index in domain.members
            for _ in range(deployment.groups[index].num_devices)
        ]
        return PlacedDomain(domain, tuple(range(len(nodes))), tuple(nodes), own_links=True)
    devices = tuple(device for index in domain.members for device in routes.placed.devices[index])
    servers = routes.servers
    node_of = dict.fromkeys(devices, 0) if servers is None else servers.node_of
    return PlacedDomain(domain, devices, tuple(node_of[one] for one in devices), own_links=False)
