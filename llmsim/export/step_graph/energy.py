"""Puts devices and energies on the nodes of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsim.export.step_graph.nodes import GraphNode
from llmsim.lowering.energy.accounting import Accounting
from llmsim.lowering.energy.step import NodeEnergy, StepEnergy, Work, member_energy

OPERATORS = ("compute", "attention", "collective", "send")


def with_energy(
    nodes: Sequence[GraphNode],
    accounting: Accounting,
    members: Sequence[int],
    activities: Sequence[Mapping[str, Any]],
    busy_ps: Sequence[tuple[int, int]],
    places: Sequence[tuple[int, int]],
) -> tuple[tuple[GraphNode, ...], tuple[StepEnergy | None, ...]]:
    """The nodes with what is busy and what it draws, and the energy of each member's step.

    `activities` and `busy_ps` (`Round.busy_ps`) have an entry for each of `members`; `places` has
    the member of each rank and its number there.
    """
    found = list(nodes)
    energies = []
    for place, group in enumerate(members):
        mine = [at for at, node in enumerate(nodes) if places[node.rank][0] == place]
        works = [_work(nodes[at]) for at in mine]
        start_ps, end_ps = busy_ps[place]
        made = member_energy(accounting, group, activities[place], end_ps - start_ps, works)
        parts = made[0] if made is not None else [NodeEnergy()] * len(mine)
        energies.append(made[1] if made is not None else None)
        where = accounting.nodes[group]
        for at, part in zip(mine, parts, strict=True):
            node = nodes[at]
            device_id = _device_id(node, group, places[node.rank][1], where)
            found[at] = node.changed(
                device_id=device_id,
                compute_aj=part.compute_aj,
                memory_aj=part.memory_aj,
                link_aj=part.link_aj,
            )
    return tuple(found), tuple(energies)


def _work(node: GraphNode) -> Work:
    operator = node.name if node.kind in OPERATORS else ""
    return Work(
        node.device, node.kind, node.collective, node.duration_ps, node.bytes_moved, operator
    )


def _device_id(node: GraphNode, group: int, rank: int, where: int) -> str:
    if node.device == "npu":
        return f"group{group}.rank{rank}"
    if node.device == "pim":
        return f"node{where}.pim.group{group}.rank{rank}"
    return f"node{where}.{node.device}"
