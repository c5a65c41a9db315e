"""Domains whose collectives meet other traffic: they become flows on the cluster's network.

A domain is one group, or all groups of a lock-step domain. Its collectives meet those of other
domains on links of a topology, and KV on the way to other groups or to tiers.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from llmsim import _native
from llmsim.config import Deployment
from llmsim.lowering.network.cluster_network import ClusterNetwork
from llmsim.lowering.network.contended import flows
from llmsim.lowering.network.contended.domains import Domain, Kind
from llmsim.lowering.network.contended.meeting import LinksCrossed, kinds_with_kv, may_contend
from llmsim.lowering.network.contended.plans import placed_domain
from llmsim.lowering.network.topology import Routes


class ContendedDomain(Struct, frozen=True, eq=False):
    """One domain: its groups, the place of every device, and the collectives that are flows."""

    groups: tuple[int, ...]
    places: tuple[int, ...]
    collectives: "tuple[_native.CollectiveSpec, ...]"
    planned: "tuple[_native.PlannedSpec, ...]" = ()
    """What those of them that have plans move."""

    def native(self) -> "_native.ContentionSpec":
        """The native core's description of it."""
        return _native.ContentionSpec(
            list(self.groups), list(self.places), list(self.collectives), list(self.planned)
        )


def contended_domains(
    deployment: Deployment,
    domains: Sequence[Domain],
    met: Mapping[Domain, set[Kind]],
    network: ClusterNetwork,
    crossed: LinksCrossed | None,
    routes: Routes | None,
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
        if domain.group.offload is not None or not may_contend(domain, exact=exact):
            continue
        kinds = set(met.get(domain, ()))
        if tiers or domain.takes_part_in_pd:
            kinds |= kinds_with_kv(deployment, domain, crossed, tiers=tiers)
        shapes = flows.stand_ins(deployment, domain.members, on_topology=routes is not None)
        where = placed_domain(deployment, domain, routes)
        moved = flows.moved(where, kinds, shapes)
        if not moved:
            continue
        places = [place for index in domain.members for place in network.devices[index]]
        specs = flows.specs_of(domain, moved, shapes)
        planned = flows.planned_specs(where, moved, places)
        found.append(ContendedDomain(domain.members, tuple(places), specs, planned))
    return tuple(found)
