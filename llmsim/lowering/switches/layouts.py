"""Layouts over the same devices: what each of them lowers to, and what a switch between two costs.

Instances take the devices in order; of an instance's devices, those of one pipeline stage follow
each other.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment
from llmsim.config.cluster_file.layouts import Reconfiguration, Switch
from llmsim.config.deployment import AfdRole
from llmsim.config.errors import NotYetError
from llmsim.core import PS_PER_S
from llmsim.lowering.energy.accounting import accounting
from llmsim.lowering.group import placed_at
from llmsim.lowering.kv.kv_transfer import shares_of
from llmsim.lowering.kv.offloading import no_copies
from llmsim.lowering.kv.tiers import LoweredTiers
from llmsim.lowering.network.cluster_network import ClusterNetwork, cluster_network
from llmsim.lowering.network.contended.collectives import ContendedDomain
from llmsim.lowering.network.topology import routes_of
from llmsim.lowering.switches.weight_moves import (
    WeightMoves,
    devices_per_server,
    moves_between,
    weights_ps,
)
from llmsim.lowering.types import LoweredDeployment, LoweredGroup
from llmsim.scheduling.reconfigure import Decision

PPM = 1_000_000


class LayoutPlan(Struct, frozen=True):
    """One layout, lowered as if it served alone."""

    name: str
    deployment: Deployment
    lowered: LoweredDeployment
    network: ClusterNetwork
    """With the same places in all layouts."""
    tiers: "_native.KvTiersConfig | None" = None
    """Which pools of KV its groups use; None where there are none."""

    @property
    def kv_transfers(self) -> "_native.KvTransferConfig":
        """Who hands KV over to whom; places alone where nobody does."""
        if self.lowered.kv_transfers is not None:
            return self.lowered.kv_transfers
        places = [list(ranks) for ranks in self.network.devices]
        return _native.KvTransferConfig(False, False, places)


class LayoutPlans(Struct, frozen=True, eq=False):
    """All layouts of a cluster, and when and at what cost to switch; the first entry of `plans`
    that is named `initial` serves first.
    """

    plans: tuple[LayoutPlan, ...]
    initial: int
    switches: tuple[Switch, ...]
    cost: Reconfiguration
    weights: tuple[tuple[WeightMoves, ...], ...]
    """[from][to]."""
    weights_ps: tuple[tuple[int, ...], ...]
    process_ps: int
    decide: Callable[[], Decision] | None = None
    """Makes what asks a user's class; None: triggers alone."""

    def triggers(self) -> "list[_native.LayoutTrigger]":
        """In the order of the file."""
        names = [plan.name for plan in self.plans]
        return [_trigger(names.index(one.to), one) for one in self.switches]

    @property
    def kv(self) -> "_native.KvOnSwitch":
        """With a fixed cost, KV moves in it."""
        kinds = _native.KvOnSwitch
        by_name = {"move": kinds.MOVE, "recompute": kinds.RECOMPUTE, "drop": kinds.DROP}
        return by_name[self.cost.kv]

    @property
    def apart(self) -> "LayoutPlan | None":
        """A layout with prefill and decode apart; None where none has them."""
        found = (plan for plan in self.plans if plan.lowered.kv_transfers is not None)
        return next(found, None)

    @property
    def shares_links(self) -> bool:
        """Whether anything moves between groups of a layout."""
        return any(plan.lowered.network is not None for plan in self.plans)

    @property
    def tiers(self) -> LoweredTiers | None:
        """The pools of all layouts, and who uses them at first; None where there are none."""
        first = self.plans[self.initial]
        return None if first.tiers is None else LoweredTiers(first.network, first.tiers)

    def initial_with_links(self) -> LoweredDeployment:
        """The layout that serves first, with what any layout needs between its groups."""
        first = self.plans[self.initial]
        apart = self.apart
        kv_transfers = first.lowered.kv_transfers
        if kv_transfers is None and apart is not None:
            how = apart.deployment.disaggregation
            assert how is not None, "the layout has it"
            places = [list(ranks) for ranks in first.network.devices]
            kv_transfers = _native.KvTransferConfig(how.push, how.layerwise, places, how.chunked)
        network = first.network if self.shares_links else None
        return replace(
            first.lowered,
            network=network,
            kv_transfers=kv_transfers,
            kv_offloading=tuple(self._kv_offloading(first)),
            layouts=self,
        )

    @property
    def moves_kv(self) -> bool:
        """Whether KV moves, and takes a time of its own."""
        return self.cost.kv == "move" and self.cost.fixed_s is None

    def native_spec(
        self,
        plan: LayoutPlan,
        groups: "list[_native.GroupSpec]",
        lockstep: "list[_native.LockstepSpec]",
        contended: Sequence[ContendedDomain],
        moves: "KvMoves | None",
    ) -> "_native.LayoutSpec":
        """A layout as the core makes groups of it; `contended` are those of its collectives that
        slow each other.
        """
        lowered = plan.lowered
        per_token = [-(-one.ledger.block_bytes // one.info.block_size) for one in lowered.groups]
        return _native.LayoutSpec(
            plan.name,
            groups,
            lockstep,
            [domain.native() for domain in contended],
            plan.kv_transfers,
            plan.tiers,
            per_token,
            [one.info.num_devices for one in lowered.groups],
            [0] * len(groups) if moves is None else moves.of(plan),
            self._kv_offloading(plan),
        )

    def _kv_offloading(self, plan: LayoutPlan) -> "list[_native.OffloadingCopies]":
        """How the KV of each group comes to host memory; none where no layout offloads any."""
        if not any(one.lowered.kv_offloading for one in self.plans):
            return []
        nowhere = [no_copies() for _ in plan.lowered.groups]
        return list(plan.lowered.kv_offloading) or nowhere

    def visits(self, simulation: "_native.Simulation") -> list[tuple[int, int]]:
        """(layout, its first group) of those that served so far, one after the other."""
        rows = [row for row in simulation.reconfigurations() if row["first_group"] > 0]
        return [(self.initial, 0), *((row["to"], row["first_group"]) for row in rows)]

    def as_run(self, visits: Sequence[tuple[int, int]]) -> tuple[Deployment, LoweredDeployment]:
        """What served in a run: the groups of all layouts that came, one after the other. `visits`
        are (layout, index of its first group), the initial one first.
        """
        first = self.plans[self.initial]
        groups, lowered, lockstep = [], [], []
        copies: list[_native.OffloadingCopies] = []
        networks: list[ClusterNetwork | None] = []
        for layout, begin in visits:
            plan = self.plans[layout]
            for group, one in zip(plan.deployment.groups, plan.lowered.groups, strict=True):
                placed = replace(group, index=begin + group.index)
                if placed.afd is not None:
                    placed = replace(placed, afd=_moved(placed.afd, begin))
                groups.append(placed)
                lowered.append(placed_at(one, placed))
            network = self._numbered(plan, begin) if self.shares_links else None
            networks += [network] * len(plan.lowered.groups)
            copies += self._kv_offloading(plan)
            lockstep += [
                replace(one, groups=tuple(begin + index for index in one.groups))
                for one in plan.lowered.lockstep_groups
            ]
        nodes = tuple(
            replace(node, groups=tuple(one.index for one in groups if one.node == node.index))
            for node in first.deployment.nodes
        )
        deployment = replace(first.deployment, nodes=nodes, groups=tuple(groups))
        of_first = first.lowered.accounting
        disabled = () if of_first.part_power else ("pim_power",)
        account = replace(accounting(deployment, lowered, disabled), cost=of_first.cost)
        return deployment, replace(
            first.lowered,
            groups=tuple(lowered),
            lockstep_groups=tuple(lockstep),
            accounting=account,
            network=first.network if self.shares_links else None,
            kv_offloading=tuple(copies),
            layouts=self,
            networks=tuple(networks),
        )

    def _numbered(self, plan: LayoutPlan, begin: int) -> ClusterNetwork:
        """The network where the layout's groups come from `begin` on, and nobody else is there."""
        devices, kv = (((),) * begin + of for of in (plan.network.devices, plan.network.kv))
        return replace(plan.network, devices=devices, kv=kv)


def _moved(role: AfdRole, begin: int) -> AfdRole:
    """The role where its layout's groups come from `begin` on, under a name of its own."""
    attention, ffn = (tuple(begin + index for index in side) for side in (role.attention, role.ffn))
    name = f"{role.name} from group {begin}" if begin else role.name
    return replace(role, name=name, attention=attention, ffn=ffn)


def _trigger(to: int, switch: Switch) -> "_native.LayoutTrigger":
    when, kinds = switch.when, _native.TriggerKind
    if when.at_s is not None:
        return _native.LayoutTrigger(to, kinds.AT, round(when.at_s * PS_PER_S))
    if when.active_share_below is not None:
        return _native.LayoutTrigger(
            to, kinds.OPEN_SHARE_BELOW, round(when.active_share_below * PPM)
        )
    if when.tail is not None:
        share = round(when.tail.finished_share_above * PPM)
        return _native.LayoutTrigger(to, kinds.ENDED_SHARE_ABOVE, share)
    return _native.LayoutTrigger(to, kinds.WAITING_BELOW, when.waiting_below or 1)


def plan_layouts(
    plans: Sequence[LayoutPlan],
    initial: int,
    switches: Sequence[Switch],
    cost: Reconfiguration,
    decide: Callable[[], Decision] | None = None,
) -> LayoutPlans:
    """The plans with the costs of every switch between two of them."""
    moves = tuple(tuple(moves_between(cost, before, after) for after in plans) for before in plans)
    times_ps = tuple(tuple(weights_ps(cost, one) for one in row) for row in moves)
    process_s = cost.process_s if cost.fixed_s is None else cost.fixed_s
    return LayoutPlans(
        tuple(plans),
        initial,
        tuple(switches),
        cost,
        moves,
        times_ps,
        round(process_s * PS_PER_S),
        decide,
    )


Kind = tuple[object, ...]
"""Groups of a kind keep KV alike."""


class KvMoves(Struct, frozen=True, eq=False):
    """What goes from groups of one kind to those of another when KV moves."""

    kinds: Mapping[Kind, int]
    tables: "_native.KvTransferConfig"
    table_of: list[list[int]]

    def of(self, plan: LayoutPlan) -> list[int]:
        """The kind of each group."""
        return [self.kinds[_kind(one)] for one in plan.lowered.groups]


def kv_moves(plans: Sequence[LayoutPlan]) -> KvMoves:
    """Tables between all kinds of groups of a model; FFN groups keep no KV."""
    first = {_kind(one): one for plan in plans for one in plan.lowered.groups}
    kinds = {kind: number for number, kind in enumerate(first)}
    tables = _native.KvTransferConfig(False, False, [])
    table_of = [[-1] * len(kinds) for _ in kinds]
    for a, source in first.items():
        for b, target in first.items():
            if a[0] != b[0] or None in (source.scheduler, target.scheduler):
                continue
            try:
                shares = list(shares_of(source, target))
            except NotYetError:
                raise NotYetError(
                    f'{plans[0].deployment.cluster_path}: reconfiguration.kv is "move", but KV of '
                    f"{source.model.name} does not move in this version; say recompute or drop"
                ) from None
            table = tables.add_table(shares, target.engine.block_size, False)
            table_of[kinds[a]][kinds[b]] = table
    return KvMoves(kinds, tables, table_of)


def _kind(group: LoweredGroup) -> Kind:
    draft = None if group.draft is None else (group.draft.model.name, group.draft.layout)
    keeps = group.scheduler is not None
    return (group.model.name, group.layout, group.dtypes.kv, group.engine.block_size, draft, keeps)


def move_network(plan: LayoutPlan) -> "_native.NetworkConfig":
    """Over which KV moves in a switch: devices on servers, in order."""
    servers = replace(plan.deployment, devices_per_node=devices_per_server(plan))
    return cluster_network(servers, routes=routes_of(servers)).config
