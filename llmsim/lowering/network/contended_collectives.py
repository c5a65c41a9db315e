"""Domains whose collectives meet other traffic: they become flows on the cluster's network.

A domain is one group, or all groups of a lock-step domain. Its collectives meet those of other
domains on links of a topology, and KV on the way to other groups or to tiers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from llmsim import _native
from llmsim.config import Deployment
from llmsim.config.errors import NotYetError
from llmsim.lowering.network.algorithms import is_ring
from llmsim.lowering.network.base import NetworkView
from llmsim.lowering.network.cluster_network import ClusterNetwork
from llmsim.lowering.network.collective_costs import collective_spec
from llmsim.lowering.network.topology import Routes
from llmsim.lowering.parallel_layout import LoweredLockstep
from llmsim.model import AllToAll, Collective, Layout
from llmsim.model.parallel.expert_parallel import hit

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup


Kind = Literal["members", "stages", "inside"]
"""Between members of a domain, between its stages, or inside a stage of a member."""


@dataclass(frozen=True, eq=False)
class ContendedDomain:
    """One domain: its groups, the place of every device, and the collectives that are flows."""

    groups: tuple[int, ...]
    places: tuple[int, ...]
    collectives: "tuple[_native.CollectiveSpec, ...]"

    def native(self) -> "_native.ContentionSpec":
        """The native core's description of it."""
        return _native.ContentionSpec(list(self.groups), list(self.places), list(self.collectives))


@dataclass(frozen=True, eq=False)
class Domain:
    """A group, or the groups of a lock-step domain: their collectives are run together."""

    members: tuple[int, ...]
    group: "LoweredGroup"
    """The first of them; all are alike."""
    field_path: str
    devices_per_stage: int
    """Of one member. More than its tensor-parallel ranks where ranks share prompts."""
    takes_part_in_pd: bool
    expanded: bool
    """Its members meet on links of their own, too: only the engine knows how long that takes."""

    @property
    def is_one_stage(self) -> bool:
        """Whether it is one group of one pipeline stage."""
        return len(self.members) * self.group.layout.pp == 1

    def kinds_of(self, links: Mapping[Kind, set[int]]) -> dict[Kind, set[int]]:
        """Those of the links that its flows can stand on. A flow joins tensor-parallel ranks; ranks
        that share prompts are rings of some of a stage's devices.
        """
        whole_stages = self.devices_per_stage == self.group.layout.tp
        return {kind: own for kind, own in links.items() if kind != "inside" or whole_stages}


def domains_of(
    deployment: Deployment,
    groups: Sequence["LoweredGroup"],
    lockstep_groups: Sequence[LoweredLockstep],
) -> tuple[Domain, ...]:
    """Lock-step domains, and every other group as a domain of its own."""
    in_lockstep = {index for lockstep in lockstep_groups for index in lockstep.groups}
    found = [(tuple(lockstep.groups), lockstep.expanded) for lockstep in lockstep_groups]
    alone = [group.index for group in deployment.groups if group.index not in in_lockstep]
    found += [((index,), groups[index].expanded) for index in alone]
    domains = []
    for members, expanded in found:
        first = deployment.groups[members[0]]
        lowered = groups[members[0]]
        domains.append(
            Domain(
                members,
                lowered,
                first.field_path,
                first.num_devices // lowered.layout.pp,
                first.pd_type is not None,
                expanded is not None,
            )
        )
    return tuple(domains)


@dataclass(frozen=True, eq=False)
class LinksCrossed:
    """Which links of the topology are whose."""

    of_domain: dict[Domain, dict[Kind, set[int]]]
    """Of each domain's flows, by kind; domains that keep something elsewhere have none."""
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
        domain: domain.kinds_of(_links_by_kind(domain.group, domain.members, routes))
        for domain in domains
        if domain.group.offload is None
    }
    return LinksCrossed(links, _kv_links(deployment, routes))


def kinds_met(crossed: LinksCrossed | None) -> dict[Domain, set[Kind]]:
    """The collectives of each domain that take a link which another domain's collectives take, or
    KV from prefill to decode devices. Without a topology nothing of this kind meets.
    """
    if crossed is None:
        return {}
    links = crossed.of_domain
    users: dict[int, int] = {}
    for own in links.values():
        for link in set().union(*own.values()):
            users[link] = users.get(link, 0) + 1
    common = {link for link, number in users.items() if number > 1}
    common |= crossed.kv
    met = {domain: _kinds_on(own, common) for domain, own in links.items()}
    return {domain: kinds for domain, kinds in met.items() if kinds}


def _kinds_on(links: Mapping[Kind, set[int]], common: Collection[int]) -> set[Kind]:
    """The kinds whose flows take one of the common links."""
    return {kind for kind, own in links.items() if not own.isdisjoint(common)}


def contended_domains(
    deployment: Deployment,
    domains: Sequence[Domain],
    met: Mapping[Domain, set[Kind]],
    network: ClusterNetwork,
    crossed: LinksCrossed | None,
    *,
    tiers: bool,
    exact: bool,
) -> tuple[ContendedDomain, ...]:
    """The domains whose collectives become flows: those of `met`, and those that send KV to other
    groups or to `tiers` over the same links.

    Steps that keep something elsewhere bring their own transfers (`llmsim.lowering.contention`).
    """
    found = []
    for domain in domains:
        if domain.group.offload is not None or not _may_contend(deployment, domain, exact=exact):
            continue
        kinds = set() if _is_pipelined_ahead(domain) else set(met.get(domain, ()))
        if tiers or domain.takes_part_in_pd:
            kinds |= _kinds_with_kv(domain, crossed)
        flows = _flows(deployment, domain.members, on_topology=crossed is not None)
        moved = _moved(domain.group, kinds, len(domain.members), flows)
        if not moved:
            continue
        if _is_pipelined_ahead(domain):
            raise NotYetError(
                f"{deployment.cluster_path}: {domain.field_path}: "
                "async_scheduling with pipeline stages whose hidden states share links with KV "
                "does not run in this version; set it false"
            )
        places = [place for index in domain.members for place in network.devices[index]]
        found.append(ContendedDomain(domain.members, tuple(places), moved))
    return tuple(found)


def _may_contend(deployment: Deployment, domain: Domain, *, exact: bool) -> bool:
    """Whether the collectives of a domain can be flows.

    Layers of a prompt that leave while the step goes on need times that are known when it starts.
    """
    how = deployment.disaggregation
    layerwise = how is not None and how.layerwise and domain.takes_part_in_pd
    return (exact or not domain.expanded) and not (layerwise and domain.is_one_stage)


def _is_pipelined_ahead(domain: Domain) -> bool:
    """Whether steps of several stages are scheduled before the one in front has ended."""
    return domain.group.layout.pp > 1 and domain.group.engine.async_scheduling


def _kinds_with_kv(domain: Domain, crossed: LinksCrossed | None) -> set[Kind]:
    """Collectives on links that KV takes from group to group or to tiers.

    Without a topology, links inside an instance are its own: then only what is between members or
    stages is shared.
    """
    if crossed is None:
        return {"members", "stages"}
    return _kinds_on(crossed.of_domain[domain], crossed.kv)


def contention_notes(
    deployment: Deployment, met: Collection[Domain], *, exact: bool
) -> tuple[str, ...]:
    """Names the groups on shared links whose collectives are timed alone."""
    alone = [
        domain
        for domain in met
        if _is_pipelined_ahead(domain) or not _may_contend(deployment, domain, exact=exact)
    ]
    if not alone:
        return ()
    paths = ", ".join(domain.field_path for domain in alone)
    return (
        f"{paths}: other groups on the same links do not slow these groups' collectives, nor do "
        "these slow them",
    )


def unshared_notes(
    deployment: Deployment,
    groups: Sequence["LoweredGroup"],
    lockstep_groups: Sequence[LoweredLockstep],
    routes: Routes | None,
    *,
    tiers: bool,
) -> tuple[str, ...]:
    """Names the collectives between members that KV on the same links does not slow, and that do
    not slow it.
    """
    names: dict[str, None] = {}
    for lockstep in lockstep_groups:
        first = lockstep.groups[0]
        if tiers or deployment.groups[first].pd_type is not None:
            ops = (
                op
                for op in groups[first].operators
                if isinstance(op, Collective) and op.among != "tp"
            )
            flows = _flows(deployment, lockstep.groups, on_topology=routes is not None)
            view = groups[first].links
            names |= dict.fromkeys(op.name for op in ops if _kind(op, flows, view) is None)
    if not names:
        return ()
    return (
        (
            f"{', '.join(names)}: these exchanges take their own times, whatever KV is on the same "
            "links"
        ),
    )


def _kv_links(deployment: Deployment, routes: Routes) -> set[int]:
    """Links of the topology that KV takes from prefill to decode devices."""
    found: set[int] = set()
    for source in deployment.groups:
        for target in deployment.groups:
            if (source.pd_type, target.pd_type) != (
                "prefill",
                "decode",
            ) or source.model_name != target.model_name:
                continue
            for a in routes.placed.devices[source.index]:
                for b in routes.placed.devices[target.index]:
                    found.update(routes.native.route(a, b))
    return found


@dataclass(frozen=True)
class Flows:
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


def _flows(deployment: Deployment, members: Sequence[int], *, on_topology: bool) -> Flows:
    """Without a topology; rows where nodes have as many members each, side by side (else their
    price is refused).
    """
    nodes = [deployment.groups[index].node for index in members]
    each = len(nodes) // len(set(nodes))
    even = all(len(set(nodes[first : first + each])) == 1 for first in range(0, len(nodes), each))
    return Flows(rows=each if even and not on_topology else 0, rings=not on_topology)


def _kind(op: Collective, flows: Flows, view: NetworkView) -> Kind | None:
    """Where the flows of a collective are; None: it has none, but a time of its own.

    These are collectives that `flows` does not allow, those inside of a stage that are not of all
    its ranks, and, of all ranks of all members, those that are neither rings nor rows on ports.
    """
    chosen = view.algorithms.names(op.collective)
    if chosen and (op.collective == "all_to_all" or op.among == "everyone"):
        return "members" if is_ring(view.algorithm(op)) and op.collective != "all_to_all" else None
    if op.collective == "all_to_all":
        return "members" if flows.rows and op.among in ("members", "everyone") else None
    if op.among == "everyone" or op.collective == "broadcast":
        return "members" if flows.rings and op.among in ("members", "everyone") else None
    if op.among not in ("members", "stages", "tp"):
        return None
    return "inside" if op.among == "tp" else op.among


def _spec(
    index: int, op: Collective, view: NetworkView, members: int, flows: Flows
) -> "_native.CollectiveSpec":
    if isinstance(op, AllToAll):
        near, far = _row_bytes_per_token(op, view.layout, members, flows.rows)
        return collective_spec(view, index, op, near, per_node=flows.rows, far_bytes_per_unit=far)
    everyone = op.collective != "broadcast" and op.among == "everyone"
    return collective_spec(view, index, op, op.collective_bytes_per_token, everyone=everyone)


def _row_bytes_per_token(op: AllToAll, layout: Layout, members: int, each: int) -> tuple[int, int]:
    """What leaves a device by its port to the `each` members of its node and by that to other
    nodes, for each token of the domain, times the members, under an even router (`all_to_all`
    prices the same rows).

    A member's own ranks are reached over links of its own. Over nodes, "rank" rows cross once for
    each (token, node), and are handed on inside it by the rank that they reach.
    """
    own = layout.tp if op.among == "everyone" else 1
    ranks, per_node = own * members, own * each
    at_rank, at_node = (
        op.topk * count / ranks
        if op.rows.per == "expert"
        else hit(op, op.experts_total // ranks * count)
        for count in (1, per_node)
    )
    near, far = at_rank * (per_node - own) / own, at_rank * (ranks - per_node) / own
    if op.rows.per == "rank" and each < members:
        near = at_rank * (per_node - own) / per_node * members
        far = at_node * (members // each - 1) / own
    return ceil(near * op.rows.row_bytes), ceil(far * op.rows.row_bytes)


def _links_by_kind(
    group: "LoweredGroup", members: Sequence[int], routes: Routes
) -> dict[Kind, set[int]]:
    """Links of the topology that a domain's rings and hand-overs take."""
    tp, stages = group.layout.tp, group.layout.pp
    devices = [routes.placed.devices[index] for index in members]
    rings: dict[Kind, list[list[int]]] = {"members": [], "stages": [], "inside": []}
    for place in range(tp * stages):
        rings["members"].append([mine[place] for mine in devices])
    for mine in devices:
        rings["inside"] += [list(mine[first : first + tp]) for first in range(0, tp * stages, tp)]
        rings["stages"] += [[mine[at], mine[at + tp]] for at in range(tp * (stages - 1))]
    return {
        kind: {
            link
            for ring in found
            for a, b in zip(ring, ring[1:] + ring[:1], strict=True)
            if a != b
            for link in routes.native.route(a, b)
        }
        for kind, found in rings.items()
    }


def _moved(
    group: "LoweredGroup", shared: Collection[Kind], members: int, flows: Flows
) -> "tuple[_native.CollectiveSpec, ...]":
    """Collectives and hand-overs on shared links, with their bytes, however they are priced."""
    ops = {op.name: op for op in group.operators if isinstance(op, Collective)}
    return tuple(
        _spec(index, op, group.links, members, flows)
        for index, cost in enumerate(group.program_costs)
        if (op := ops.get(cost.name)) is not None and _kind(op, flows, group.links) in shared
    )
