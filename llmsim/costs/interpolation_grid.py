"""Axes for grids that the native core interpolates linearly."""

import numpy as np

from llmsim.core import Int64


def geometric_axis(first: int, last: int, per_octave: int) -> Int64:
    """Whole numbers from `first` to `last`, both included, about `per_octave` in each doubling; at
    least two points.

    Linear interpolation of x^2 between neighbours of ratio 2^(1/p) is high by at most (ln 2 / p)^2
    / 4: 0.2 % at p = 8.
    """
    last = max(last, first + 1)
    count = int(np.ceil(np.log2(last / first) * per_octave)) + 1
    points = np.rint(first * 2.0 ** (np.arange(count) / per_octave)).astype(np.int64)
    return np.unique(
        np.concatenate([[first], points[(points > first) & (points < last)], [last]]).astype(
            np.int64
        )
    )
