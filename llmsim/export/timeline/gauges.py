"""What the timeline draws beside steps and requests: KV on its way between groups, links inside
groups, power.

Everything here is a figure of the results placed in time; nothing is simulated again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llmsim.core import COMPONENTS, PS_PER_S, Int64, Results
from llmsim.costs.source import AttentionCost, OpCost
from llmsim.model import Collective, Operator


@dataclass(frozen=True)
class GroupOperators:
    """One group's operators and what each costs; which of them talk is in the former, how long in
    the latter.
    """

    operators: Sequence[Operator] = ()
    costs: Sequence[OpCost | AttentionCost] = ()


@dataclass(frozen=True)
class Transfer:
    """KV of one request on its way from group to group, ps."""

    row: int
    source: int
    target: int
    start_ps: int
    end_ps: int
    num_bytes: int


@dataclass(frozen=True)
class Gauge:
    """A counter: `values[i]` holds from `times_ps[i]` on; `group` is None where it
    belongs to none.
    """

    name: str
    unit: str
    group: int | None
    times_ps: Sequence[int]
    values: Sequence[float]


def transfers(results: Results, *, layerwise: bool) -> list[Transfer]:
    """Every hand-over that moved bytes, by start.

    It starts when the decode group holds blocks and the prompt is computed; layer by layer, when
    the prompt begins.
    """
    kv_transfers, requests = results.kv_transfers, results.requests
    if kv_transfers is None:
        return []
    found = []
    for row in np.flatnonzero(
        (kv_transfers.kv_landed_ps >= 0) & (kv_transfers.kv_transfer_bytes > 0)
    ).tolist():
        ready = requests.scheduled_ps[row] if layerwise else kv_transfers.prefill_end_ps[row]
        end = int(kv_transfers.kv_landed_ps[row])
        start = min(max(int(kv_transfers.kv_reserved_ps[row]), int(ready)), end)
        groups = int(kv_transfers.prefill_group[row]), int(requests.group[row])
        found.append(Transfer(row, *groups, start, end, int(kv_transfers.kv_transfer_bytes[row])))
    return sorted(found, key=lambda one: (one.start_ps, one.row))


def lanes(intervals: Sequence[tuple[int, int]]) -> list[int]:
    """A lane for each interval, in their order, so that none overlaps another on its lane; the
    lowest that is free.
    """
    busy_until: list[int] = []
    chosen = []
    for start, end in intervals:
        lane = next(
            (index for index, until in enumerate(busy_until) if until <= start), len(busy_until)
        )
        if lane == len(busy_until):
            busy_until.append(end)
        busy_until[lane] = end
        chosen.append(lane)
    return chosen


def gauges(
    results: Results, moved: Sequence[Transfer], groups: Sequence[GroupOperators]
) -> Iterator[Gauge]:
    """Those that the run has: KV on its way and landed, the share of time in collectives, tiers,
    power.
    """
    yield from _transfer_gauges(results, moved)
    for index, group in enumerate(groups):
        yield from _collective_gauges(results, index, group)
    yield from _tier_gauges(results)
    yield from _power_gauges(results)


def _transfer_gauges(results: Results, moved: Sequence[Transfer]) -> Iterator[Gauge]:
    for source, target in sorted({(one.source, one.target) for one in moved}):
        own = [one for one in moved if (one.source, one.target) == (source, target)]
        name = f"KV from group {source}"
        changes: dict[int, int] = {}
        for one in own:
            changes[one.start_ps] = changes.get(one.start_ps, 0) + one.num_bytes
            changes[one.end_ps] = changes.get(one.end_ps, 0) - one.num_bytes
        times = sorted(changes)
        on_the_way = np.cumsum([changes[time] for time in times], dtype=np.int64)
        yield Gauge(f"{name}, on its way", "B", target, times, on_the_way.tolist())
        edges = _edges(results, target)
        if len(edges) > 1:
            landed, _ = np.histogram(
                [one.end_ps for one in own], edges, weights=[float(one.num_bytes) for one in own]
            )
            yield _rate(f"{name}, landed", "B/s", target, edges, landed * PS_PER_S)


def _collective_gauges(results: Results, index: int, group: GroupOperators) -> Iterator[Gauge]:
    """Share of the time that the links inside the group are busy: its steps' collectives over each
    interval.
    """
    names = {
        op.name for op in group.operators if isinstance(op, Collective) and op.feature != "gathered"
    }
    talking = [cost for cost in group.costs if isinstance(cost, OpCost) and cost.name in names]
    steps, edges = results.steps, _edges(results, index)
    if not talking or len(edges) < 2 or not len(steps.get("group", ())):
        return
    rows = np.flatnonzero(steps["group"] == index)
    busy_ps = np.zeros(len(rows), dtype=np.int64)
    for cost in talking:
        counts = steps["sequences" if cost.feature == "sequences" else "padded_tokens"][
            rows
        ].astype(np.int64)
        busy_ps += cost.repeat * cost.ps[np.minimum(counts, len(cost.ps) - 1)]
    total, _ = np.histogram(steps["end_ps"][rows], edges, weights=busy_ps.astype(np.float64))
    yield _rate("collectives", "% of the time", index, edges, 100 * total)


def _tier_gauges(results: Results) -> Iterator[Gauge]:
    series = results.kv_tier_series
    for pool in range(len(results.kv_tiers) if len(series.get("pool", ())) else 0):
        rows = np.flatnonzero(series["pool"] == pool)
        times = series["time_ps"][rows].tolist()
        yield Gauge(f"KV pool {pool}, used", "B", None, times, series["used_bytes"][rows].tolist())
        for column, word in (("recalled_bytes", "read"), ("written_bytes", "written")):
            edges = np.concatenate([[0], series["time_ps"][rows]]).astype(np.int64)
            moved = series[column][rows].astype(np.float64) * PS_PER_S
            yield _rate(f"KV pool {pool}, {word}", "B/s", None, edges, moved)


def _power_gauges(results: Results) -> Iterator[Gauge]:
    energy = results.energy
    if energy is None:
        return
    for node in np.unique(energy.series["node"]).tolist():
        rows = np.flatnonzero(energy.series["node"] == node)
        starts = [energy.start_ps, *energy.series["time_ps"][rows].tolist()]
        watts = {
            name: np.asarray(energy.series[f"{name}_w"][rows], dtype=np.float64)
            for name in COMPONENTS
        }
        where = f"node {node}" if node >= 0 else "CXL pool"
        for name, values in {"all": np.sum(list(watts.values()), axis=0), **watts}.items():
            if values.any():
                yield Gauge(f"{where}, {name}", "W", None, starts, [*values.tolist(), 0.0])


def _edges(results: Results, group: int) -> Int64:
    """Ends of the series' intervals of a group, from 0; empty where none was kept."""
    series = results.series
    if not len(series.get("group", ())):
        return np.zeros(0, dtype=np.int64)
    ends = np.unique(series["time_ps"][series["group"] == group]).astype(np.int64)
    return np.concatenate([[0], ends]) if len(ends) and ends[0] > 0 else ends


def _rate(
    name: str,
    unit: str,
    group: int | None,
    edges: Int64,
    amounts: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> Gauge:
    """Amounts of intervals over their lengths in ps, each at its interval's start, and 0 at the
    end.
    """
    values = np.asarray(amounts, dtype=np.float64) / np.maximum(np.diff(edges), 1)
    return Gauge(name, unit, group, edges.tolist(), [*values.tolist(), 0.0])
