"""Domains whose collectives meet other traffic: they become flows on the cluster's network.

A domain is one group, or all groups of a lock-step domain. Its collectives meet those of other
domains on links of a topology, and KV on the way to other groups or to tiers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmsim import _native
from llmsim.config import Deployment
from llmsim.lowering.network.cluster_network import ClusterNetwork
from llmsim.lowering.network.contended import flows
from llmsim.lowering.network.contended.domains import Domain, Kind
from llmsim.lowering.network.contended.meeting import LinksCrossed, kinds_with_kv, may_contend
from llmsim.lowering.network.topology import Routes


@dataclass(frozen=True, eq=False)
class ContendedDomain:
    """One domain: its groups, the place of every device, and the collectives that are flows."""

    groups: tuple[int, ...]
    places: tuple[int, ...]
    collectives: "tuple[_native.CollectiveSpec, ...]"
    rails: tuple[flows.RailsSpec, ...] = ()

    def native(self) -> "_native.ContentionSpec":
        """The native core's description of it."""
        return _native.ContentionSpec(
            list(self.groups), list(self.places), list(self.collectives), list(self.rails)
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
            kinds |= kinds_with_kv(domain, crossed)
        shapes = flows.stand_ins(deployment, domain.members, on_topology=routes is not None)
        moved = flows.moved(domain, kinds, shapes, routes)
        if not moved:
            continue
        places = [place for index in domain.members for place in network.devices[index]]
        specs = flows.specs_of(domain, moved, shapes)
        rails = flows.rails_specs(domain, moved, routes, _nodes_of(domain, places, routes))
        found.append(ContendedDomain(domain.members, tuple(places), specs, rails))
    return tuple(found)


def _nodes_of(domain: Domain, places: Sequence[int], routes: Routes | None) -> dict[int, int]:
    """The network's node of each of the topology's devices; none without a topology."""
    if routes is None:
        return {}
    devices = [device for index in domain.members for device in routes.placed.devices[index]]
    return dict(zip(devices, places, strict=True))
