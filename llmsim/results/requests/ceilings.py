"""Whether a percentile of a latency is certain to end above a ceiling, while the run goes on."""

import math
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.core import PS_PER_MS, RequestColumns, Status
from llmsim.results.requests.metrics import Latencies

_SLACK = 1e-6
"""Share, and ms, by which latencies have to be higher: figures are rounded to the nanosecond."""


class Ceiling(Struct, frozen=True):
    """The most that a percentile of a latency may be, ms."""

    latency: str
    """`ttft`, `tpot` or `e2el`."""
    percentile: float
    most_ms: float

    def is_exceeded(self, times: Latencies, requests: int) -> bool:
        """Whether the percentile is above the ceiling, however the requests that are not in `times`
        fare; `requests` is how many there are in all.

        The percentile of n values lies between two neighbours of their order. It is above a ceiling
        if both are: if n - floor((n - 1) q / 100) values are, which is most where all requests
        count.
        """
        last_below = math.floor((requests - 1) * (self.percentile / 100))
        limit_ps = (self.most_ms * (1 + _SLACK) + _SLACK) * PS_PER_MS
        above = getattr(times, f"{self.latency}_ps") > limit_ps
        return int(np.count_nonzero(above)) >= requests - last_below


def least_latencies(
    columns: RequestColumns, asked_tokens: NDArray[np.integer[Any]], now_ps: int
) -> Latencies:
    """What the latencies of finished requests are, and those of unfinished ones will be at least.

    `asked_tokens` are the longest answers, shape (requests,).
    """
    goes_on = np.isin(columns.status, (Status.WAITING, Status.RUNNING, Status.PARKED))
    is_finished = columns.status == Status.FINISHED
    rows = np.flatnonzero(goes_on | is_finished)
    ended = is_finished[rows]
    arrival_ps = columns.arrival_ps[rows]
    finish_ps = np.where(ended, columns.finish_ps[rows], now_ps)
    has_first = columns.first_token_ps[rows] >= 0
    first_ps = np.where(has_first, columns.first_token_ps[rows], now_ps)
    scheduled_ps = np.where(columns.scheduled_ps[rows] >= 0, columns.scheduled_ps[rows], now_ps)
    tokens = np.where(ended, columns.emitted_tokens[rows], asked_tokens[rows])
    several = tokens > 1
    tpot_ps = (finish_ps - first_ps)[several] / (tokens[several] - 1)
    return Latencies(
        first_ps - arrival_ps, finish_ps - arrival_ps, scheduled_ps - arrival_ps, tpot_ps
    )
