"""Learns intervals of a whole system's error from published measurements, and tests them by leaving
one system out at a time.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from measured.points import METRICS
from measured.report import Row

LEVEL = 0.9
FEWEST = 10
"""Points without which no interval is stated."""


@dataclass(frozen=True)
class Interval:
    """Real over simulated in nine of ten published systems, percent, and how well that holds."""

    metric: str
    points: int
    low: float
    high: float
    covered: float
    """Share of the points inside the interval that the other systems give."""
    median: float = 0.0
    """Of the simulation's absolute error, percent."""


def intervals(rows: Sequence[Row]) -> list[Interval]:
    """One for each metric with enough points that count."""
    found = []
    for metric in METRICS:
        known = [row for row in rows if metric in row.errors and row.point.counted]
        if len(known) < FEWEST:
            continue
        ratios = np.array([_log_ratio(row, metric) for row in known])
        systems = np.array([row.point.system for row in known])
        covered = _covered(ratios, systems)
        percent = [100 * math.expm1(edge) for edge in _interval(ratios)]
        median = float(np.median([abs(row.errors[metric]) for row in known]))
        found.append(Interval(metric, len(known), *percent, covered, median))
    return found


def _covered(ratios: NDArray[np.float64], systems: NDArray[np.str_]) -> float:
    """Share of the points inside the interval that the other systems give."""
    inside: list[np.bool_] = []
    for system in np.unique(systems):
        mine = systems == system
        low, high = _interval(ratios[~mine])
        inside += list((low <= ratios[mine]) & (ratios[mine] <= high))
    return float(np.mean(inside))


def _log_ratio(row: Row, metric: str) -> float:
    """Logarithm of real over simulated."""
    return -math.log1p(row.errors[metric] / 100)


def _interval(ratios: NDArray[np.float64]) -> tuple[float, float]:
    """Around the median, as wide as one more point needs in nine of ten cases (split conformal)."""
    middle = float(np.median(ratios))
    away = np.sort(np.abs(ratios - middle))
    rank = min(len(away), math.ceil((len(away) + 1) * LEVEL))
    return middle - float(away[rank - 1]), middle + float(away[rank - 1])


FIGURES = {"throughput": "output_throughput", "ttft": "mean_ttft_ms", "tpot": "mean_tpot_ms"}
"""A metric of the points -> the figure of a run's summary."""


def error_bars_json(found: Sequence[Interval], rows: Sequence[Row]) -> str:
    """The intervals as a run reads them (llmsim/results/error_bars.py)."""
    known = {row.point.system for row in _counted(rows)}
    figures = {
        FIGURES[one.metric]: {
            "points": one.points,
            "low": round(1 + one.low / 100, 4),
            "high": round(1 + one.high / 100, 4),
            "covered": round(one.covered, 4),
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


def least_share(rows: Sequence[Row]) -> float:
    """The least share of the busy time from tables of the device itself, in whole percent."""
    return math.floor(100 * min(row.own_share for row in _counted(rows))) / 100


def _counted(rows: Sequence[Row]) -> list[Row]:
    """Rows that intervals rest on."""
    return [row for row in rows if row.errors and row.point.counted]


def intervals_markdown(found: Sequence[Interval]) -> str:
    """The intervals and their coverage."""
    lines = [
        "| metric | points | real, percent of simulated: from | to | covered | half-width | "
        "median error |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.metric} | {one.points} | {100 + one.low:.0f} | {100 + one.high:.0f} | "
        f"{one.covered:.0%} | {(one.high - one.low) / 2:.0f} | {one.median:.0f} |"
        for one in found
    ]
    return "\n".join(lines)
