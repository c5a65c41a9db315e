"""The `energy` and `cost` blocks of the summary; docs/explanation/power.md defines every figure."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmsim.core import AJ_PER_J, COMPONENTS, PS_PER_S, Energy, GroupEnergy, Results
from llmsim.exact import exact_sum
from llmsim.power import CostPlan, carbon_g, cost_figures
from llmsim.results.requests.metrics import finished_rows, makespan_ps

MAX_POINTS = 500
"""Of the power series in the summary; the run folder has all of it."""


def energy_block(results: Results) -> dict[str, Any] | None:
    """Energy of the run in joules and power in watts; None where no node says what it draws.

    Sums are exact: the components of a node add up to its total, the nodes and the pool to the
    cluster's.
    """
    energy = results.energy
    if energy is None:
        return None
    total_j = energy.total_aj / AJ_PER_J
    length_s = (energy.end_ps - energy.start_ps) / PS_PER_S
    requests = results.requests
    rows = finished_rows(requests)
    emitted = exact_sum(requests.emitted_tokens)
    tokens = emitted + exact_sum(results.counters["prompt_tokens"])
    shares = energy.request_j[rows]
    time_s, watts = _total_series(energy)
    return {
        "total_j": total_j,
        "window_s": length_s,
        "mean_power_w": total_j / length_s if length_s else None,
        "peak_power_w": float(watts.max()) if len(watts) else None,
        "components_j": _components(energy),
        "pool_j": energy.pool_aj / AJ_PER_J,
        "nodes": [_node(energy, index, length_s) for index in range(len(energy.components_aj))],
        "groups": [None if group is None else _group(group) for group in energy.groups],
        "j_per_output_token": total_j / emitted if emitted else None,
        "j_per_token": total_j / tokens if tokens else None,
        "mean_request_j": float(shares.mean()) if len(rows) else None,
        "p99_request_j": float(np.percentile(shares, 99)) if len(rows) else None,
        "unattributed_j": energy.unattributed_j,
        "power_series": {"time_s": time_s.tolist(), "power_w": watts.tolist()},
    }


def _components(energy: Energy) -> dict[str, float]:
    known = [parts for parts in energy.components_aj if parts is not None]
    return {name: sum(parts[name] for parts in known) / AJ_PER_J for name in COMPONENTS}


def _node(energy: Energy, index: int, length_s: float) -> dict[str, Any] | None:
    parts = energy.components_aj[index]
    if parts is None:
        return None
    total_j = sum(parts.values()) / AJ_PER_J
    return {
        "node": index,
        "total_j": total_j,
        "mean_power_w": total_j / length_s if length_s else None,
        "components_j": {name: parts[name] / AJ_PER_J for name in COMPONENTS},
    }


def _group(group: GroupEnergy) -> dict[str, Any]:
    traffic = group.traffic
    return {
        "group": group.group,
        "node": group.node,
        "nodes_j": {str(node): used_aj / AJ_PER_J for node, used_aj in group.node_aj},
        "total_j": group.total_aj / AJ_PER_J,
        "active_j": group.active_aj / AJ_PER_J,
        "standby_j": group.standby_aj / AJ_PER_J,
        "idle_j": group.idle_aj / AJ_PER_J,
        "traffic_j": group.traffic_aj / AJ_PER_J,
        "shared_j": group.shared_aj / AJ_PER_J,
        "active_s": group.active_ps / PS_PER_S,
        "standby_s": group.standby_ps / PS_PER_S,
        "memory_bytes": traffic.memory_bytes,
        "link_bytes": traffic.link_bytes,
        "host_bytes": traffic.host_bytes,
        "processor_bytes": traffic.processor_bytes,
        "pool_bytes": traffic.pool_bytes,
        "nic_bytes": traffic.nic_bytes,
        "storage_bytes": traffic.storage_bytes,
    }


def _total_series(energy: Energy) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """(end of interval s, watts of all nodes together), at most MAX_POINTS of them: means over
    several intervals.
    """
    times, nodes = energy.series["time_ps"].astype(np.int64), energy.series["node"]
    if not len(times):
        return np.zeros(0), np.zeros(0)
    several = len(np.unique(nodes))
    ends = times[: len(times) // several]
    watts = sum(np.asarray(energy.series[f"{name}_w"], dtype=np.float64) for name in COMPONENTS)
    total = np.asarray(watts).reshape(several, -1).sum(axis=0)
    length = np.diff(np.concatenate([[energy.start_ps], ends]))
    bins = np.arange(0, len(ends), -(-len(ends) // MAX_POINTS))
    joined = np.add.reduceat(total * length, bins) / np.add.reduceat(length, bins)
    last = np.concatenate([bins[1:] - 1, [len(ends) - 1]])
    return ends[last] / PS_PER_S, joined


def cost_block(
    results: Results, info: Mapping[str, Any], energy: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """What the run cost, from the `cost_plan` of `info`; None without prices."""
    plan = info.get("cost_plan")
    if not isinstance(plan, CostPlan):
        return None
    rows = finished_rows(results.requests)
    output = exact_sum(results.requests.emitted_tokens[rows])
    prompt = exact_sum(results.workload.input_tokens[rows])
    return cost_figures(
        plan,
        duration_ps=makespan_ps(results),
        output_tokens=output,
        total_tokens=output + prompt,
        energy_j=None if energy is None else energy["total_j"],
    )


def carbon_block(
    info: Mapping[str, Any], energy: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Carbon of the run's energy; None without an energy or a grid factor."""
    plan = info.get("cost_plan")
    if not isinstance(plan, CostPlan) or energy is None:
        return None
    grams = carbon_g(plan, energy["total_j"])
    return None if grams is None else {"total_g": grams, "grid_g_per_kwh": plan.grid_g_per_kwh}
