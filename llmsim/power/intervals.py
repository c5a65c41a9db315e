"""Sets of time as sorted, disjoint intervals, and how much of them lies before each of
many times.
"""

import numpy as np
from msgspec import Struct

from llmsim.core import Int64
from llmsim.exact import exact_sum


class Intervals(Struct, frozen=True, eq=False):
    """`[start_ps[i], end_ps[i])`, ascending and disjoint; int64, equal lengths."""

    start_ps: Int64
    end_ps: Int64

    @property
    def total_ps(self) -> int:
        """Length of all of them."""
        return exact_sum(self.end_ps - self.start_ps)

    def before(self, times_ps: Int64) -> Int64:
        """How much of the set lies before each time; shape of `times_ps`, ps."""
        if not len(self.start_ps):
            return np.zeros(len(times_ps), np.int64)
        until = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.end_ps - self.start_ps)])
        begun = np.searchsorted(self.start_ps, times_ps, side="left")
        last = np.maximum(begun - 1, 0)
        beyond = np.maximum(self.end_ps[last] - times_ps, 0)
        covered: Int64 = np.where(begun > 0, until[begun] - beyond, 0)
        return covered


def union(start_ps: Int64, end_ps: Int64) -> Intervals:
    """What any of the intervals covers; starts ascend, intervals may overlap (batches of a pipeline
    do).
    """
    if not len(start_ps):
        return Intervals(start_ps, end_ps)
    reached = np.maximum.accumulate(end_ps)
    start = np.maximum(start_ps[1:], reached[:-1])
    start = np.concatenate([start_ps[:1], start])
    real = reached > start
    return Intervals(start[real], reached[real])


def after_each(work: Intervals, length_ps: int, end_ps: int) -> Intervals:
    """The stretch of at most `length_ps` after each interval, until the next one or `end_ps`."""
    following = (
        np.concatenate([work.start_ps[1:], np.array([end_ps], np.int64)])
        if len(work.start_ps)
        else work.end_ps
    )
    # A standby of years must not pass the end of int64.
    stop = work.end_ps + np.minimum(length_ps, np.maximum(following - work.end_ps, 0))
    real = stop > work.end_ps
    return Intervals(work.end_ps[real], stop[real])
