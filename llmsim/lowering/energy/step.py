"""The energy of one step and of each of its nodes, by the run's own account.

The account of a step (devices in their active state, bytes of its operators) is that of a run with
this step alone. The bytes' energy is shared out over the nodes by the bytes that they move; what
integers leave goes to the first nodes. So nodes and waits add up to the step, and steps to the run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from llmsim.core import Traffic
from llmsim.lowering.energy.accounting import (
    Accounting,
    computing_aj,
    known_energy,
    processor_ps,
    row_bytes,
)
from llmsim.lowering.energy.drafter import draft_bytes
from llmsim.lowering.program import Placed
from llmsim.power.account import BITS, traffic_aj
from llmsim.power.traffic import RING_FACTOR

PARTS = ("compute", "memory", "link")
MEMORY, LINK = ("accelerators", "dram"), ("links", "nics", "storage")
"""Components whose bytes' energy counts as memory or as links."""


class Work(NamedTuple):
    """What a node does, as far as its energy depends on it."""

    device: str
    """"npu", "cpu", "pim" or "link"."""
    kind: str
    collective: str
    duration_ps: int
    bytes_moved: int
    operator: str
    """Its name in the program; "" for copies and the like."""


class NodeEnergy(NamedTuple):
    """Of one node; attojoules."""

    compute_aj: int = 0
    """The device's active power while it runs, or what a cost table states."""
    memory_aj: int = 0
    """Bytes of the device's own memory, of DIMMs and of the pool."""
    link_aj: int = 0
    """Bytes on links, switches and network cards."""

    @property
    def total_aj(self) -> int:
        """All of it."""
        return self.compute_aj + self.memory_aj + self.link_aj


class StepEnergy(Struct, frozen=True):
    """Of one member's step; attojoules."""

    compute_aj: int
    """Of active devices and working processors, waits included."""
    memory_aj: int
    link_aj: int
    waiting_aj: int
    """Of devices that are active and run no node: waits for others and for the host. Below 0 if
    the step is shorter than its nodes in a row, or overlaps the step before.
    """

    @property
    def total_aj(self) -> int:
        """Of all nodes and waits."""
        return self.compute_aj + self.memory_aj + self.link_aj


def member_energy(
    accounting: Accounting,
    group: int,
    activity: Mapping[str, Any],
    step_ps: int,
    nodes: Sequence[Work],
) -> tuple[list[NodeEnergy], StepEnergy] | None:
    """The energy of a member's step that took `step_ps`, and of each of its nodes on all ranks.

    `activity` is what the core counts for this step. None where the node does not say what it
    draws.
    """
    plan = accounting.power
    spec = None if plan is None else plan.nodes[plan.node_of_group[group]]
    if plan is None or spec is None:
        return None
    power = spec.accelerators[plan.hardware_of_group[group]]
    lowered = accounting.groups[group]
    traffic = accounting.traffic[group].traffic(activity)
    traffic = traffic.plus(**draft_bytes(accounting.drafts[group], activity))
    traffic = traffic.plus(**row_bytes(accounting, group, activity))
    moved = traffic_aj(spec, power, traffic)
    if accounting.part_power:
        moved["dram"] += computing_aj(lowered, activity)
    if plan.pool is not None:
        moved["dram"] += traffic.pool_bytes * BITS * plan.pool.aj_per_bit
    times_ps = _times_of_one_rank(lowered.placed, nodes, lowered.layout.stage_ranks)
    cpu_aj = processor_ps(lowered, times_ps) * spec.cpu_working_uw
    known = known_energy(lowered, activity, times_ps)
    devices_ps = plan.devices_of_group[group] * step_ps
    active_aj = (devices_ps - known["known_device_ps"]) * power.active_uw + known["known_aj"]
    busy = [_is_device(node) for node in nodes]
    compute_aj = [
        node.duration_ps * power.active_uw if is_busy else 0
        for node, is_busy in zip(nodes, busy, strict=True)
    ]
    _share(compute_aj, cpu_aj, nodes, lambda node: node.duration_ps * (node.device == "cpu"))
    memory_aj, link_aj = [0] * len(nodes), [0] * len(nodes)
    _share(memory_aj, moved["accelerators"], nodes, _own_bytes)
    _share(memory_aj, moved["dram"], nodes, _bytes_elsewhere)
    _share(link_aj, sum(moved[name] for name in LINK), nodes, _sent_bytes)
    found = [NodeEnergy(*parts) for parts in zip(compute_aj, memory_aj, link_aj, strict=True)]
    total = StepEnergy(
        active_aj + cpu_aj,
        sum(moved[name] for name in MEMORY),
        sum(moved[name] for name in LINK),
        active_aj + cpu_aj - sum(compute_aj),
    )
    return found, total


def moved_energy(accounting: Accounting, group: int, counts: Mapping[str, int]) -> NodeEnergy:
    """The energy of bytes that move for a group, by the names of `llmsim.core.Traffic`."""
    plan = accounting.power
    spec = None if plan is None else plan.nodes[plan.node_of_group[group]]
    if plan is None or spec is None:
        return NodeEnergy()
    traffic = Traffic(**{name: counts.get(name, 0) for name in Traffic.__struct_fields__})
    moved = traffic_aj(spec, spec.accelerators[plan.hardware_of_group[group]], traffic)
    pool_aj = 0 if plan.pool is None else traffic.pool_bytes * BITS * plan.pool.aj_per_bit
    return NodeEnergy(
        0, sum(moved[name] for name in MEMORY) + pool_aj, sum(moved[name] for name in LINK)
    )


def _share(
    into: list[int], amount: int, nodes: Sequence[Work], weight: Callable[[Work], int]
) -> None:
    """Adds parts of an amount in proportion to the weights, the rest to the first nodes with one;
    without any weight, to the first node.
    """
    weights = [weight(node) for node in nodes]
    whole = sum(weights)
    if amount == 0 or not nodes:
        return
    if whole == 0:
        into[0] += amount
        return
    parts = [amount * one // whole for one in weights]
    left = amount - sum(parts)
    for at, one in enumerate(weights):
        more = 1 if one and left > 0 else 0
        left -= more
        into[at] += parts[at] + more


def _is_device(node: Work) -> bool:
    """Whether the rank's own device runs the node; messages run beside it."""
    return node.device == "npu" and node.kind in ("compute", "attention", "collective")


def _own_bytes(node: Work) -> int:
    """Bytes in the device's own memory."""
    return node.bytes_moved if node.device == "npu" and node.kind != "collective" else 0


def _bytes_elsewhere(node: Work) -> int:
    """Bytes in memory beside the devices."""
    return node.bytes_moved if node.device in ("link", "cpu", "pim") else 0


def _sent_bytes(node: Work) -> int:
    """Bytes on links, up to a factor that is equal for all."""
    if node.kind == "collective":
        return node.bytes_moved * RING_FACTOR.get(node.collective, 1)
    return node.bytes_moved if node.kind in ("send", "copy", "m2n_send") else 0


def _times_of_one_rank(
    placed: Sequence[Placed], nodes: Sequence[Work], ranks: int
) -> dict[int, int]:
    """Operator's number in the program -> ps of all its executions on one rank of a stage."""
    of_name: dict[str, int] = {}
    for node in nodes:
        of_name[node.operator] = of_name.get(node.operator, 0) + node.duration_ps
    return {
        number: of_name[one.cost.name] // ranks
        for number, one in enumerate(placed)
        if one.cost.name in of_name
    }
