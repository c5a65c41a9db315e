"""Completes a sparse four-dimensional grid of measured attention times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64, Provenance, UInt8

Floats = NDArray[np.float64]


def fill_line_axis(
    values: Floats,
    provenance: UInt8,
    axis: int,
    coords: Int64,
    *,
    outside: bool,
    from_index: int = 0,
) -> None:
    """Fills unknown cells (NaN) along one axis from the known ones of the same line, in place.

    Between known points: linear. With `outside` also beyond them: constant below the first, linear
    above the last with the slope of the last two (not negative). Cells before `from_index` on the
    axis neither give nor receive.
    """
    view = np.moveaxis(values, axis, -1)[..., from_index:]
    marks = np.moveaxis(provenance, axis, -1)[..., from_index:]
    points = coords[from_index:].astype(np.float64)
    known = ~np.isnan(view)
    flat = known.reshape(-1, known.shape[-1])
    partial = np.flatnonzero(flat.any(axis=1) & ~flat.all(axis=1))
    if not len(partial):
        return
    patterns, owner = np.unique(np.packbits(flat[partial], axis=1), axis=0, return_inverse=True)
    for index in range(len(patterns)):
        lines = np.unravel_index(partial[owner.reshape(-1) == index], view.shape[:-1])
        _fill_lines(
            view,
            marks,
            lines,
            points,
            known[tuple(axis_index[0] for axis_index in lines)],
            outside=outside,
        )


def _fill_lines(
    view: Floats,
    marks: UInt8,
    lines: tuple[NDArray[np.intp], ...],
    points: Floats,
    known: NDArray[np.bool_],
    *,
    outside: bool,
) -> None:
    have = np.flatnonzero(known)
    rows = view[lines]
    stamp = marks[lines]
    for cell in np.flatnonzero(~known):
        right = int(np.searchsorted(have, cell))
        if 0 < right < len(have):
            low, high = int(have[right - 1]), int(have[right])
            share = (points[cell] - points[low]) / (points[high] - points[low])
            rows[:, cell] = rows[:, low] + share * (rows[:, high] - rows[:, low])
            stamp[:, cell] = Provenance.INTERPOLATED
        elif outside:
            rows[:, cell] = _beyond(rows, points, have, int(cell), above=right > 0)
            stamp[:, cell] = Provenance.EXTRAPOLATED
    view[lines] = rows
    marks[lines] = stamp


def _beyond(
    rows: Floats, points: Floats, have: NDArray[np.intp], cell: int, *, above: bool
) -> Floats:
    if not above:
        return np.asarray(rows[:, have[0]])
    last = rows[:, have[-1]]
    if len(have) < 2:
        return np.asarray(last)
    slope = (last - rows[:, have[-2]]) / (points[have[-1]] - points[have[-2]])
    return np.asarray(last + np.maximum(slope, 0.0) * (points[cell] - points[have[-1]]))
