"""What a deployment draws and costs: gathers the plans before a run, and makes the energy account
after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment, Group, Node
from llmsim.config.cluster_file.power import NodePowerSpec
from llmsim.core import FEATURES, Energy, RequestColumns
from llmsim.costs import OpCost
from llmsim.lowering.afd.ports import spans_nodes
from llmsim.lowering.energy.drafter import draft_bytes, draft_tables
from llmsim.lowering.energy.prices import LOOSE, price_of_group
from llmsim.lowering.network.mesh import on_each_node
from llmsim.lowering.program import TIMES_BESIDE, Placed
from llmsim.model import Attention, Operator
from llmsim.power import (
    Copied,
    CostPlan,
    GroupUse,
    PowerPlan,
    TrafficTable,
    account,
    traffic_table,
)

if TYPE_CHECKING:
    from llmsim.lowering.energy.stays import Stay
    from llmsim.lowering.types import LoweredGroup

UW_PER_W = 1_000_000


class Accounting(Struct, frozen=True, eq=False):
    """Plans of a deployment. `power` None: no node says what it draws, and nothing about it is
    recorded.
    """

    power: PowerPlan | None
    traffic: tuple[TrafficTable, ...]
    """Per group; empty without power."""
    cost: CostPlan
    notes: tuple[str, ...]
    groups: tuple["LoweredGroup", ...] = ()
    drafts: tuple[tuple[TrafficTable, ...], ...] = ()
    """Per group, of its drafter's passes; empty without power."""
    nodes: tuple[int, ...] = ()
    """Per group, the node that it is on."""
    part_power: bool = True
    """Memory that computes draws what its part file says (the fidelity term pim_power)."""
    rows: tuple["RowPorts | None", ...] = ()
    """Per group; None without attention-FFN disaggregation."""

    def energy(
        self,
        simulation: "_native.Simulation",
        requests: RequestColumns,
        interval_ps: int,
        stays: Sequence["Stay"] = (),
    ) -> Energy | None:
        """The account of a run that recorded shares, from the first arrival to the end of the last
        step. `stays` are those of all groups, where layouts take turns.
        """
        if self.power is None:
            return None
        handed = self._handed_over(
            cast("Mapping[str, Any] | None", simulation.kv_transfers()), requests
        )
        media = [str(row["name"]).split()[0] for row in simulation.kv_tiers()] or ["CPU"]
        times_ps = _operator_times(simulation.busy_time())
        activities = [simulation.activity(index) for index in range(len(self.traffic))]
        uses = [
            GroupUse(
                step_start_ps=activity["start_ps"],
                step_end_ps=activity["end_ps"],
                share_request=activity["share_request"],
                share_ps=activity["share_ps"],
                traffic=table.traffic(activity)
                .plus(**handed[index])
                .plus(**_tier_bytes(activity, media))
                .plus(**row_bytes(self, index, activity))
                .plus(**draft_bytes(self.drafts[index], activity)),
                computing_aj=computing_aj(group, activity) if self.part_power else 0,
                processor_ps=processor_ps(group, times_ps.get(index, {})),
                **known_energy(group, activity, times_ps.get(index, {})),
            )
            for index, (group, activity, table) in enumerate(
                zip(self.groups, activities, self.traffic, strict=True)
            )
        ]
        if stays:
            uses = [_within(use, stay) for use, stay in zip(uses, stays, strict=True)]
        arrived = requests.arrival_ps[requests.arrival_ps >= 0]
        start_ps = int(arrived.min()) if len(arrived) else 0
        end_ps = max(
            [start_ps, *(int(use.step_end_ps.max()) for use in uses if len(use.step_end_ps))]
        )
        return account(self.power, uses, len(requests.status), (start_ps, end_ps), interval_ps)

    def _handed_over(
        self, kv_transfers: Mapping[str, Any] | None, requests: RequestColumns
    ) -> list[dict[str, int]]:
        """Bytes of KV hand-overs by group: over links of the sender's node, through network cards
        at both ends, and in the memory that holds the KV at either end.
        """
        kinds = ("link_bytes", "nic_bytes", "processor_bytes", "memory_bytes")
        moved = [dict.fromkeys(kinds, 0) for _ in self.traffic]
        if kv_transfers is None or self.power is None:
            return moved
        rows = np.flatnonzero(
            (kv_transfers["prefill_group"] >= 0) & (kv_transfers["kv_transfer_bytes"] > 0)
        )
        where = self.power.node_of_group
        for row in rows.tolist():
            sender, receiver = int(kv_transfers["prefill_group"][row]), int(requests.group[row])
            size = int(kv_transfers["kv_transfer_bytes"][row])
            same_node = where[sender] == where[receiver]
            for end, sends in ((sender, True), (receiver, False)):
                counts = handed_over(self, end, size, same_node=same_node, sends=sends)
                for name, num_bytes in counts.items():
                    moved[end][name] += num_bytes
        return moved


def _within(use: GroupUse, stay: "Stay") -> GroupUse:
    """With what its devices do in switches, and none of the time before and after its own."""
    loads = slice(int(stay.loaded_ps[0] < stay.loaded_ps[1]))
    start_ps, end_ps = (np.array([time], np.int64)[loads] for time in stay.loaded_ps)
    return replace(
        use,
        step_start_ps=np.concatenate([start_ps, use.step_start_ps]),
        step_end_ps=np.concatenate([end_ps, use.step_end_ps]),
        traffic=use.traffic.plus(**stay.moved),
        here_ps=stay.here_ps,
    )


def handed_over(
    accounting: Accounting, group: int, size: int, *, same_node: bool, sends: bool
) -> dict[str, int]:
    """What a KV hand-over of `size` bytes counts as for the group at one of its ends.

    Inside a node the sender has the links' bytes; between nodes each end has its network card's.
    Each end reads or writes the memory that holds its KV.
    """
    plan = accounting.groups[group].offload
    elsewhere = plan is not None and plan.kv_bytes is not None
    counts = {"processor_bytes" if elsewhere else "memory_bytes": size}
    if not same_node:
        return {**counts, "nic_bytes": size}
    return {**counts, "link_bytes": size} if sends else counts


class RowPorts(Struct, frozen=True):
    """Where rows between attention and FFN leave a group and come to it."""

    devices: int
    """Of one stage."""
    between_nodes: bool


def row_bytes(accounting: Accounting, group: int, activity: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of rows between attention and FFN, counted as those of KV hand-overs: inside a node the
    sender has the links' bytes, between nodes each end has its network cards'.
    """
    ports = accounting.rows[group]
    if ports is None:
        return {}
    sent, received = (int(size) * ports.devices for size in activity["m2n_bytes"])
    return {"nic_bytes": sent + received} if ports.between_nodes else {"link_bytes": sent}


def _row_ports(deployment: Deployment, group: Group) -> RowPorts | None:
    role = group.afd
    return None if role is None else RowPorts(group.tp, spans_nodes(deployment, role))


MEDIA = {"CPU": "host_bytes", "CXL": "pool_bytes", "SSD": "storage_bytes", "NVMEOF": "nic_bytes"}
"""Medium of a tier of KV -> the bytes that it counts as; the cluster's storage is behind the
network cards.
"""


def _tier_bytes(activity: Mapping[str, Any], media: Sequence[str]) -> dict[str, int]:
    """Bytes between a group and the tiers of KV below it, which its devices' memory gives or takes
    as well; what an engine offloads by itself goes to host memory.
    """
    moved = {"memory_bytes": 0}
    for pool, size in activity["tier_bytes"]:
        name = MEDIA[media[pool]]
        moved[name] = moved.get(name, 0) + int(size)
        moved["memory_bytes"] += int(size)
    return moved


def accounting(
    deployment: Deployment, groups: Sequence["LoweredGroup"], disabled: Sequence[str] = ()
) -> Accounting:
    """The plans of a lowered deployment; equal groups share their byte tables. `disabled` are
    fidelity terms.
    """
    part_power = "pim_power" not in disabled
    power, notes = _power_plan(deployment, groups, part_power), []
    tables: dict[int, TrafficTable] = {}
    if power is not None:
        for group, place in zip(groups, deployment.groups, strict=True):
            if id(group.program) not in tables:
                tables[id(group.program)] = traffic_table(
                    run_by(group),
                    group.layout.tp,
                    _copies(group),
                    members=place.dp,
                    stages=place.pp,
                    layout=group.layout,
                    hosted=group.hosted,
                    nodes=place.dp_nodes,
                    node_devices=on_each_node(place) or 0,
                )
        without = [str(index) for index, spec in enumerate(power.nodes) if spec is None]
        if without:
            notes.append(
                f"energy: node {', '.join(without[:8])}{', ...' if len(without) > 8 else ''} has "
                "no power section; what it draws is not counted"
            )
    traffic = tuple(tables[id(group.program)] for group in groups) if tables else ()
    drafts = tuple(draft_tables(group) for group in groups) if tables else ()
    cost = _cost_plan(deployment, groups)
    return Accounting(
        power,
        traffic,
        cost,
        (*notes, *_price_notes(cost)),
        tuple(groups),
        drafts,
        tuple(group.node for group in deployment.groups),
        part_power,
        tuple(_row_ports(deployment, group) for group in deployment.groups),
    )


def run_by(group: "LoweredGroup") -> tuple[Operator, ...]:
    """The operators that a group runs: the attention of an FFN group's program never does."""
    attends = group.layout.domain != "ffn"
    return tuple(op for op in group.operators if attends or not isinstance(op, Attention))


def _power_plan(
    deployment: Deployment, groups: Sequence["LoweredGroup"], part_power: bool
) -> PowerPlan | None:
    nodes = tuple(
        _node_power(node, deployment, groups if part_power else ()) for node in deployment.nodes
    )
    if all(spec is None for spec in nodes):
        return None
    return PowerPlan(
        nodes=nodes,
        pool=deployment.pool_power,
        nodes_of_group=tuple(tuple(group.nodes) for group in deployment.groups),
        hardware_of_group=tuple(group.hardware for group in deployment.groups),
        devices_of_group=tuple(group.num_devices for group in deployment.groups),
    )


def _node_power(
    node: Node, deployment: Deployment, groups: Sequence["LoweredGroup"]
) -> NodePowerSpec | None:
    """A memory that computes draws what its part file says, by channel, instead of
    what DIMMs draw.
    """
    parts = [
        lowered.offload.pim.part
        for lowered, group in zip(groups, deployment.groups, strict=False)
        if group.node == node.index
        and lowered.offload is not None
        and lowered.offload.pim is not None
    ]
    if node.power is None or not parts or node.host_memory is None:
        return node.power
    channels = node.host_memory.capacity_bytes // parts[0].channel_bytes
    return replace(node.power, dram_uw=round(channels * parts[0].idle_w * UW_PER_W))


def computing_aj(group: "LoweredGroup", activity: Mapping[str, Any]) -> int:
    """What the channels draw above idle while they compute: all channels of a set work as long as
    it does.
    """
    if group.offload is None or group.offload.pim is None:
        return 0
    pim = group.offload.pim
    above_uw = round((pim.part.peak_w - pim.part.idle_w) * UW_PER_W)
    busy_ps = int(activity["offload"]["channel_busy_ps"])
    return busy_ps * pim.channels_per_set * group.layout.tp * above_uw


def _operator_times(busy: Sequence[tuple[int, int, tuple[int, ...]]]) -> dict[int, dict[int, int]]:
    """Group -> number of the operator in its program -> ps on one rank, all layers."""
    times_ps: dict[int, dict[int, int]] = {}
    for group, op, parts in busy:
        times_ps.setdefault(group, {})[op] = sum(parts)
    return times_ps


def processor_ps(group: "LoweredGroup", times_ps: Mapping[int, int]) -> int:
    """How long the node's processors worked for the group; each rank's operators have the cores of
    its part.
    """
    if group.offload is None or group.offload.host is None:
        return 0
    each_ps = sum(
        times_ps.get(at, 0)
        for at, placed in enumerate(group.placed)
        if placed.cost.name in group.hosted
    )
    return each_ps * group.layout.stage_ranks // group.offload.host.sharers


class KnownEnergy(TypedDict):
    """Keywords of `GroupUse`."""

    known_aj: int
    known_device_ps: int


def known_energy(
    group: "LoweredGroup", activity: Mapping[str, Any], times_ps: Mapping[int, int]
) -> KnownEnergy:
    """Energy and device time of the operators whose energy their cost source states, as keywords of
    `GroupUse`.
    """
    energy_aj = device_ps = 0
    for number, placed, tables in _ran(group, activity):
        cost, took_ps = placed.cost, times_ps.get(number, 0)
        if isinstance(cost, OpCost):
            if cost.power_uw is None or cost.sampled is not None:
                continue
            rows = np.asarray(tables[FEATURES.index(cost.feature)])
            used = np.flatnonzero(rows)
            each = [
                int(rows[row]) * int(cost.ps[row]) * int(cost.power_uw[row])
                for row in used.tolist()
            ]
            energy_aj += sum(each) * placed.repeat
        elif cost.power_uw:
            energy_aj += took_ps * cost.power_uw
        else:
            continue
        device_ps += took_ps
    ranks = group.layout.stage_ranks * group.layout.own_members
    return {"known_aj": energy_aj * ranks, "known_device_ps": device_ps * ranks}


def _ran(group: "LoweredGroup", activity: Mapping[str, Any]) -> Iterator[tuple[int, Placed, Any]]:
    """Operators with their number among the group's busy times (`LoweredGroup.busy_names`) and the
    counts of their tables' rows: the program's, and those of the drafter's passes. Behind each of
    these come the times of TIMES_BESIDE.
    """
    parts = [(group.placed, activity["rows"])]
    if group.draft is not None:
        counts = [one["rows"] for one in activity["draft_passes"]]
        parts += zip(group.draft.placed, counts, strict=True)
    number = 0
    for placed, rows in parts:
        for one in placed:
            yield number, one, rows
            number += 1
        number += TIMES_BESIDE


def _copies(group: "LoweredGroup") -> tuple[Copied, ...]:
    return () if group.offload is None else group.offload.copies.moved


def _cost_plan(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> CostPlan:
    prices = tuple(
        price_of_group(group, lowered.hardware)
        for group, lowered in zip(deployment.groups, groups, strict=True)
    )
    economics = deployment.economics
    return CostPlan(
        groups=prices,
        nodes_usd_per_hour=float(np.sum([node.price_per_hour for node in deployment.nodes])),
        grid_g_per_kwh=economics.grid_g_per_kwh,
        electricity_price_per_kwh=economics.electricity_price_per_kwh,
    )


def _price_notes(cost: CostPlan) -> list[str]:
    """Names the prices that no seller's own list gives."""
    loose = {
        price.hardware: price for price in cost.groups if price.basis in ("quoted", "assumption")
    }
    return [
        (
            f"price of {name}: {price.usd_per_device_hour:g} USD per hour is {LOOSE[price.basis]}: "
            f"{price.source}"
        )
        for name, price in loose.items()
    ]
