"""What moves on shared links for each collective of a domain: between which devices, and how many
bytes.

Collectives are what the library's plan for their size moves, or rings in the order of the ranks;
rows for experts are flows that load the ports as the rows do.
"""

from collections.abc import Collection, Iterable, Sequence
from math import ceil

from msgspec import Struct

from llmsim import _native
from llmsim.config import Deployment
from llmsim.costs.nccl.moved import Pair
from llmsim.lowering.network.algorithms import is_ring
from llmsim.lowering.network.collective_costs import collective_spec
from llmsim.lowering.network.contended.domains import KINDS, Domain, Kind, Source
from llmsim.lowering.network.contended.plans import PlacedDomain, rows_to
from llmsim.lowering.network.topology import Routes
from llmsim.model import AllToAll, Collective, Layout


class StandIns(Struct, frozen=True):
    """What stands for the exchanges of a domain on the links between its instances."""

    rows: int
    """Members of each node; a flow from each device to a member of its node, and one to a member of
    the next, of all that leaves it by that port, load the ports as rows to all do. 0: nothing
    stands for rows.
    """
    rings: bool
    """A ring over all ranks of all members goes from each member to the next once, and so do
    broadcasts in turn.
    """


def stand_ins(deployment: Deployment, members: Sequence[int], *, on_topology: bool) -> StandIns:
    """Without a topology; rows where nodes have as many members each, side by side (else their
    price is refused).
    """
    nodes = [deployment.groups[index].node for index in members]
    each = len(nodes) // len(set(nodes))
    even = all(len(set(nodes[first : first + each])) == 1 for first in range(0, len(nodes), each))
    return StandIns(rows=each if even and not on_topology else 0, rings=not on_topology)


def collectives_of(domain: Domain) -> list[Collective]:
    """The collectives and hand-overs of a domain."""
    return [op for op in domain.group.operators if isinstance(op, Collective)]


def kind_of(op: Collective, flows: StandIns, placed: PlacedDomain) -> Kind | None:
    """Where the flows of a collective are; None: it has none, but a time of its own.

    These are collectives that `flows` does not allow, those inside of a stage that are not of all
    its ranks, and, of all ranks of all members, those that are neither rings nor plans nor rows on
    ports.
    """
    view = placed.domain.group.links
    chosen = view.algorithms.names(op.collective)
    if chosen and (op.collective == "all_to_all" or op.among == "everyone"):
        return "members" if is_ring(view.algorithm(op)) and op.collective != "all_to_all" else None
    if op.collective == "all_to_all":
        moves = op.among in ("members", "everyone") and (flows.rows or placed.moves(op, 0, 0))
        return "members" if moves else None
    if op.among == "everyone" and placed.moves(op, 0, 0):
        return "members"
    if op.among == "everyone" or op.collective == "broadcast":
        return "members" if flows.rings and op.among in ("members", "everyone") else None
    if op.among not in ("members", "stages", "tp"):
        return None
    return "inside" if op.among == "tp" else op.among


def links_by_source(
    placed: PlacedDomain, flows: StandIns, routes: Routes
) -> dict[Source, set[int]]:
    """Links of the topology that a domain's rings, plans and hand-overs take, in each stage."""
    domain = placed.domain
    devices = [routes.placed.devices[index] for index in domain.members]
    tp, stages = domain.group.layout.tp, domain.group.layout.pp
    rings: dict[Source, list[list[int]]] = {}
    for stage in range(stages):
        first, end = tp * stage, tp * (stage + 1)
        rings["members", stage] = [[mine[at] for mine in devices] for at in range(first, end)]
        rings["inside", stage] = [list(mine[first:end]) for mine in devices]
        sends = range(first, end) if stage + 1 < stages else ()
        rings["stages", stage] = [[mine[at], mine[at + tp]] for mine in devices for at in sends]
    planned, ringless = _planned_by_source(placed, flows)
    pairs = {
        source: [*planned[source], *(_neighbours(found) if source[0] not in ringless else ())]
        for source, found in rings.items()
    }
    return {
        source: {link for pair in found for link in routes.native.route(*pair)}
        for source, found in pairs.items()
    }


def _neighbours(rings: Sequence[Sequence[int]]) -> Iterable[Pair]:
    for ring in rings:
        yield from ((a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a != b)


def _planned_by_source(
    placed: PlacedDomain, flows: StandIns
) -> tuple[dict[Source, set[Pair]], set[Kind]]:
    """Who sends to whom by plans, by source; and the kinds whose collectives all have plans."""
    stages = range(placed.domain.group.layout.pp)
    pairs: dict[Source, set[Pair]] = {(kind, stage): set() for kind in KINDS for stage in stages}
    planned: dict[Kind, list[bool]] = {kind: [] for kind in KINDS}
    for op in collectives_of(placed.domain):
        kind = kind_of(op, flows, placed)
        if kind is None:
            continue
        for stage in stages:
            for member in range(len(placed.domain.members)):
                moves = placed.moves(op, stage, member)
                planned[kind].append(bool(moves))
                pairs[kind, stage] |= {
                    (placed.order[a], placed.order[b]) for move in moves for a, b in move.flows
                }
    return pairs, {kind for kind, each in planned.items() if each and all(each)}


def moved(placed: PlacedDomain, shared: Collection[Kind], flows: StandIns) -> tuple[int, ...]:
    """Collectives and hand-overs on shared links, however they are priced: the numbers of operators
    in the program.
    """
    ops = {op.name: op for op in collectives_of(placed.domain)}
    return tuple(
        index
        for index, cost in enumerate(placed.domain.group.program_costs)
        if (op := ops.get(cost.name)) is not None and kind_of(op, flows, placed) in shared
    )


def specs_of(
    domain: Domain, moved: Iterable[int], flows: StandIns
) -> "tuple[_native.CollectiveSpec, ...]":
    """The same with their bytes."""
    ops = {op.name: op for op in collectives_of(domain)}
    costs = domain.group.program_costs
    return tuple(_spec(index, ops[costs[index].name], domain, flows) for index in moved)


def planned_specs(
    placed: PlacedDomain, moved: Iterable[int], nodes: Sequence[int]
) -> "tuple[_native.PlannedSpec, ...]":
    """What those of the operators that have plans move; `nodes` are the devices' on the network."""
    domain = placed.domain
    ops = {op.name: op for op in collectives_of(domain)}
    found = []
    for index in moved:
        operator = domain.group.placed[index]
        op = ops[operator.cost.name]
        alike = op.among in ("members", "everyone")
        for member in range(1 if alike else len(domain.members)):
            found += [
                _native.PlannedSpec(
                    index,
                    member,
                    move.from_units,
                    [
                        (
                            [(nodes[a], nodes[b]) for a, b in part.flows],
                            part.share.numerator,
                            part.share.denominator,
                        )
                        for part in move.parts
                    ],
                )
                for move in placed.moves(op, operator.stage, member)
            ]
    return tuple(found)


def _spec(index: int, op: Collective, domain: Domain, flows: StandIns) -> "_native.CollectiveSpec":
    view, members = domain.group.links, len(domain.members)
    if isinstance(op, AllToAll) and not flows.rows:
        return collective_spec(view, index, op, op.rows.row_bytes)
    if isinstance(op, AllToAll):
        near, far = row_bytes_per_token(op, view.layout, members, flows.rows)
        return collective_spec(view, index, op, near, per_node=flows.rows, far_bytes_per_unit=far)
    everyone = op.collective != "broadcast" and op.among == "everyone"
    return collective_spec(view, index, op, op.collective_bytes_per_token, everyone=everyone)


def row_bytes_per_token(op: AllToAll, layout: Layout, members: int, each: int) -> tuple[int, int]:
    """What leaves a device by its port to the `each` members of its node and by that to other
    nodes, for each token of the domain, times the members, under an even router (`all_to_all`
    prices the same rows).

    A member's own ranks are reached over links of its own. Over nodes, "rank" rows cross once for
    each (token, node), and are handed on inside it by the rank that they reach.
    """
    own = layout.tp if op.among == "everyone" else 1
    ranks, per_node = own * members, own * each
    at_rank, at_node = (rows_to(op, some, ranks) for some in (1, per_node))
    near, far = at_rank * (per_node - own) / own, at_rank * (ranks - per_node) / own
    if op.rows.per == "rank" and each < members:
        near = at_rank * (per_node - own) / per_node * members
        far = at_node * (members // each - 1) / own
    return ceil(near * op.rows.row_bytes), ceil(far * op.rows.row_bytes)
