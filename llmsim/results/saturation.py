"""Whether requests arrive faster than the cluster serves them, so that latencies say how long the
trace is.
"""

import numpy as np
from msgspec import Struct

from llmsim.core import PS_PER_S, Int64, Results, Status
from llmsim.results.requests.metrics import finished_rows

FEWEST_ARRIVALS = 100
GROWTH = 0.1
"""Seconds of waiting that a second of arrivals adds. At rho times the capacity it is rho - 1; below
it tends to 0.
"""
SERVICE_SHARE = 0.5
"""Waiting must grow by this share of the time that requests compute, or the queue is what a batch
leaves behind.
"""
_WAITING = ("queue_ps", "wait_ps", "preemption_ps")


class Saturation(Struct, frozen=True):
    """Requests per second that arrived and that finished, and how much waiting each second of
    arrivals added.
    """

    arrived_per_s: float
    served_per_s: float
    growth: float

    @property
    def sentence(self) -> str:
        """The note of a run."""
        return (
            "the load is above what the cluster serves: requests arrive at "
            f"{_rate(self.arrived_per_s)}/s and finish at {_rate(self.served_per_s)}/s, so that "
            "the queue and all latencies grow for as long as requests arrive"
        )


def saturation(results: Results) -> Saturation | None:
    """None where waiting does not grow with the time of arrival; for open loops, whose arrivals
    wait for no answer.

    Waiting is what the causes of latency call queue, wait and preemption, whatever the scheduler.
    Its mean over the last quarter of arrivals is compared with the first quarter's; later calls of
    sessions are left out, as they wait for answers. Runs with fewer than FEWEST_ARRIVALS finished
    requests say nothing.
    """
    external = results.workload.arrival_ps >= 0
    rows = finished_rows(results.requests)
    rows = rows[external[rows]]
    arrived = np.flatnonzero(external & (results.requests.status != Status.PENDING))
    if len(rows) < FEWEST_ARRIVALS:
        return None
    requests = results.requests
    rows = rows[np.argsort(requests.arrival_ps[rows], kind="stable")]
    waiting_s = _seconds(
        sum((results.blame[name][rows] for name in _WAITING), np.zeros(len(rows), dtype=np.int64))
    )
    latency_s = _seconds(requests.finish_ps[rows] - requests.arrival_ps[rows])
    arrival_s = _seconds(requests.arrival_ps[rows])
    quarter = len(rows) // 4
    between_s = float(arrival_s[-quarter:].mean() - arrival_s[:quarter].mean())
    added_s = float(waiting_s[-quarter:].mean() - waiting_s[:quarter].mean())
    span_s = float(arrival_s[-1] - arrival_s[0])
    if between_s <= 0 or span_s <= 0:
        return None
    arrived_per_s = (len(arrived) - 1) / _span_s(requests.arrival_ps[arrived])
    served_per_s = len(rows) / float((arrival_s + latency_s).max() - arrival_s[0])
    grows = added_s >= GROWTH * between_s and added_s >= SERVICE_SHARE * float(
        (latency_s - waiting_s).mean()
    )
    if not grows or served_per_s >= arrived_per_s:
        return None
    return Saturation(arrived_per_s, served_per_s, added_s / between_s)


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _seconds(times_ps: Int64) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return times_ps / PS_PER_S


def _span_s(times_ps: Int64) -> float:
    return float(times_ps.max() - times_ps.min()) / PS_PER_S
