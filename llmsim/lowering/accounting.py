"""What a deployment draws and costs: gathers the plans before a run, and makes the energy account after it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim import _native
from llmsim.config import Deployment, Node
from llmsim.config.power import NodePowerSpec
from llmsim.core import FEATURES, Energy, Int64, RequestColumns
from llmsim.costs import OpCost
from llmsim.power import CostPlan, GroupUse, PowerPlan, Price, TrafficTable, account, traffic_table

if TYPE_CHECKING:
    from llmsim.lowering.deployment import LoweredGroup

UW_PER_W = 1_000_000
PRICES = Path(__file__).resolve().parent.parent / "presets" / "prices.json"


@dataclass(frozen=True, eq=False)
class Accounting:
    """Plans of a deployment. `power` None: no node says what it draws, and nothing about it is recorded."""

    power: PowerPlan | None
    traffic: tuple[TrafficTable, ...]
    """Per group; empty without power."""
    cost: CostPlan
    notes: tuple[str, ...]
    groups: tuple["LoweredGroup", ...] = ()

    def energy(self, simulation: "_native.Simulation", requests: RequestColumns, interval_ps: int) -> Energy | None:
        """The account of a run that recorded shares, from the first arrival to the end of the last step."""
        if self.power is None:
            return None
        handed, through_nics = self._handed_over(simulation.handovers(), requests)
        busy = simulation.busy_time()
        activities = [simulation.activity(index) for index in range(len(self.traffic))]
        uses = [
            GroupUse(
                step_start_ps=activity["start_ps"],
                step_end_ps=activity["end_ps"],
                share_request=activity["share_request"],
                share_ps=activity["share_ps"],
                traffic=table.traffic(activity).plus(link_bytes=handed[index], nic_bytes=through_nics[index]),
                computing_aj=_computing_aj(group, activity),
                **_known_energy(group, activity, [row for row in busy if row[0] == index]),
            )
            for index, (group, activity, table) in enumerate(zip(self.groups, activities, self.traffic, strict=True))
        ]
        arrived = requests.arrival_ps[requests.arrival_ps >= 0]
        start_ps = int(arrived.min()) if len(arrived) else 0
        end_ps = max([start_ps, *(int(use.step_end_ps.max()) for use in uses if len(use.step_end_ps))])
        return account(self.power, uses, len(requests.status), (start_ps, end_ps), interval_ps)

    def _handed_over(
        self, handovers: Mapping[str, Any] | None, requests: RequestColumns
    ) -> tuple[list[int], list[int]]:
        """Bytes of KV hand-overs by group: over links of the sender's node, and through network cards, at both ends."""
        links, nics = [0] * len(self.traffic), [0] * len(self.traffic)
        if handovers is None or self.power is None:
            return links, nics
        rows = np.flatnonzero((handovers["prefill_group"] >= 0) & (handovers["kv_transfer_bytes"] > 0))
        where = self.power.node_of_group
        for row in rows.tolist():
            sender, receiver = int(handovers["prefill_group"][row]), int(requests.group[row])
            size = int(handovers["kv_transfer_bytes"][row])
            if where[sender] == where[receiver]:
                links[sender] += size
            else:
                nics[sender] += size
                nics[receiver] += size
        return links, nics


def accounting(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> Accounting:
    """The plans of a lowered deployment; equal groups share their byte tables."""
    power, notes = _power_plan(deployment, groups), []
    tables: dict[int, TrafficTable] = {}
    if power is not None:
        for group, place in zip(groups, deployment.groups, strict=True):
            if id(group.program) not in tables:
                tables[id(group.program)] = traffic_table(
                    group.operators,
                    group.layout.tp,
                    _copies(group),
                    members=place.dp,
                    stages=place.pp,
                    layout=group.layout,
                )
        without = [str(index) for index, spec in enumerate(power.nodes) if spec is None]
        if without:
            notes.append(
                f"energy: node {', '.join(without[:8])}{', ...' if len(without) > 8 else ''} has no power section; "
                "what it draws is not counted"
            )
    traffic = tuple(tables[id(group.program)] for group in groups) if tables else ()
    return Accounting(power, traffic, _cost_plan(deployment, groups), tuple(notes), tuple(groups))


def _power_plan(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> PowerPlan | None:
    nodes = tuple(_node_power(node, deployment, groups) for node in deployment.nodes)
    if all(spec is None for spec in nodes):
        return None
    return PowerPlan(
        nodes=nodes,
        pool=deployment.pool_power,
        node_of_group=tuple(group.node for group in deployment.groups),
        hardware_of_group=tuple(group.hardware for group in deployment.groups),
        devices_of_group=tuple(group.num_devices for group in deployment.groups),
    )


def _node_power(node: Node, deployment: Deployment, groups: Sequence["LoweredGroup"]) -> NodePowerSpec | None:
    """A memory that computes draws what its part file says, by channel, instead of what DIMMs draw."""
    parts = [
        lowered.offload.part
        for lowered, group in zip(groups, deployment.groups, strict=True)
        if group.node == node.index and lowered.offload is not None and lowered.offload.part is not None
    ]
    if node.power is None or not parts or node.host_memory is None:
        return node.power
    channels = node.host_memory.capacity_bytes // parts[0].channel_bytes
    return replace(node.power, dram_uw=round(channels * parts[0].idle_w * UW_PER_W))


def _computing_aj(group: "LoweredGroup", activity: dict[str, Any]) -> int:
    """What the channels draw above idle while they compute: all channels of a set work as long as it does."""
    if group.offload is None or group.offload.part is None:
        return 0
    part = group.offload.part
    above_uw = round((part.peak_w - part.idle_w) * UW_PER_W)
    busy_ps = int(activity["offload"]["channel_busy_ps"])
    return busy_ps * group.offload.channels_per_set * group.layout.tp * above_uw


def _known_energy(
    group: "LoweredGroup", activity: dict[str, Any], busy: Sequence[tuple[int, int, tuple[int, ...]]]
) -> dict[str, int]:
    """Energy and device time of the operators whose energy their cost source states, as keywords of `GroupUse`."""
    times_ps = {op: sum(parts) for _, op, parts in busy}
    energy_aj = device_ps = 0
    for number, placed in enumerate(group.placed):
        cost, took_ps = placed.cost, times_ps.get(number, 0)
        if isinstance(cost, OpCost):
            if cost.power_uw is None or cost.drawn is not None:
                continue
            rows = np.asarray(activity["rows"][FEATURES.index(cost.feature)])
            used = np.flatnonzero(rows)
            each = [int(rows[row]) * int(cost.ps[row]) * int(cost.power_uw[row]) for row in used.tolist()]
            energy_aj += sum(each) * placed.repeat
        elif cost.power_uw:
            energy_aj += took_ps * cost.power_uw
        else:
            continue
        device_ps += took_ps
    ranks = group.layout.stage_ranks
    return {"known_aj": energy_aj * ranks, "known_device_ps": device_ps * ranks}


def _copies(group: "LoweredGroup") -> dict[str, tuple[int, Int64]]:
    if group.offload is None:
        return {}
    copies, nothing = group.offload.copies, np.zeros(1, np.int64)
    places = dict.fromkeys([*copies.fixed, *copies.by_tokens])
    return {place: (copies.fixed.get(place, 0), copies.by_tokens.get(place, nothing)) for place in places}


def _cost_plan(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> CostPlan:
    prices = []
    for group, lowered in zip(deployment.groups, groups, strict=True):
        usd, source = group.price_per_device_hour, "cluster file"
        if usd is None and lowered.hardware is not None and lowered.hardware.name in listed_prices():
            usd, source = listed_prices()[lowered.hardware.name]
        prices.append(Price(group.hardware, group.num_devices, usd, source if usd is not None else "not known"))
    economics = deployment.economics
    return CostPlan(
        groups=tuple(prices),
        nodes_usd_per_hour=float(np.sum([node.price_per_hour for node in deployment.nodes])),
        grid_g_per_kwh=economics.grid_g_per_kwh,
        electricity_price_per_kwh=economics.electricity_price_per_kwh,
    )


@cache
def listed_prices() -> dict[str, tuple[float, str]]:
    """Data sheet name -> (USD per device-hour, who asked it and when)."""
    data = json.loads(PRICES.read_text(encoding="utf-8"))
    return {name: (float(entry["usd_per_device_hour"]), str(entry["source"])) for name, entry in data.items()}
