"""Sums of int64 columns that cannot overflow: picoseconds, attojoules and bytes over all requests
of a run.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIMB_BITS = 21
_LIMB = (1 << _LIMB_BITS) - 1
_INT64_END = 1 << 63


def exact_sum(values: NDArray[Any], counts: NDArray[Any] | None = None) -> int:
    """Sum of integers, each of them `counts` times, as a Python int.

    Numpy adds in int64 and wraps silently at 9.2 million request-seconds in picoseconds. Columns
    that could wrap are added in three limbs of 21 bits, which is exact for any int64 values and up
    to 2^42 of them, counted ones included. Raises TypeError for columns that are not integers: sums
    of floats depend on their order.
    """
    for column in (values,) if counts is None else (values, counts):
        if column.dtype.kind not in "iub":
            raise TypeError(f"exact_sum adds integers, not {column.dtype}")
    if not len(values):
        return 0
    wide = values.astype(np.int64, copy=False)
    largest = max(abs(int(wide.min())), abs(int(wide.max())))
    total = len(wide) if counts is None else int(counts.sum(dtype=np.int64))
    if largest * total < _INT64_END:
        return _added(wide, counts)
    limbs = (wide & _LIMB, (wide >> _LIMB_BITS) & _LIMB, wide >> (2 * _LIMB_BITS))
    return sum(_added(limb, counts) << (_LIMB_BITS * index) for index, limb in enumerate(limbs))


def _added(values: NDArray[np.int64], counts: NDArray[Any] | None) -> int:
    if counts is not None:
        return int((values * counts).sum(dtype=np.int64))
    return int(values.sum(dtype=np.int64))
