"""Domains that talk over the ports that KV uses too: their collectives become flows on the cluster's network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmsim import _native
from llmsim.config import Deployment
from llmsim.lowering.collectives import KINDS
from llmsim.lowering.layouts import LoweredWave
from llmsim.lowering.network import ClusterNetwork

if TYPE_CHECKING:
    from llmsim.lowering.deployment import LoweredGroup


@dataclass(frozen=True, eq=False)
class SharedLinks:
    """One domain: its groups, the place of every device, and what moves between members or stages."""

    groups: tuple[int, ...]
    places: tuple[int, ...]
    collectives: "tuple[_native.CollectiveSpec, ...]"

    def install(self, simulation: "_native.Simulation") -> None:
        """After the groups, the waves and the fabric."""
        simulation.share_links(list(self.groups), list(self.places), list(self.collectives))


def shared_links(
    deployment: Deployment,
    groups: Sequence["LoweredGroup"],
    waves: Sequence[LoweredWave],
    network: ClusterNetwork,
    *,
    tiers: bool,
) -> tuple[SharedLinks, ...]:
    """The domains that send KV to other groups or to `tiers`, and more than KV over the same ports.

    Links inside an instance are its own, so that a domain of one member and one stage has nothing to share. Steps that
    keep something elsewhere bring their own transfers (`llmsim.lowering.meeting`).
    """
    in_waves = {index for wave in waves for index in wave.groups}
    domains = [wave.groups for wave in waves]
    domains += [(group.index,) for group in deployment.groups if group.pp > 1 and group.index not in in_waves]
    found = []
    for members in domains:
        group = groups[members[0]]
        if group.offload is not None or (not tiers and deployment.groups[members[0]].pd_type is None):
            continue
        moved = _moved(group)
        if moved:
            places = [place for index in members for place in network.devices[index]]
            found.append(SharedLinks(tuple(members), tuple(places), moved))
    return tuple(found)


def _moved(group: "LoweredGroup") -> "tuple[_native.CollectiveSpec, ...]":
    """Collectives between members and hand-overs between stages, with their bytes, however they are priced.

    Rings of all ranks of all members, and exchanges of rows, are no flows: they take their own times.
    """
    ops = {op.name: op for op in group.operators if op.kind == "collective"}
    return tuple(
        _native.CollectiveSpec(index, KINDS.get(op.collective, KINDS["all_gather"]), op.collective_bytes_per_token)
        for index, cost in enumerate(group.program_costs)
        if (op := ops.get(cost.name)) is not None
        and op.among in ("members", "stages")
        and op.collective not in ("all_to_all", "broadcast")
    )
