"""The attention and FFN groups that run every layer together, as the core wants them."""

from collections.abc import Sequence

from llmsim import _native
from llmsim.config import Deployment
from llmsim.config.deployment import AfdRole
from llmsim.lowering.afd.layers import native_bands
from llmsim.lowering.afd.layout import columns_of
from llmsim.lowering.afd.ports import RowPort, way_between
from llmsim.lowering.afd.transfers import hops_of
from llmsim.lowering.network.topology import Routes
from llmsim.lowering.types import LoweredGroup


def roles_of(deployment: Deployment) -> list[AfdRole]:
    """One for each afd_group, in the order of the file."""
    found = {group.afd.name: group.afd for group in deployment.groups if group.afd is not None}
    return list(found.values())


def afd_config(
    deployment: Deployment,
    groups: Sequence[LoweredGroup],
    role: AfdRole,
    ports: Sequence[RowPort],
    routes: Routes | None,
) -> "_native.AfdConfig":
    """The core's description of how the groups of a role run a step; rows take the `ports`."""
    attention, ffn = groups[role.attention[0]], groups[role.ffn[0]]
    way = way_between(deployment, role, ports, routes)
    return _native.AfdConfig(
        attention_members=len(role.attention),
        lanes=role.lanes,
        columns=columns_of(deployment.groups[role.ffn[0]], ffn.layout),
        sharing=ffn.layout.dp,
        bands=native_bands(attention.model, attention.layout, attention.placed, ffn.placed),
        hops=hops_of(attention, ffn),
        latency_ps=way.latency_ps,
        attention_bytes_per_s=way.attention_bytes_per_s,
        ffn_bytes_per_s=way.ffn_bytes_per_s,
    )
