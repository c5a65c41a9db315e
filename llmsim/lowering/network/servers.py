"""Says where collectives cross from one server to another at the rate of the links
inside a server.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsim.config import Deployment, Group
from llmsim.lowering.network.mesh import DomainLinks

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

REMEDY = "name a topology in the cluster file, whose routes collectives then take"


def server_notes(deployment: Deployment, lowered: "Sequence[LoweredGroup]") -> tuple[str, ...]:
    """One sentence for each domain of ranks that talks over several servers at the
    rate inside one.
    """
    notes: dict[str, list[str]] = {}
    for group, one in zip(deployment.groups, lowered, strict=True):
        if not isinstance(one.links, DomainLinks):
            continue
        between = _between_nodes(deployment, group, one.links)
        if between:
            notes.setdefault(between, [])
        beyond = _beyond_a_server(group, one, one.links)
        if beyond:
            notes.setdefault(beyond, []).append(group.field_path)
    return tuple(_named(paths) + note for note, paths in notes.items())


def _named(paths: list[str]) -> str:
    """The groups that a sentence is about; the sentence names its own where there are none."""
    if not paths:
        return ""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}: "


def _between_nodes(deployment: Deployment, group: Group, links: DomainLinks) -> str:
    """Data-parallel ranks on several nodes, where the file gives no rate of its own
    between nodes.
    """
    if links.nodes == 1 or links.members == 1:
        return ""
    between, inside = (
        deployment.link.bandwidth_bytes_per_s[-1],
        deployment.link.bandwidth_bytes_per_s[0],
    )
    if between < inside:
        return ""
    nodes = sorted({other.node for other in deployment.groups if other.dp_group == group.dp_group})
    return (
        f'the ranks of dp_group "{group.dp_group}" on the nodes {", ".join(map(str, nodes))} '
        "exchange tokens at "
        f"link_bw {between / 1e9:g} GB/s between nodes, not below the {inside / 1e9:g} GB/s "
        "inside an instance; give "
        f"link_bw a last entry for the network between nodes, or {REMEDY}"
    )


def _beyond_a_server(group: Group, lowered: "LoweredGroup", links: DomainLinks) -> str:
    """Ranks on one node of the file that are more than a server joins, at the rate
    inside a server.
    """
    most = None if lowered.hardware is None else lowered.hardware.link_domain_devices
    if most is None:
        return ""
    devices, crossing = 1, None
    inside = links.dimensions[0][1]
    for number, (ranks, bytes_per_s, _) in enumerate(links.dimensions):
        among_members = links.members > 1 and number == len(links.dimensions) - 1
        if among_members and links.nodes > 1:
            ranks = -(-ranks // links.nodes)
        devices *= ranks
        if devices > most and bytes_per_s >= inside and crossing is None:
            crossing = bytes_per_s
    if crossing is None:
        return ""
    return (
        f"{devices} {group.hardware} devices of node {group.node} talk at link_bw "
        f"{crossing / 1e9:g} GB/s, the rate "
        f"inside a server, but a server joins {most} of them; {REMEDY}"
    )
