"""Which domains' collectives share links of a topology with others, or with KV."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from llmsim.config import Deployment, Group
from llmsim.lowering.network.cluster_network import nodes_of_groups
from llmsim.lowering.network.contended import flows
from llmsim.lowering.network.contended.domains import Domain, Kind, Source
from llmsim.lowering.network.contended.plans import placed_domain
from llmsim.lowering.network.topology import Routes


class LinksCrossed(Struct, frozen=True, eq=False):
    """Which links of the topology are whose."""

    of_domain: dict[Domain, dict[Source, set[int]]]
    """Of each domain's flows, by source; domains that keep something elsewhere have none."""
    kv: set[int]
    """Of KV from prefill to decode devices."""


def links_crossed(
    deployment: Deployment, domains: Sequence[Domain], routes: Routes | None
) -> LinksCrossed | None:
    """The links of all domains and of KV; None without a topology, where every device has ports of
    its own.
    """
    if routes is None:
        return None
    links = {
        domain: domain.sources_of(_links_by_source(deployment, domain, routes))
        for domain in domains
        if domain.group.offload is None
    }
    return LinksCrossed(links, _kv_links(deployment, routes))


def kinds_met(crossed: LinksCrossed | None) -> dict[Domain, set[Kind]]:
    """The collectives of each domain that take a link which another domain's collectives take,
    another stage of the same pipeline, or KV from prefill to decode devices. Without a topology
    nothing of this kind meets.
    """
    if crossed is None:
        return {}
    links = crossed.of_domain
    users: dict[int, int] = {}
    for own in links.values():
        for stream in _links_by_stream(own).values():
            for link in stream:
                users[link] = users.get(link, 0) + 1
    common = {link for link, number in users.items() if number > 1}
    common |= crossed.kv
    met = {domain: _kinds_on(own, common) for domain, own in links.items()}
    return {domain: kinds for domain, kinds in met.items() if kinds}


def _links_by_stream(links: Mapping[Source, set[int]]) -> dict[tuple[bool, int], set[int]]:
    """Links by what runs one after the other: the collectives of a stage, and what it sends to the
    next one.
    """
    found: dict[tuple[bool, int], set[int]] = {}
    for (kind, stage), own in links.items():
        found.setdefault((kind == "stages", stage), set()).update(own)
    return found


def _kinds_on(links: Mapping[Source, set[int]], common: Collection[int]) -> set[Kind]:
    """The kinds whose flows take one of the common links."""
    return {kind for (kind, _), own in links.items() if not own.isdisjoint(common)}


def may_contend(domain: Domain, *, exact: bool) -> bool:
    """Whether the collectives of a domain can be flows: not where only the engine knows how long
    its members take on links of their own.
    """
    return exact or not domain.expanded


def kinds_with_kv(
    deployment: Deployment, domain: Domain, crossed: LinksCrossed | None, *, tiers: bool
) -> set[Kind]:
    """Collectives on links that KV takes from group to group or to tiers.

    Without a topology, links inside an instance are its own: then only what is between members or
    stages is shared.
    """
    if crossed is not None:
        return _kinds_on(crossed.of_domain[domain], crossed.kv)
    is_alone = len(domain.members) == 1 and domain.group.layout.pp == 1
    if is_alone or not _shares_ports_with_kv(deployment, domain, tiers=tiers):
        return set()
    return {"members", "stages"}


def _shares_ports_with_kv(deployment: Deployment, domain: Domain, *, tiers: bool) -> bool:
    """Whether KV takes ports of the domain's devices that its collectives take, too: those to the
    switch of a node, and between nodes the network cards. Tiers take all, but for those of nodes
    with a `host_link`.
    """
    nodes = nodes_of_groups(deployment)
    members = [deployment.groups[index] for index in domain.members]
    own = {node for group in members for node in nodes[group.index]}
    if tiers and deployment.tiers_take_ports(own):
        return True
    partners = [
        other
        for other in deployment.groups
        if any(_hands_over(other, one) or _hands_over(one, other) for one in members)
    ]
    takes_network_cards = len(own) > 1
    shares_a_switch = any(not own.isdisjoint(nodes[partner.index]) for partner in partners)
    return bool(partners) and (takes_network_cards or shares_a_switch)


def _hands_over(source: Group, target: Group) -> bool:
    """Whether KV goes from one group to the other."""
    roles = (source.pd_type, target.pd_type)
    return roles == ("prefill", "decode") and source.model_name == target.model_name


def contention_notes(met: Collection[Domain], *, exact: bool) -> tuple[str, ...]:
    """Names the groups on shared links whose collectives are timed alone."""
    alone = [domain for domain in met if not may_contend(domain, exact=exact)]
    if not alone:
        return ()
    paths = ", ".join(domain.field_path for domain in alone)
    return (
        f"{paths}: other groups on the same links do not slow these groups' collectives, nor do "
        "these slow them",
    )


def unshared_notes(
    deployment: Deployment,
    domains: Sequence[Domain],
    routes: Routes | None,
    met: Collection[Domain],
    *,
    tiers: bool,
) -> tuple[str, ...]:
    """Names the collectives between members that other traffic on the same links does not slow, and
    that do not slow it: KV, or other groups, which those of `met` share links with.
    """
    names: dict[str, dict[str, None]] = {}
    for domain in domains:
        if not domain.in_lockstep:
            continue
        meets_kv = _may_meet_kv(deployment, domain, routes, tiers=tiers)
        if not meets_kv and domain not in met:
            continue
        beside = "KV is" if meets_kv else "other groups are"
        alone = _collectives_alone(deployment, domain, routes)
        names.setdefault(beside, {}).update(dict.fromkeys(alone))
    return tuple(
        f"{', '.join(alone)}: these exchanges take their own times, whatever {beside} on the same "
        "links"
        for beside, alone in names.items()
        if alone
    )


def _may_meet_kv(
    deployment: Deployment, domain: Domain, routes: Routes | None, *, tiers: bool
) -> bool:
    """Whether KV may be on links of the domain's collectives; on a topology always."""
    if not (tiers or domain.takes_part_in_pd):
        return False
    return routes is not None or _shares_ports_with_kv(deployment, domain, tiers=tiers)


def _collectives_alone(deployment: Deployment, domain: Domain, routes: Routes | None) -> list[str]:
    """Names of the collectives between members that are never flows."""
    shapes = flows.stand_ins(deployment, domain.members, on_topology=routes is not None)
    where = placed_domain(deployment, domain, routes)
    ops = [op for op in flows.collectives_of(domain) if op.among != "tp"]
    return [op.name for op in ops if flows.kind_of(op, shapes, where) is None]


def _links_by_source(
    deployment: Deployment, domain: Domain, routes: Routes
) -> dict[Source, set[int]]:
    shapes = flows.stand_ins(deployment, domain.members, on_topology=True)
    return flows.links_by_source(placed_domain(deployment, domain, routes), shapes, routes)


def _kv_links(deployment: Deployment, routes: Routes) -> set[int]:
    """Links of the topology that KV takes from prefill to decode devices."""
    found: set[int] = set()
    for source in deployment.groups:
        for target in deployment.groups:
            if not _hands_over(source, target):
                continue
            for a in routes.placed.devices[source.index]:
                for b in routes.placed.devices[target.index]:
                    found.update(routes.native.route(a, b))
    return found
