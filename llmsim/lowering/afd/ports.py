"""Ports of attention and FFN devices that other transfers of a run use, too: rows are flows there.

Rows load the port of each device that they leave, and of each that they come to. Without a topology
a device has a port to its node and a network card, each with two directions, and no switch blocks:
rows meet nothing but KV on the same port of an attention device. On a topology, rows that leave a
device take a route to one device of the other side, as even rows to all load it; what comes to a
device loads its last link.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from llmsim import _native
from llmsim.config import Deployment
from llmsim.config.deployment import BETWEEN_GROUPS, BETWEEN_NODES, AfdRole
from llmsim.lowering.network.cluster_network import ClusterNetwork
from llmsim.lowering.network.contended.domains import Domain, Kind
from llmsim.lowering.network.contended.meeting import LinksCrossed
from llmsim.lowering.network.topology import Routes

OUT, IN = True, False
Rank = tuple[int, int]
"""A device: its group and its number there."""


class RowPort(Struct, frozen=True):
    """Rows that leave the devices of a unit (a stage of a member), or that come to them."""

    member: int
    stage: int
    out: bool
    ends: tuple[tuple[Rank, Rank], ...]
    """Of each device: from where to where."""
    links: tuple[tuple[int, ...], ...] = ()
    """Of each device, links of the topology; none without one."""


class Way(Struct, frozen=True):
    """Between attention and FFN devices: the rates of one device's port, and the latency."""

    attention_bytes_per_s: int
    ffn_bytes_per_s: int
    latency_ps: int


def spans_nodes(deployment: Deployment, role: AfdRole) -> bool:
    """Whether rows go through network cards: any group of the role is on another node."""
    members = (*role.attention, *role.ffn)
    return len({deployment.groups[index].node for index in members}) > 1


def row_ports(deployment: Deployment, role: AfdRole, routes: Routes | None) -> list[RowPort]:
    """All ports that rows of a role take; its members are attention groups, then FFN groups."""
    members = (*role.attention, *role.ffn)
    found = []
    for stage in range(deployment.groups[members[0]].pp):
        here, there = (_ranks(deployment, side, stage) for side in (role.attention, role.ffn))
        partner = {**_partners(here, there), **_partners(there, here)}
        for member, index in enumerate(members):
            for out in (OUT, IN):
                ends = tuple(
                    (rank, partner[rank]) if out else (partner[rank], rank)
                    for rank in _ranks(deployment, (index,), stage)
                )
                links = () if routes is None else tuple(_links(routes, *pair, out) for pair in ends)
                found.append(RowPort(member, stage, out, ends, links))
    return found


def way_between(
    deployment: Deployment, role: AfdRole, ports: Sequence[RowPort], routes: Routes | None
) -> Way:
    """The slowest way of the rows on a role's ports. Without a topology, between nodes where any
    attention group is on another node than an FFN group; on one, as if all devices of a side sent
    at the same time.
    """
    if routes is None:
        dimension = BETWEEN_NODES if spans_nodes(deployment, role) else BETWEEN_GROUPS
        link = deployment.link
        rate = link.bandwidth_bytes_per_s[min(dimension, len(link.bandwidth_bytes_per_s) - 1)]
        return Way(rate, rate, link.latency_of(dimension))
    attends = len(role.attention)
    attention = _slowest([port for port in ports if port.member < attends], routes)
    ffn = _slowest([port for port in ports if port.member >= attends], routes)
    latency = max(
        sum(routes.speeds[link][1] for link in _route(routes, *pair))
        for port in ports
        for pair in port.ends
    )
    return Way(attention, ffn, latency)


def _slowest(ports: Sequence[RowPort], routes: Routes) -> int:
    """Bytes/s that the slowest device of a side sends, or takes in."""
    rates = []
    for out in (OUT, IN):
        taken = Counter(
            link for port in ports if port.out == out for links in port.links for link in links
        )
        rates += [routes.speeds[link][0] // flows for link, flows in taken.items()]
    return min(rates)


def shared_ports(
    deployment: Deployment,
    role: AfdRole,
    rows: Mapping[str, Sequence[RowPort]],
    crossed: LinksCrossed | None,
    *,
    tiers: bool,
    contend: bool,
) -> list[RowPort]:
    """Those of a role's ports that KV takes, too; on a topology, and with `contend`, also those on
    links of collectives or of the rows of other roles.
    """
    if crossed is None:
        taken = {
            (member, out)
            for member, index in enumerate(role.attention)
            for out in _directions(deployment, role, index, tiers=tiers)
        }
        return [port for port in rows[role.name] if (port.member, port.out) in taken]
    others = set(crossed.kv)
    if contend:
        for sources in crossed.of_domain.values():
            others.update(*sources.values())
        for name, ports in rows.items():
            others |= links_of(ports) if name != role.name else set()
    return [port for port in rows[role.name] if not others.isdisjoint(links_of([port]))]


def links_of(ports: Sequence[RowPort]) -> set[int]:
    """Links of the topology that some ports load."""
    return {link for port in ports for links in port.links for link in links}


def met_by_rows(
    rows: Mapping[str, Sequence[RowPort]], crossed: LinksCrossed | None
) -> dict[Domain, set[Kind]]:
    """The collectives of each domain that take a link of the topology which rows take."""
    if crossed is None:
        return {}
    loaded = {link for ports in rows.values() for link in links_of(ports)}
    met = {
        domain: {kind for (kind, _), links in sources.items() if not links.isdisjoint(loaded)}
        for domain, sources in crossed.of_domain.items()
    }
    return {domain: kinds for domain, kinds in met.items() if kinds}


def native_port(
    deployment: Deployment, role: AfdRole, network: ClusterNetwork, port: RowPort
) -> "_native.SharedPort":
    """The port on the cluster's network."""
    devices = network.devices
    places = [(devices[a][i], devices[b][k]) for (a, i), (b, k) in port.ends]
    if port.links:
        first = network.config.first_of_topology
        taken = [[first + link for link in links] for links in port.links]
    else:
        far = spans_nodes(deployment, role)
        own = [sender if port.out else receiver for sender, receiver in places]
        taken = [[network.config.port(place, far, port.out)] for place in own]
    flows = [(*pair, links) for pair, links in zip(places, taken, strict=True)]
    return _native.SharedPort(port.member, port.stage, port.out, flows)


def _ranks(deployment: Deployment, groups: Sequence[int], stage: int) -> list[Rank]:
    found = []
    for index in groups:
        group = deployment.groups[index]
        each = group.num_devices // group.pp
        found += [(index, rank) for rank in range(stage * each, (stage + 1) * each)]
    return found


def _partners(here: Sequence[Rank], there: Sequence[Rank]) -> dict[Rank, Rank]:
    """One of the other side's devices for each."""
    return {rank: there[at * len(there) // len(here)] for at, rank in enumerate(here)}


def _route(routes: Routes, sender: Rank, receiver: Rank) -> list[int]:
    devices = [routes.placed.devices[group][rank] for group, rank in (sender, receiver)]
    return list(routes.native.route(*devices))


def _links(routes: Routes, sender: Rank, receiver: Rank, out: bool) -> tuple[int, ...]:
    """The last link is the receiver's, but where it is the only one."""
    route = _route(routes, sender, receiver)
    if len(route) == 1:
        return tuple(route) if out else ()
    return tuple(route[:-1] if out else route[-1:])


def _directions(
    deployment: Deployment, role: AfdRole, attention: int, *, tiers: bool
) -> tuple[bool, ...]:
    """Directions of the port of an attention group's devices that KV takes, too."""
    if tiers and deployment.tiers_take_ports((deployment.groups[attention].node,)):
        return (OUT, IN)
    return (IN,) if any(_hand_overs(deployment, role, attention)) else ()


def _hand_overs(deployment: Deployment, role: AfdRole, attention: int) -> Iterator[bool]:
    """For each prefill group that hands KV over: whether it comes by the port that rows take."""
    here = deployment.groups[attention]
    for group in deployment.groups:
        if group.pd_type == "prefill" and group.model_name == here.model_name:
            yield (group.node != here.node) == spans_nodes(deployment, role)
