"""Layouts over the same devices: what each of them lowers to, and what a switch between two costs.

Instances take the devices in order; of an instance's devices, those of one pipeline stage follow
each other. A device holds the layers of its stage, of every dense matrix the interval of its
tensor-parallel rank, and of the experts its share: some of them whole, or a slice of each. With
attention and FFN on different devices each holds its side's matrices alone. What a
device needs after a switch and does not hold, it gets from a device that holds it: one of its
server, if there is one, else the replicas take turns. All move at once, so the busiest port says
how long that takes; what a device keeps is copied once inside its memory.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from llmsim import _native
from llmsim.config import Deployment
from llmsim.config.cluster_file.layouts import Reconfiguration, Switch
from llmsim.config.deployment import AfdRole
from llmsim.config.errors import NotYetError
from llmsim.core import PS_PER_S
from llmsim.lowering.energy.accounting import accounting, run_by
from llmsim.lowering.group import placed_at
from llmsim.lowering.kv.kv_transfer import shares_of
from llmsim.lowering.kv.tiers import LoweredTiers
from llmsim.lowering.network.cluster_network import ClusterNetwork, cluster_network
from llmsim.lowering.network.topology import Routes, routes_of
from llmsim.lowering.types import LoweredDeployment, LoweredGroup
from llmsim.model import Attention, Moe, Operator
from llmsim.scheduling.reconfigure import Decision

PPM = 1_000_000
DEFAULT_SERVER = 8
"""Devices of a server where the data sheet does not say."""
Interval = tuple[Fraction, Fraction]
FFN_BLOCKS = ("mlp", "latent_in", "latent_out", "experts", "shared_experts")
"""Blocks of operators whose weights the FFN's devices hold, beside those of the experts."""


@dataclass(frozen=True)
class LayoutPlan:
    """One layout, lowered as if it served alone."""

    name: str
    deployment: Deployment
    lowered: LoweredDeployment
    field_paths: Mapping[str, str]
    """Of each instance in the cluster file, by its path on the nodes of `deployment`."""
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


@dataclass(frozen=True)
class WeightMoves:
    """What a switch moves between devices before the new layout holds its weights."""

    links_bytes: int = 0
    """Over the links inside servers, all devices together."""
    network_bytes: int = 0
    """Between servers."""
    kept_bytes: int = 0
    """What devices hold already, and copy to its new place."""
    busiest_ps: int = 0
    """Of the busiest port."""
    copy_ps: int = 0
    """Of the device that copies most."""
    by_group: tuple[Mapping[str, int], ...] = ()
    """Of each group of the new layout, what moves for its devices, by fields of
    `llmsim.core.Traffic`.
    """

    @property
    def time_ps(self) -> int:
        """Both, one after the other."""
        return self.busiest_ps + self.copy_ps


@dataclass(frozen=True, eq=False)
class LayoutPlans:
    """All layouts of a cluster, and when and at what cost to switch; the first entry of `plans`
    that is named `initial` serves first.
    """

    plans: tuple[LayoutPlan, ...]
    initial: int
    switches: tuple[Switch, ...]
    cost: Reconfiguration
    weights: tuple[tuple[WeightMoves, ...], ...]
    """[from][to], where `cost.weights` is "links"."""
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
            kv_transfers = _native.KvTransferConfig(how.push, how.layerwise, places)
        network = first.network if self.shares_links else None
        return replace(first.lowered, network=network, kv_transfers=kv_transfers, layouts=self)

    @property
    def moves_kv(self) -> bool:
        """Whether KV moves, and takes a time of its own."""
        return self.cost.kv == "move" and self.cost.fixed_s is None

    def native_spec(
        self,
        plan: LayoutPlan,
        groups: "list[_native.GroupSpec]",
        lockstep: "list[_native.LockstepSpec]",
        moves: "KvMoves | None",
    ) -> "_native.LayoutSpec":
        """A layout as the core makes groups of it."""
        lowered = plan.lowered
        per_token = [-(-one.ledger.block_bytes // one.info.block_size) for one in lowered.groups]
        return _native.LayoutSpec(
            plan.name,
            groups,
            lockstep,
            [domain.native() for domain in lowered.contended],
            plan.kv_transfers,
            plan.tiers,
            per_token,
            [one.info.num_devices for one in lowered.groups],
            [0] * len(groups) if moves is None else moves.of(plan),
        )

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
        networks: list[ClusterNetwork | None] = []
        for layout, begin in visits:
            plan = self.plans[layout]
            for group, one in zip(plan.deployment.groups, plan.lowered.groups, strict=True):
                path = plan.field_paths.get(group.field_path, group.field_path)
                placed = replace(group, index=begin + group.index, field_path=path)
                if placed.afd is not None:
                    placed = replace(placed, afd=_moved(placed.afd, begin))
                groups.append(placed)
                lowered.append(placed_at(one, placed))
            network = self._numbered(plan, begin) if self.shares_links else None
            networks += [network] * len(plan.lowered.groups)
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
    made = {"links": weight_moves, "host": _from_the_host, "cached": lambda *_: WeightMoves()}
    moves = tuple(tuple(made[cost.weights](before, after) for after in plans) for before in plans)
    weights_ps = tuple(
        tuple(_weights_ps(cost, row[j], plans[j]) for j in range(len(plans))) for row in moves
    )
    process_s = cost.process_s if cost.fixed_s is None else cost.fixed_s
    return LayoutPlans(
        tuple(plans),
        initial,
        tuple(switches),
        cost,
        moves,
        weights_ps,
        round(process_s * PS_PER_S),
        decide,
    )


def largest_shard(plan: LayoutPlan) -> int:
    """Bytes of weights of the device that holds most."""
    return max(_Shard.of(one, 0).total for one in plan.lowered.groups)


def _from_the_host(_: LayoutPlan, after: LayoutPlan) -> WeightMoves:
    """Every device loads its shard from its host."""
    counts: list[dict[str, int]] = []
    for holders in _holders_by_group(after):
        size = sum(one.shard.bytes_of(one.stage) for one in holders)
        counts.append({"host_bytes": size, "memory_bytes": size})
    return WeightMoves(by_group=tuple(counts))


def _weights_ps(cost: Reconfiguration, moves: WeightMoves, after: LayoutPlan) -> int:
    if cost.fixed_s is not None or cost.weights == "cached":
        return 0
    if cost.weights == "links":
        return moves.time_ps
    return _ps(largest_shard(after), round(cost.host_gb_per_s * 1e9))


def _ps(count: int, per_s: int) -> int:
    return -(-count * PS_PER_S // per_s)


@dataclass(frozen=True)
class _Shard:
    """What the devices of one group hold, by stage: bytes of the weights of a layer's attention,
    router, dense FFNs and experts on a rank, and of what is before the first and behind the last
    layer.
    """

    tp: int
    stage_ranks: int
    stages: tuple[tuple[int, int], ...]
    """Layers of each stage, as (first, behind the last)."""
    attention: int
    """With the norms."""
    router: int
    """Whole on each rank that has it."""
    ffn: int
    experts: int
    first: int
    last: int
    expert_ranks: int
    """Shares of the experts, some of them whole: over `expert_ranks` groups of ranks."""
    expert_slices: int
    """Slices of each expert's width in such a group."""
    ffn_ranks: int
    """Ranks over which a dense FFN is cut."""
    member: int = 0

    @staticmethod
    def of(group: LoweredGroup, member: int) -> "_Shard":
        layout, layers = group.layout, group.model.num_layers
        bounds, start = [], 0
        for count in layout.stage_layers or (layers,):
            bounds.append((start, start + count))
            start += count
        run = run_by(group)
        per_layer = [op for op in run if op.part == "layer"]
        covered = sum(op.repeat for op in per_layer if isinstance(op, Attention)) or layers
        held: dict[str, int] = defaultdict(int)
        for op in per_layer:
            held[_side_of(op)] += op.weight_bytes * op.repeat
        ends = {
            part: sum(op.weight_bytes * op.repeat for op in run if op.part == part)
            for part in {op.part for op in run} - {"layer"}
        }
        last = ends.get("head", 0)
        ranks = layout.tp * layout.dp
        return _Shard(
            layout.tp,
            group.info.num_devices // len(bounds),
            tuple(bounds),
            held["attention"] // covered,
            held["router"] // covered,
            held["ffn"] // covered,
            held["experts"] // covered,
            sum(ends.values()) - last,
            last,
            layout.ep,
            max(1, ranks // layout.ep),
            layout.ffn_ranks,
            member,
        )

    def attention_interval(self, rank: int) -> Interval:
        """Of every matrix of the attention, and of those outside of layers."""
        return _cut(rank, self.tp)

    def ffn_interval(self, rank: int) -> Interval:
        """Of every matrix of a dense FFN."""
        return _cut(self.member * self.stage_ranks + rank, self.ffn_ranks)

    def expert_box(self, rank: int) -> tuple[Interval, Interval]:
        """Of the experts, and of each of their widths."""
        place = self.member * self.stage_ranks + rank
        share, cut = divmod(place % (self.expert_ranks * self.expert_slices), self.expert_slices)
        return (
            (Fraction(share, self.expert_ranks), Fraction(share + 1, self.expert_ranks)),
            (Fraction(cut, self.expert_slices), Fraction(cut + 1, self.expert_slices)),
        )

    def bytes_of(self, stage: int) -> int:
        """What a rank of the stage holds."""
        begin, end = self.stages[stage]
        ends = self.first * (stage == 0) + self.last * (stage == len(self.stages) - 1)
        return (end - begin) * (self.attention + self.router + self.ffn + self.experts) + ends

    @property
    def total(self) -> int:
        """What a rank of the stage that holds most has."""
        return max(self.bytes_of(stage) for stage in range(len(self.stages)))


def _side_of(op: Operator) -> str:
    """The part of a layer that an operator's weights belong to."""
    if isinstance(op, Moe):
        return "experts"
    if op.block == "router":
        return "router"
    return "ffn" if op.block in FFN_BLOCKS else "attention"


def _cut(rank: int, ranks: int) -> Interval:
    return Fraction(rank % ranks, ranks), Fraction(rank % ranks + 1, ranks)


def _common(a: Interval, b: Interval) -> Fraction:
    return max(Fraction(0), min(a[1], b[1]) - max(a[0], b[0]))


def _share(new: Interval, old: Interval) -> Fraction:
    return _common(new, old) / (new[1] - new[0])


@dataclass(frozen=True)
class _Holder:
    """A kind of rank: what it holds is the same in every replica."""

    shard: _Shard
    stage: int
    rank: int

    def held_of(self, new: "_Holder") -> int:
        """Bytes of the other's shard that this one holds."""
        mine, theirs = self.shard, new.shard
        (a, b), (c, d) = mine.stages[self.stage], theirs.stages[new.stage]
        layers = max(0, min(b, d) - max(a, c))
        found = Fraction(0)
        if mine.attention:
            cut = _share(theirs.attention_interval(new.rank), mine.attention_interval(self.rank))
            found += layers * theirs.attention * cut
            if new.stage == 0 and self.stage == 0:
                found += theirs.first * cut
            if new.stage == len(theirs.stages) - 1 and self.stage == len(mine.stages) - 1:
                found += theirs.last * cut
        if mine.router:
            found += layers * theirs.router
        if mine.ffn:
            cut = _share(theirs.ffn_interval(new.rank), mine.ffn_interval(self.rank))
            found += layers * theirs.ffn * cut
        if mine.experts:
            one, other = theirs.expert_box(new.rank), mine.expert_box(self.rank)
            found += layers * theirs.experts * _share(one[0], other[0]) * _share(one[1], other[1])
        return int(found)


def _holders(plan: LayoutPlan) -> list[_Holder]:
    """What each device holds, in the order of the devices."""
    return [one for holders in _holders_by_group(plan) for one in holders]


def _holders_by_group(plan: LayoutPlan) -> list[list[_Holder]]:
    found: list[list[_Holder]] = []
    members: dict[str, int] = defaultdict(int)
    shards: dict[tuple[int, int], _Shard] = {}
    kinds: dict[tuple[int, int, int], _Holder] = {}
    for group, lowered in zip(plan.deployment.groups, plan.lowered.groups, strict=True):
        member = 0
        if group.dp_group is not None and lowered.layout.dp > 1:
            member = members[group.dp_group]
            members[group.dp_group] += 1
        shard = shards.setdefault((id(lowered.operators), member), _Shard.of(lowered, member))
        found.append([])
        for stage in range(len(shard.stages)):
            for rank in range(shard.stage_ranks):
                kind = (id(shard), stage, rank)
                found[-1].append(kinds.setdefault(kind, _Holder(shard, stage, rank)))
    return found


class _Ports:
    """Bytes over the links of each device, by whether they leave its server."""

    def __init__(self, plan: LayoutPlan) -> None:
        self.server, link, card = rates(plan)
        self._rates = {True: link, False: card}
        self._latency_of = plan.deployment.link.latency_of
        self._carried: dict[tuple[bool, int, str], int] = defaultdict(int)
        self.moved: dict[bool, int] = {True: 0, False: 0}
        """Bytes by whether both devices are in one server."""
        self.by_device: dict[int, Counter[str]] = defaultdict(Counter)
        """What moves for each device, by fields of `llmsim.core.Traffic`."""

    def near(self, source: int, target: int) -> bool:
        """Whether two devices are in one server."""
        return source // self.server == target // self.server

    def nearest(self, sources: Sequence[int], target: int) -> Sequence[int]:
        """Those from which a device gets bytes first."""
        return [one for one in sources if self.near(one, target)] or sources

    def _count(self, source: int, target: int, count: int) -> None:
        """Inside a server the sender has the links' bytes; else both ends have their cards'."""
        near = self.near(source, target)
        self.moved[near] += count
        for device in (source, target):
            self.by_device[device]["memory_bytes"] += count
            if not near:
                self.by_device[device]["nic_bytes"] += count
        if near:
            self.by_device[source]["link_bytes"] += count

    def keep(self, device: int, count: int) -> None:
        """Adds what a device reads and writes again in its own memory."""
        self.by_device[device]["memory_bytes"] += 2 * count

    def move(self, source: int, target: int, count: int) -> None:
        """Adds a flow between two devices."""
        near = self.near(source, target)
        self._count(source, target, count)
        self._carried[near, source, "out"] += count
        self._carried[near, target, "in"] += count

    def busiest_ps(self) -> int:
        """Of the busiest port, with the latency of a transfer; 0: nothing moves."""
        if not self._carried:
            return 0
        times = (_ps(count, self._rates[near]) for (near, *_), count in self._carried.items())
        return max(times) + self._latency_of(99 if self.moved[False] else 0)


class _RoutedPorts(_Ports):
    """The same over the routes of a topology."""

    def __init__(self, plan: LayoutPlan, routes: Routes) -> None:
        super().__init__(plan)
        self._routes = routes
        placed = routes.placed.devices
        self._devices = [device for ranks in placed for device in ranks]
        self._on: dict[int, int] = defaultdict(int)
        self._latency_ps = 0

    def _route(self, source: int, target: int) -> list[int]:
        return list(self._routes.native.route(self._devices[source], self._devices[target]))

    def nearest(self, sources: Sequence[int], target: int) -> Sequence[int]:
        """Those with the fewest links between."""
        hops = {one: len(self._route(one, target)) for one in sources}
        fewest = min(hops.values())
        return [one for one in sources if hops[one] == fewest]

    def move(self, source: int, target: int, count: int) -> None:
        """Adds a flow to each link of its route."""
        self._count(source, target, count)
        route = self._route(source, target)
        for link in route:
            self._on[link] += count
        latency = sum(self._routes.speeds[link][1] for link in route)
        self._latency_ps = max(self._latency_ps, latency)

    def busiest_ps(self) -> int:
        """Of the busiest link, with the latency of the longest route."""
        times = (_ps(count, self._routes.speeds[link][0]) for link, count in self._on.items())
        return max(times, default=0) + self._latency_ps


def rates(plan: LayoutPlan) -> tuple[int, int, int]:
    """Devices of a server, bytes/s of a device's link inside it, and of its network card."""
    sheet = plan.lowered.groups[0].hardware
    link = plan.deployment.link.bandwidth_bytes_per_s
    card = link[-1] if len(link) > 1 else 0
    if not card:
        card = (sheet.network_card_bytes_per_s if sheet is not None else None) or link[0]
    return devices_per_server(plan), link[0], card


def devices_per_server(plan: LayoutPlan) -> int:
    """As the cluster file or the data sheet says."""
    sheet = plan.lowered.groups[0].hardware
    known = (sheet.link_domain_devices if sheet is not None else None) or DEFAULT_SERVER
    return plan.deployment.devices_per_node or known


def weight_moves(before: LayoutPlan, after: LayoutPlan) -> WeightMoves:
    """Who sends what to whom so that every device holds its shard of `after`."""
    old, new = _holders(before), _holders(after)
    replicas: dict[int, list[int]] = defaultdict(list)
    kinds: dict[int, _Holder] = {}
    for device, holder in enumerate(old):
        replicas[id(holder)].append(device)
        kinds[id(holder)] = holder
    common: dict[tuple[int, int], int] = {}
    routes = routes_of(after.deployment)
    ports = _Ports(after) if routes is None else _RoutedPorts(after, routes)
    kept, most_kept, turn = 0, 0, 0
    for device, holder in enumerate(new):
        need = holder.shard.bytes_of(holder.stage)
        own = _held(common, old[device], holder)
        kept, most_kept = kept + own, max(most_kept, own)
        ports.keep(device, own)
        for kind, source in sorted(kinds.items(), key=lambda one: replicas[one[0]][0]):
            if need <= own:
                break
            count = 0 if source is old[device] else _held(common, source, holder)
            count = min(count, need - own)
            if not count:
                continue
            need -= count
            choices = ports.nearest(replicas[kind], device)
            ports.move(choices[turn % len(choices)], device, count)
        turn += 1
    same = before is after or all(a == b for a, b in zip(old, new, strict=True))
    by_group = [] if same else _by_group(after, ports)
    memory = after.lowered.groups[0].memory_bytes_per_s
    return WeightMoves(
        ports.moved[True],
        ports.moved[False],
        kept,
        ports.busiest_ps(),
        0 if same else _ps(2 * most_kept, memory),
        tuple(by_group),
    )


def _by_group(plan: LayoutPlan, ports: _Ports) -> list[Counter[str]]:
    found, first = [], 0
    for group in plan.lowered.groups:
        devices = range(first, first + group.info.num_devices)
        found.append(sum((ports.by_device[device] for device in devices), Counter[str]()))
        first += group.info.num_devices
    return found


def _held(common: dict[tuple[int, int], int], old: _Holder, new: _Holder) -> int:
    key = (id(old), id(new))
    if key not in common:
        common[key] = old.held_of(new)
    return common[key]


Kind = tuple[object, ...]
"""Groups of a kind keep KV alike."""


@dataclass(frozen=True, eq=False)
class KvMoves:
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
