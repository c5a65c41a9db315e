"""Interpolation of times in utilisation: a time is what the data sheet allows over how well the
device was used.

t(x) = light(x) / u(x). Between and beyond measured shapes u changes slowly where t changes by
orders of magnitude, so u is what is interpolated, in the logarithm of every coordinate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Provenance, UInt8

Floats = NDArray[np.float64]

NEIGHBOURS = 4
"""Of points that lie on no grid, so many nearest ones are averaged."""
SAME = 1e-9


def interpolate(points: Floats, values: Floats, at: Floats) -> tuple[Floats, UInt8]:
    """Positive values at coordinates `at` [m, d] from those at `points` [n, d], and how each was
    obtained.

    Coordinates are counts >= 0 and enter as log(1 + x). A full grid of points is interpolated
    linearly along each axis; other points are averaged by inverse distance. Beyond the points the
    value of the edge is kept.
    """
    x, y, goal = np.log1p(points), np.log(np.maximum(values, 1e-30)), np.log1p(at)
    axes = [np.unique(column) for column in x.T]
    full = int(np.prod([len(axis) for axis in axes])) == len(x)
    found = _on_grid(x, y, axes, goal) if full else _scattered(x, y, goal)
    low, high = x.min(axis=0), x.max(axis=0)
    inside = ((goal >= low - SAME) & (goal <= high + SAME)).all(axis=1)
    marks = np.where(inside, Provenance.INTERPOLATED, Provenance.EXTRAPOLATED).astype(np.uint8)
    exact = {tuple(np.round(row, 9)) for row in x}
    marks[[tuple(row) in exact for row in np.round(goal, 9)]] = Provenance.MEASURED
    return np.exp(found), marks


def _on_grid(x: Floats, y: Floats, axes: list[Floats], goal: Floats) -> Floats:
    order = np.lexsort(x.T[::-1])
    table = y[order].reshape([len(axis) for axis in axes])
    result = np.zeros(len(goal))
    places = [_place(axis, column) for axis, column in zip(axes, goal.T, strict=True)]
    for corner in np.ndindex(*(2,) * len(axes)):
        weight = np.ones(len(goal))
        index = []
        for (low, high, share), side in zip(places, corner, strict=True):
            weight = weight * (share if side else 1.0 - share)
            index.append(high if side else low)
        result += weight * table[tuple(index)]
    return result


def _place(axis: Floats, values: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    if len(axis) == 1:
        zero = np.zeros(len(values), dtype=np.intp)
        return zero, zero, np.zeros(len(values))
    low = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 2)
    share = np.clip((values - axis[low]) / (axis[low + 1] - axis[low]), 0.0, 1.0)
    return low, low + 1, share


def _scattered(x: Floats, y: Floats, goal: Floats) -> Floats:
    result = np.empty(len(goal))
    for row, target in enumerate(goal):
        away = np.sqrt(((x - target) ** 2).sum(axis=1))
        near = np.argsort(away, kind="stable")[:NEIGHBOURS]
        if away[near[0]] < SAME:
            result[row] = y[near[0]]
            continue
        weight = 1.0 / away[near] ** 2
        result[row] = float((weight * y[near]).sum() / weight.sum())
    return result
