"""Groups whose collectives run together, and the kinds of links that these can take."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from llmsim.config import Deployment
from llmsim.lowering.parallel_layout import LoweredLockstep

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup


Kind = Literal["members", "stages", "inside"]
"""Between members of a domain, between its stages, or inside a stage of a member."""
KINDS: tuple[Kind, ...] = ("members", "stages", "inside")
Source = tuple[Kind, int]
"""What moves in a stage, one after the other; of hidden states, the stage that sends them."""


class Domain(Struct, frozen=True, eq=False):
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
    in_lockstep: bool

    def sources_of(self, links: Mapping[Source, set[int]]) -> dict[Source, set[int]]:
        """Those of the links that its flows can stand on. A flow joins tensor-parallel ranks; ranks
        that share prompts are rings of some of a stage's devices.
        """
        whole_stages = self.devices_per_stage == self.group.layout.tp
        return {one: own for one, own in links.items() if one[0] != "inside" or whole_stages}


def domains_of(
    deployment: Deployment,
    groups: Sequence["LoweredGroup"],
    lockstep_groups: Sequence[LoweredLockstep],
) -> tuple[Domain, ...]:
    """Lock-step domains, and every other group as a domain of its own."""
    in_lockstep = {index for lockstep in lockstep_groups for index in lockstep.groups}
    found = [
        (tuple(lockstep.groups), lockstep.expanded)
        for lockstep in lockstep_groups
        if lockstep.afd is None  # their transfers have the ways between them to themselves
    ]
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
                members[0] in in_lockstep,
            )
        )
    return tuple(domains)
