"""KV that moves while a step runs, as nodes of its graph.

A transfer is a node if one of its ends is a device of the step, and it moves while the step runs.
What was on its way before starts before 0. The step waits for none of these nodes: a request whose
KV is not there is in no batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim import _native
from llmsim.export.step_graph.nodes import GraphNode
from llmsim.lowering.energy.accounting import MEDIA, Accounting, handed_over
from llmsim.lowering.energy.step import moved_energy
from llmsim.lowering.network.cluster_network import ClusterNetwork
from llmsim.lowering.offload.placement import DEVICE

KV_SEND, KV_RECEIVE, KV_RECALL, KV_WRITE = "kv_send", "kv_receive", "kv_recall", "kv_write"
KINDS = (KV_SEND, KV_RECEIVE, KV_RECALL, KV_WRITE)
"""KV to another group, from another group, from a tier below the devices, and to one."""
NAMES = {
    KV_SEND: "KV to group {}",
    KV_RECEIVE: "KV from group {}",
    KV_RECALL: "KV from {}",
    KV_WRITE: "KV to {}",
}


KV_OF_PROMPTS = "KV of prompts"
"""Name of copies that take it to the memory that attends, where the next step needs it."""


def is_waited_for(node: GraphNode) -> bool:
    """Whether the node's step ends no earlier than the node: KV may be on its way longer."""
    return node.kind not in KINDS and node.name != KV_OF_PROMPTS


@dataclass(frozen=True)
class Window:
    """From the start of a step to its end, in ps of the run."""

    start_ps: int
    end_ps: int


class Places:
    """Whose memory each place of a network is."""

    def __init__(self, network: ClusterNetwork) -> None:
        self.device: dict[int, tuple[int, int]] = {
            place: (group, rank)
            for of_groups in (network.kv, network.devices)
            for group, places in enumerate(of_groups)
            for rank, place in enumerate(places)
        }
        """Place -> (group, rank), also of memory that holds a device's KV."""
        memories = {place: "cpu" for place in network.hosts if place is not None}
        memories |= {place: "ssd" for place in network.drives if place is not None}
        memories |= {place: f"cxl:{number}" for number, place in enumerate(network.stripes)}
        if network.pool is not None and network.pool not in memories:
            memories[network.pool] = "cxl"
        if network.storage is not None:
            memories[network.storage] = "nvmeof"
        self.memory: dict[int, str] = memories


def kv_nodes(
    transfers: Mapping[str, Any],
    network: ClusterNetwork,
    members: Sequence[int],
    window: Window,
    nodes: Sequence[GraphNode],
    accounting: Accounting,
) -> tuple[GraphNode, ...]:
    """The transfers of KV while a step runs; `nodes` are the step's, and `members` its groups.

    Each has the energy of all of its bytes, also where it is on its way in several steps.
    """
    places = Places(network)
    ranks = len(network.devices[members[0]])
    caching = _caching_ends(nodes)
    found: list[GraphNode] = []
    for row in _moving(transfers, window).tolist():
        sender, receiver = int(transfers["sender"][row]), int(transfers["receiver"][row])
        for mine, other, leaves in ((sender, receiver, True), (receiver, sender, False)):
            group, rank = places.device.get(mine, (-1, -1))
            if group not in members:
                continue
            start_ps = int(transfers["start_ps"][row]) - window.start_ps
            end_ps = int(transfers["end_ps"][row])
            lasts_ps = (end_ps if end_ps >= 0 else window.end_ps) - window.start_ps - start_ps
            number = rank + ranks * members.index(group)
            before = caching.get((number, start_ps)) if leaves else None
            kind, name, route = _described(places, mine, other, leaves=leaves)
            size = int(transfers["bytes"][row])
            counts = _counts(accounting, places, (group, other), size, leaves=leaves)
            found.append(
                GraphNode(
                    node=len(nodes) + len(found),
                    rank=number,
                    name=name,
                    kind=kind,
                    layer=0 if before is None else before.layer,
                    part=0 if before is None else before.part,
                    start_ps=start_ps,
                    duration_ps=lasts_ps,
                    flops=0,
                    bytes_moved=size,
                    power_class="link",
                    collective="",
                    on_links=True,
                    provenance="",
                    source="",
                    depends_on=() if before is None else (before.node,),
                    device="link",
                    route=route,
                    device_id="link",
                    **moved_energy(accounting, group, counts)._asdict(),
                )
            )
    return tuple(found)


def behind_attention(nodes: Sequence[GraphNode]) -> tuple[GraphNode, ...]:
    """The nodes with what each KV that leaves waits for, after others have moved."""
    caching = _caching_ends(nodes)
    found = []
    for node in nodes:
        if node.kind in (KV_SEND, KV_WRITE):
            before = caching.get((node.rank, node.start_ps))
            layer, part = (0, 0) if before is None else (before.layer, before.part)
            waits = () if before is None else (before.node,)
            node = node.changed(layer=layer, part=part, depends_on=waits)
        found.append(node)
    return tuple(found)


def _counts(
    accounting: Accounting, places: Places, ends: tuple[int, int], size: int, *, leaves: bool
) -> dict[str, int]:
    """What a transfer between a group and another place counts as for the group."""
    group, other = ends
    device = places.device.get(other)
    if device is None:
        return {MEDIA[places.memory[other].split(":")[0].upper()]: size, "memory_bytes": size}
    same_node = accounting.nodes[group] == accounting.nodes[device[0]]
    return handed_over(accounting, group, size, same_node=same_node, sends=leaves)


def _moving(transfers: Mapping[str, Any], window: Window) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Rows of KV with bytes that moves in the window; messages of the protocol have none."""
    purposes = (_native.Purpose.KV_HANDOVER.value, _native.Purpose.KV_TIER.value)
    ends = transfers["end_ps"]
    moves = np.isin(transfers["purpose"], purposes) & (transfers["bytes"] > 0)
    moves &= (transfers["start_ps"] < window.end_ps) & ((ends < 0) | (ends > window.start_ps))
    return np.flatnonzero(moves)


def _caching_ends(nodes: Sequence[GraphNode]) -> dict[tuple[int, int], GraphNode]:
    """(rank, end) -> what caches KV or a state of a layer, which leaves when it has ended."""
    return {(one.rank, one.end_ps): one for one in nodes if one.caches}


def _described(places: Places, mine: int, other: int, *, leaves: bool) -> tuple[str, str, str]:
    """Kind, name and route of a transfer, as the device at one end sees it."""
    device = places.device.get(other)
    if device is None:
        memory = places.memory[other]
        kind = KV_WRITE if leaves else KV_RECALL
        route = f"{DEVICE} -> {memory}" if leaves else f"{memory} -> {DEVICE}"
        return kind, NAMES[kind].format(memory), route
    kind = KV_SEND if leaves else KV_RECEIVE
    (group, rank), (other_group, other_rank) = places.device[mine], device
    ends = [f"group{group}.rank{rank}", f"group{other_group}.rank{other_rank}"]
    return kind, NAMES[kind].format(other_group), " -> ".join(ends if leaves else ends[::-1])
