"""Who drew how much: states of devices, bytes moved and constant powers, split over components,
groups and requests.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.cluster_file.power import AcceleratorPower, NodePowerSpec, PoolPowerSpec
from llmsim.core import AJ_PER_J, COMPONENTS, Energy, GroupEnergy, Int64, Traffic
from llmsim.exact import exact_sum
from llmsim.power.intervals import Intervals, after_each, union
from llmsim.power.series import Load, power_series

BITS = 8


class PowerPlan(Struct, frozen=True):
    """What draws power in a deployment. `nodes[i]` None: the file does not say what
    node i draws.
    """

    nodes: tuple[NodePowerSpec | None, ...]
    pool: PoolPowerSpec | None
    nodes_of_group: tuple[tuple[int, ...], ...]
    """Those that share a group's devices; the first one says what they draw."""
    hardware_of_group: tuple[str, ...]
    devices_of_group: tuple[int, ...]

    @property
    def node_of_group(self) -> tuple[int, ...]:
        """The first node of each group."""
        return tuple(nodes[0] for nodes in self.nodes_of_group)


class GroupUse(Struct, frozen=True, eq=False):
    """What the run left behind of one group: completed steps in order (ps), who they were for, and
    bytes moved.
    """

    step_start_ps: Int64
    step_end_ps: Int64
    share_request: Int64
    share_ps: Int64
    traffic: Traffic
    computing_aj: int = 0
    """Of memory that computes, above its idle power."""
    processor_ps: int = 0
    """How long all of the node's processors together would have worked on its operators."""
    known_aj: int = 0
    """Of operators whose energy a cost table states, on all devices."""
    known_device_ps: int = 0
    """How long devices ran them: they draw no active power beside it."""
    here_ps: tuple[int, int] | None = None
    """When the devices are the group's, where layouts take turns; None: in the whole window."""


def account(
    plan: PowerPlan,
    uses: Sequence[GroupUse],
    num_requests: int,
    window_ps: tuple[int, int],
    interval_ps: int,
) -> Energy:
    """The energy of a run over the window, exact in attojoules; the power series has a row per
    `interval_ps` and node.

    A request's part of a group's energy is its part of the group's device time: of every step, the
    share of the scheduled tokens that were its own.
    """
    start_ps, end_ps = window_ps
    accounts = [_group(plan, index, use, window_ps) for index, use in enumerate(uses)]
    components = tuple(
        None if spec is None else _components(spec, index, accounts, end_ps - start_ps)
        for index, spec in enumerate(plan.nodes)
    )
    groups = _with_shares(plan, components, accounts)
    pool_bytes = sum(use.traffic.pool_bytes for use in uses)
    pool = plan.pool
    pool_aj = (
        0
        if pool is None
        else pool.idle_uw * (end_ps - start_ps) + pool_bytes * BITS * pool.aj_per_bit
    )
    request_j, served_j = _by_request(groups, uses, num_requests)
    total_aj = pool_aj + sum(sum(parts.values()) for parts in components if parts is not None)
    loads = [None if account is None else account.load for account in accounts]
    where = [() if account is None else account.nodes for account in accounts]
    series = power_series(plan.nodes, where, loads, components, window_ps, interval_ps)
    return Energy(
        start_ps=start_ps,
        end_ps=end_ps,
        components_aj=components,
        groups=groups,
        pool_aj=pool_aj,
        request_j=request_j,
        unattributed_j=max(0.0, float(total_aj / AJ_PER_J) - served_j),
        series=series,
    )


class _Account(Struct, frozen=True, eq=False):
    """One group before its share of the node is known."""

    energy: GroupEnergy
    load: Load
    nodes: tuple[int, ...]
    """Of those that its devices are on, each has as many; those without power are left out."""
    by_component: Mapping[str, int]
    """Energy of its devices' states and bytes by component."""
    device_ps: int
    """Of all devices of the group, how long they are its own in the window."""

    def added_to(self, node: int) -> dict[str, int]:
        """What it adds to each component of a node; what does not divide goes to the first one."""
        count, is_first = len(self.nodes), node == self.nodes[0]
        return {
            name: whole // count + (whole % count if is_first else 0)
            for name, whole in self.by_component.items()
        }


def _group(
    plan: PowerPlan, index: int, use: GroupUse, window_ps: tuple[int, int]
) -> _Account | None:
    node = plan.node_of_group[index]
    spec = plan.nodes[node]
    if spec is None:
        return None
    nodes = tuple(one for one in plan.nodes_of_group[index] if plan.nodes[one] is not None)
    power, devices = spec.accelerators[plan.hardware_of_group[index]], plan.devices_of_group[index]
    here = _clipped(_span(use.here_ps or window_ps), window_ps)
    active = _clipped(union(use.step_start_ps, use.step_end_ps), window_ps)
    standby = after_each(active, power.standby_ps, int(here.end_ps.max(initial=window_ps[0])))
    idle_ps = here.total_ps - active.total_ps - standby.total_ps
    moved = traffic_aj(spec, power, use.traffic)
    moved["dram"] += use.computing_aj
    moved["cpu"] = use.processor_ps * spec.cpu_working_uw
    instead_aj = use.known_aj - use.known_device_ps * power.active_uw
    energy = GroupEnergy(
        group=index,
        node=node,
        active_aj=devices * active.total_ps * power.active_uw + instead_aj,
        standby_aj=devices * standby.total_ps * power.standby_uw,
        idle_aj=devices * idle_ps * power.idle_uw,
        traffic_aj=sum(moved.values()),
        shared_aj=0,
        active_ps=active.total_ps,
        standby_ps=standby.total_ps,
        traffic=use.traffic,
    )
    changed = {**moved, "accelerators": moved["accelerators"] + instead_aj}
    load = Load(here, active, standby, power, devices, len(nodes), changed)
    states_aj = energy.active_aj + energy.standby_aj + energy.idle_aj
    by_component = {**moved, "accelerators": moved["accelerators"] + states_aj}
    return _Account(energy, load, nodes, by_component, devices * here.total_ps)


def _span(ends_ps: tuple[int, int]) -> Intervals:
    start, end = (np.array([one], np.int64) for one in ends_ps)
    return Intervals(start, end)


def _clipped(work: Intervals, window_ps: tuple[int, int]) -> Intervals:
    start, end = (np.clip(column, *window_ps) for column in (work.start_ps, work.end_ps))
    real = end > start
    return Intervals(start[real], end[real])


def traffic_aj(spec: NodePowerSpec, power: AcceleratorPower, traffic: Traffic) -> dict[str, int]:
    """Energy of bytes by component of the node; the pool's is not in it."""
    crossed = traffic.link_bytes + traffic.host_bytes + traffic.pool_bytes + traffic.storage_bytes
    return {
        "accelerators": traffic.memory_bytes * BITS * power.memory_aj_per_bit,
        "dram": (traffic.host_bytes + traffic.processor_bytes) * BITS * spec.dram_aj_per_bit,
        "links": crossed * BITS * spec.link_aj_per_bit,
        "nics": traffic.nic_bytes * BITS * spec.nic_aj_per_bit,
        "storage": traffic.storage_bytes * BITS * spec.storage_aj_per_bit,
    }


def _components(
    spec: NodePowerSpec, node: int, accounts: Sequence[_Account | None], duration_ps: int
) -> dict[str, int]:
    """The node's energy by component: constant powers over the window, plus what its groups'
    devices and bytes add.
    """
    parts = dict.fromkeys(COMPONENTS, 0)
    parts |= {name: power_uw * duration_ps for name, power_uw in constant_uw(spec).items()}
    for account in accounts:
        if account is not None and node in account.nodes:
            for name, added in account.added_to(node).items():
                parts[name] += added
    return parts


def constant_uw(spec: NodePowerSpec) -> dict[str, int]:
    """What a node draws whatever it does, beside its accelerators; microwatts by component."""
    return {
        "cpu": spec.cpu_uw,
        "dram": spec.dram_uw,
        "links": spec.link_uw,
        "nics": spec.nic_uw,
        "storage": spec.storage_uw,
        "other": spec.base_uw,
    }


def _with_shares(
    plan: PowerPlan,
    components: Sequence[Mapping[str, int] | None],
    accounts: Sequence[_Account | None],
) -> tuple[GroupEnergy | None, ...]:
    """Splits what a node drew beside its groups' own over them by the time of their devices; what
    does not divide goes to the first.
    """
    groups: list[GroupEnergy | None] = [
        None if account is None else account.energy for account in accounts
    ]
    for node, parts in enumerate(components):
        mine = [account for account in accounts if account is not None and node in account.nodes]
        if parts is None or not mine:
            continue
        own = [sum(account.added_to(node).values()) for account in mine]
        rest = sum(parts.values()) - sum(own)
        shares = _split(rest, _weights(plan, mine))
        for account, used, share in zip(mine, own, shares, strict=True):
            energy = groups[account.energy.group]
            assert energy is not None, "it has an account"
            groups[account.energy.group] = replace(
                energy,
                shared_aj=energy.shared_aj + share,
                node_aj=(*energy.node_aj, (node, used + share)),
            )
    return tuple(groups)


def _weights(plan: PowerPlan, accounts: Sequence[_Account]) -> list[int]:
    """How long the devices on one node are each group's own; where they are nobody's, how many
    there are.
    """
    times_ps = [account.device_ps // len(account.nodes) for account in accounts]
    if sum(times_ps):
        return times_ps
    return [
        plan.devices_of_group[account.energy.group] // len(account.nodes) for account in accounts
    ]


def _split(whole: int, weights: Sequence[int]) -> list[int]:
    """Parts in proportion to weights; what does not divide is in the first one."""
    parts = [whole * weight // sum(weights) for weight in weights]
    parts[0] += whole - sum(parts)
    return parts


def _by_request(
    groups: Sequence[GroupEnergy | None], uses: Sequence[GroupUse], num_requests: int
) -> tuple["np.ndarray[Any, np.dtype[np.float64]]", float]:
    """Joules of each request, and of all requests together."""
    joules = np.zeros(num_requests)
    served = 0
    for energy, use in zip(groups, uses, strict=True):
        given_ps = exact_sum(use.share_ps)
        if energy is None or given_ps == 0:
            continue
        served += energy.total_aj
        np.add.at(joules, use.share_request, use.share_ps * (energy.total_aj / AJ_PER_J / given_ps))
    return joules, served / AJ_PER_J
