"""The attention and FFN groups that run every layer together, as the core wants them."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmsim import _native
from llmsim.config import Deployment
from llmsim.config.deployment import AfdRole
from llmsim.lowering.afd.layers import native_bands
from llmsim.lowering.afd.layout import columns_of
from llmsim.lowering.afd.transfers import hops_of
from llmsim.lowering.network.cluster_network import BETWEEN_GROUPS, BETWEEN_NODES
from llmsim.lowering.types import LoweredGroup


@dataclass(frozen=True)
class Way:
    """Between a port of an attention device and one of an FFN device."""

    bytes_per_s: int
    latency_ps: int


def roles_of(deployment: Deployment) -> list[AfdRole]:
    """One for each afd_group, in the order of the file."""
    found = {group.afd.name: group.afd for group in deployment.groups if group.afd is not None}
    return list(found.values())


def afd_config(
    deployment: Deployment, groups: Sequence[LoweredGroup], role: AfdRole
) -> "_native.AfdConfig":
    """The core's description of how the groups of a role run a step."""
    attention, ffn = groups[role.attention[0]], groups[role.ffn[0]]
    way = way_between(deployment, role)
    return _native.AfdConfig(
        attention_members=len(role.attention),
        lanes=role.lanes,
        columns=columns_of(deployment.groups[role.ffn[0]], ffn.layout),
        sharing=ffn.layout.dp,
        bands=native_bands(attention.model, attention.layout, attention.placed, ffn.placed),
        hops=hops_of(attention, ffn),
        latency_ps=way.latency_ps,
        attention_bytes_per_s=way.bytes_per_s,
        ffn_bytes_per_s=way.bytes_per_s,
    )


def way_between(deployment: Deployment, role: AfdRole) -> Way:
    """The slowest way: between nodes where any attention group is on another node than an FFN
    group.
    """
    nodes = {deployment.groups[index].node for index in (*role.attention, *role.ffn)}
    dimension = BETWEEN_GROUPS if len(nodes) == 1 else BETWEEN_NODES
    link = deployment.link
    at = min(dimension, len(link.bandwidth_bytes_per_s) - 1)
    return Way(link.bandwidth_bytes_per_s[at], link.latency_of(dimension))
