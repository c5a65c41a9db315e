"""Which points nothing beats."""

from collections.abc import Sequence

import numpy as np

BLOCK = 256
"""Rows that are compared with all others at once."""


def pareto_front(values: Sequence[Sequence[float]]) -> list[int]:
    """Indices of rows, all figures to be small, to which no other row is as good in each and better
    in one.
    """
    rows = np.array(values, dtype=float)
    front: list[int] = []
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK, None, :]
        as_good = np.all(rows[None, :, :] <= block, axis=2)
        better = np.any(rows[None, :, :] < block, axis=2)
        beaten = np.any(as_good & better, axis=1)
        front += [first + int(at) for at in np.flatnonzero(~beaten)]
    return front
