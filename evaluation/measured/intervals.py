"""Learns intervals of a whole system's error from published measurements, and tests them by leaving
one system out at a time.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from measured.points import METRICS
from measured.report import Row

LEVEL = 0.9
FEWEST = 10
"""Points without which no interval is stated."""


KINDS = {
    "dense_unqueued": "dense models, no request waits long",
    "experts_unqueued": "experts, no request waits long",
    "dense_queued": "dense models, requests wait",
    "experts_queued": "experts, requests wait",
}
"""What `llmsim.results.error_bars.kind_of` tells apart."""
LENT_POINTS = 6
"""As so many points of its own count those of all kinds in the middle and scale of one kind."""


@dataclass(frozen=True)
class KindInterval:
    """Real over simulated in nine of ten published runs of one kind, percent."""

    points: int
    low: float
    high: float
    covered: float
    """Share of the kind's points inside the interval that the other systems give."""


@dataclass(frozen=True)
class Interval:
    """A metric's intervals, and how well they hold."""

    metric: str
    points: int
    kinds: Mapping[str, KindInterval]
    covered: float
    """Share of the points inside the interval that the other systems give."""
    half: float = 0.0
    """Half of the interval's width, median over the points."""
    median: float = 0.0
    """Of the simulation's absolute error, percent."""


def intervals(rows: Sequence[Row]) -> list[Interval]:
    """One for each metric with enough points that count."""
    found = []
    for metric in METRICS:
        known = [row for row in rows if metric in row.errors and row.point.counted]
        if len(known) >= FEWEST:
            found.append(_interval(metric, known))
    return found


def _interval(metric: str, rows: Sequence[Row]) -> Interval:
    """The intervals of one metric from the rows that have it."""
    ratios = np.array([_log_ratio(row, metric) for row in rows])
    kinds = np.array([row.kind for row in rows])
    systems = np.array([row.point.system for row in rows])
    inside = _inside(ratios, kinds, systems)
    found = {}
    for kind, (low, high) in _edges(ratios, kinds).items():
        own = kinds == kind
        covered = float(inside[own].mean()) if own.any() else 0.0
        percent = (100 * math.expm1(low), 100 * math.expm1(high))
        found[kind] = KindInterval(int(own.sum()), *percent, covered)
    halves = [(found[kind].high - found[kind].low) / 2 for kind in kinds]
    errors = [abs(row.errors[metric]) for row in rows]
    medians = (float(np.median(halves)), float(np.median(errors)))
    return Interval(metric, len(rows), found, float(inside.mean()), *medians)


def _inside(
    ratios: NDArray[np.float64], kinds: NDArray[np.str_], systems: NDArray[np.str_]
) -> NDArray[np.bool_]:
    """Whether each point is inside the interval that the other systems give."""
    inside = np.zeros(len(ratios), dtype=np.bool_)
    for system in np.unique(systems):
        mine = systems == system
        edges = _edges(ratios[~mine], kinds[~mine])
        low, high = np.array([edges[kind] for kind in kinds[mine]]).T
        inside[mine] = (low <= ratios[mine]) & (ratios[mine] <= high)
    return inside


def _log_ratio(row: Row, metric: str) -> float:
    """Logarithm of real over simulated."""
    return -math.log1p(row.errors[metric] / 100)


def _edges(ratios: NDArray[np.float64], kinds: NDArray[np.str_]) -> dict[str, tuple[float, float]]:
    """Around the middle of each kind, as many of its scales wide as one more point needs in nine of
    ten cases of all kinds (split conformal, normalised).
    """
    middles = _medians(ratios, kinds)
    away = np.abs(ratios - np.array([middles[kind] for kind in kinds]))
    scales = _medians(away, kinds)
    in_scales = np.sort(away / np.array([scales[kind] for kind in kinds]))
    rank = min(len(in_scales), math.ceil((len(in_scales) + 1) * LEVEL))
    width = float(in_scales[rank - 1])
    return {
        kind: (middles[kind] - width * scale, middles[kind] + width * scale)
        for kind, scale in scales.items()
    }


def _medians(values: NDArray[np.float64], kinds: NDArray[np.str_]) -> dict[str, float]:
    """The median of each kind, which leans on that of all where it has few points."""
    of_all = float(np.median(values))
    found = {}
    for kind in KINDS:
        own = values[kinds == kind]
        total = float(np.median(own)) * len(own) if len(own) else 0.0
        found[kind] = (total + of_all * LENT_POINTS) / (len(own) + LENT_POINTS)
    return found


FIGURES = {"throughput": "output_throughput", "ttft": "mean_ttft_ms", "tpot": "mean_tpot_ms"}
"""A metric of the points -> the figure of a run's summary."""


def error_bars_json(found: Sequence[Interval], rows: Sequence[Row]) -> str:
    """The intervals as a run reads them (llmsim/results/error_bars.py)."""
    known = {row.point.system for row in _counted(rows)}
    figures = {
        FIGURES[one.metric]: {
            "points": one.points,
            "covered": round(one.covered, 4),
            "kinds": {kind: _kind_json(edges) for kind, edges in one.kinds.items()},
        }
        for one in found
    }
    bars = {
        "level": LEVEL,
        "systems": len(known),
        "least_share": least_share(rows),
        "figures": figures,
    }
    return json.dumps(bars, indent=2) + "\n"


def _kind_json(edges: KindInterval) -> dict[str, float]:
    return {
        "points": edges.points,
        "low": round(1 + edges.low / 100, 4),
        "high": round(1 + edges.high / 100, 4),
        "covered": round(edges.covered, 4),
    }


def least_share(rows: Sequence[Row]) -> float:
    """The least share of the busy time from tables of the device itself, in whole percent."""
    return math.floor(100 * min(row.own_share for row in _counted(rows))) / 100


def _counted(rows: Sequence[Row]) -> list[Row]:
    """Rows that intervals rest on."""
    return [row for row in rows if row.errors and row.point.counted]


def intervals_markdown(found: Sequence[Interval]) -> str:
    """How well the intervals hold, and their edges for each kind of runs."""
    lines = [
        "| metric | points | covered | half-width | median error |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.metric} | {one.points} | {one.covered:.0%} | {one.half:.0f} | {one.median:.0f} |"
        for one in found
    ]
    lines += [
        "",
        "| metric | runs in which | points | real, percent of simulated: from | to | covered |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.metric} | {KINDS[kind]} | {edges.points} | {100 + edges.low:.0f} | "
        f"{100 + edges.high:.0f} | {edges.covered:.0%} |"
        for one in found
        for kind, edges in one.kinds.items()
    ]
    return "\n".join(lines)
