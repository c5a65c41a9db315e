"""Mean power per interval: exact for the states of devices; the energy of bytes is spread over the
time worked.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.config.cluster_file.power import AcceleratorPower, NodePowerSpec
from llmsim.core import COMPONENTS, Int64
from llmsim.power.intervals import Intervals

UW_PER_W = 1_000_000
MAX_ROWS = 1_000_000
"""Of the series; a longer run gets longer intervals."""


class Load(Struct, frozen=True, eq=False):
    """One group's devices over time, and the energy of the bytes that they moved (attojoules by
    component).
    """

    here: Intervals
    """When the devices are the group's."""
    active: Intervals
    standby: Intervals
    power: AcceleratorPower
    devices: int
    nodes: int
    """So many share the devices and the bytes evenly."""
    moved_aj: Mapping[str, int]


def power_series(
    nodes: Sequence[NodePowerSpec | None],
    nodes_of_group: Sequence[tuple[int, ...]],
    loads: Sequence[Load | None],
    components_aj: Sequence[Mapping[str, int] | None],
    window_ps: tuple[int, int],
    interval_ps: int,
) -> dict[str, NDArray[np.generic]]:
    """Columns of `llmsim.columns.PowerColumns`; power x length, summed, is each node's energy (to
    double precision).
    """
    known = [index for index, spec in enumerate(nodes) if spec is not None]
    edges = _edges(window_ps, interval_ps, max(len(known), 1))
    length = np.diff(edges).astype(np.float64)
    columns: dict[str, list[NDArray[np.generic]]] = {
        name: [] for name in ("time_ps", "node", *COMPONENTS)
    }
    duration_ps = window_ps[1] - window_ps[0]
    for node in known if len(length) else []:
        parts = components_aj[node]
        assert parts is not None, "a node with power has components"
        mine = _loads_on(node, loads, nodes_of_group)
        watts = {name: _watts(name, parts, mine, edges, length, duration_ps) for name in COMPONENTS}
        columns["time_ps"].append(edges[1:])
        columns["node"].append(np.full(len(length), node, np.int16))
        for name in COMPONENTS:
            columns[name].append(watts[name])
    joined = {
        name: np.concatenate(arrays) if arrays else np.zeros(0) for name, arrays in columns.items()
    }
    return {
        name if name in ("time_ps", "node") else f"{name}_w": column
        for name, column in joined.items()
    }


def _loads_on(
    node: int, loads: Sequence[Load | None], nodes_of_group: Sequence[tuple[int, ...]]
) -> list[Load]:
    """Those of the groups on a node that have one."""
    placed = zip(loads, nodes_of_group, strict=True)
    return [load for load, at in placed if node in at and load is not None]


def _edges(window_ps: tuple[int, int], interval_ps: int, nodes: int) -> Int64:
    """The window's ends and the multiples of the interval between them."""
    start, end = window_ps
    if end <= start or interval_ps <= 0:
        return np.array([start, end] if end > start else [start], np.int64)
    step = interval_ps * -(-((end - start) // interval_ps + 1) * nodes // MAX_ROWS)
    inner = np.arange(start // step + 1, -(-end // step), dtype=np.int64) * step
    return np.concatenate([[start], inner, [end]]).astype(np.int64)


def _watts(
    name: str,
    parts: Mapping[str, int],
    loads: Sequence[Load],
    edges: Int64,
    length: NDArray[np.float64],
    duration_ps: int,
) -> NDArray[np.float64]:
    """Mean watts of a component in each interval."""
    energy = np.zeros(len(length))  # microwatts x ps, as attojoules
    varying = 0.0
    for load in loads:
        active = np.diff(load.active.before(edges)).astype(np.float64)
        if name == "accelerators":
            standby = np.diff(load.standby.before(edges)).astype(np.float64)
            idle = np.diff(load.here.before(edges)).astype(np.float64) - active - standby
            power = load.power
            states = active * power.active_uw + standby * power.standby_uw + idle * power.idle_uw
            energy += load.devices * states / load.nodes
        moved = load.moved_aj.get(name, 0) / load.nodes
        varying += moved
        worked = load.active.total_ps
        energy += moved * (active / worked if worked else length / duration_ps)
    if name != "accelerators":
        energy += (parts[name] - varying) * (length / duration_ps)
    return np.asarray(energy / length / UW_PER_W)
