"""What is known of each request of a run, real or simulated, in one form."""

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from llmsim.config.files.reading import finite
from llmsim.core import PS_PER_S, Results, Status
from llmsim.exact import exact_sum
from llmsim.results.requests.metrics import finished_rows

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
UNKNOWN = -1
"""A token count that a log does not hold."""


@dataclass(frozen=True)
class Finding:
    """Something that a reader of a comparison has to know; `unsound`: its figures do not mean what
    they say.
    """

    code: str
    unsound: bool
    sentence: str


@dataclass(frozen=True)
class KvUse:
    """How full the KV cache of a simulated run was; `blocks_given`: the block count was stated, not
    predicted.
    """

    peak_usage: float
    preemptions: int
    blocks_given: bool


@dataclass(frozen=True, eq=False)
class FailedRequests:
    """The requests of a run that did not finish, as far as its log names them; columns of equal
    length.

    `arrival_s` counts from the first arrival of those that finished, so that it may be negative
    (NaN where the log has no arrival).
    """

    request_id: tuple[str, ...] = ()
    arrival_s: Float64 = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(
        cls, rows: Iterable[tuple[str, object]], origin: float, per_second: float = 1.0
    ) -> "FailedRequests":
        """Of the name and the stamp of each, and the stamp of the first arrival; a stamp that is
        no number is unknown.
        """
        found = [(name, finite(stamp)) for name, stamp in rows]
        stamps = [np.nan if stamp is None else (stamp - origin) / per_second for _, stamp in found]
        return cls(tuple(name for name, _ in found), np.array(stamps, np.float64))


@dataclass(frozen=True, eq=False)
class Recording:
    """The finished requests of a run; columns of equal length, seconds; immutable.

    `arrival_s` counts from the run's first arrival (NaN where the log has no arrivals). `ttft_s`
    and `latency_s` are first and last token minus arrival. `itl_s` has all inter-token latencies,
    one request after the other, of which each request has `itl_counts`; both are None where they
    were not kept.
    """

    source: str
    kind: str
    request_id: tuple[str, ...]
    arrival_s: Float64
    ttft_s: Float64
    latency_s: Float64
    input_tokens: Int64
    output_tokens: Int64
    itl_s: Float64 | None = None
    itl_counts: Int64 | None = None
    findings: tuple[Finding, ...] = ()
    kv: KvUse | None = None
    failed: FailedRequests = field(default_factory=FailedRequests)

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def tpot_s(self) -> Float64:
        """(latency - ttft) / (tokens - 1); NaN for answers of one token, which have none."""
        several = self.output_tokens > 1
        tpot = np.full(len(self), np.nan)
        tpot[several] = (self.latency_s - self.ttft_s)[several] / (self.output_tokens[several] - 1)
        return tpot

    @property
    def has_arrivals(self) -> bool:
        """Whether the run says when its requests arrived."""
        return not bool(np.isnan(self.arrival_s).any())

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last token; NaN without arrivals."""
        return float((self.arrival_s + self.latency_s).max() - self.arrival_s.min())

    @property
    def duration_s(self) -> float:
        """From the first arrival of any request, also of one that failed, to the last token."""
        sent = np.concatenate((self.arrival_s, self.failed.arrival_s))
        return float((self.arrival_s + self.latency_s).max() - np.nanmin(sent))

    @property
    def output_throughput(self) -> float:
        """Output tokens per second of the makespan; NaN without arrivals."""
        return exact_sum(self.output_tokens) / self.makespan_s

    def rows(self, rows: Sequence[int] | Int64) -> "Recording":
        """The same recording of some of its requests, in the order of `rows`."""
        chosen = np.asarray(rows, dtype=np.int64)
        itl_s, itl_counts = self._gaps_of(chosen)
        return replace(
            self,
            request_id=tuple(self.request_id[row] for row in chosen.tolist()),
            arrival_s=self.arrival_s[chosen],
            ttft_s=self.ttft_s[chosen],
            latency_s=self.latency_s[chosen],
            input_tokens=self.input_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            itl_s=itl_s,
            itl_counts=itl_counts,
        )

    def _gaps_of(self, rows: Int64) -> tuple[Float64 | None, Int64 | None]:
        """The inter-token latencies of some requests, and how many each has."""
        if self.itl_s is None or self.itl_counts is None:
            return None, None
        counts = self.itl_counts[rows]
        first = (np.cumsum(self.itl_counts) - self.itl_counts)[rows]
        places = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return self.itl_s[places], counts


def counts_of(lists: Sequence[Sized]) -> Int64:
    """How many entries each list has."""
    return np.array([len(one) for one in lists], dtype=np.int64)


def recording_of(results: Results, *, with_itl: bool = False) -> Recording:
    """The finished requests of a simulation that has just run; inter-token latencies only
    if wanted.
    """
    rows = finished_rows(results.requests)
    requests, workload = results.requests, results.workload
    arrival_ps = requests.arrival_ps[rows]
    names = workload.request_id
    gaps = [results.itl_of(row) for row in rows.tolist()] if with_itl else []
    return Recording(
        source="simulation",
        kind="llmsim results",
        request_id=tuple(names[row] if names else str(row) for row in rows.tolist()),
        arrival_s=(arrival_ps - (arrival_ps.min() if len(rows) else 0)) / PS_PER_S,
        ttft_s=(requests.first_token_ps[rows] - arrival_ps) / PS_PER_S,
        latency_s=(requests.finish_ps[rows] - arrival_ps) / PS_PER_S,
        input_tokens=workload.input_tokens[rows].astype(np.int64),
        output_tokens=requests.emitted_tokens[rows].astype(np.int64),
        itl_s=np.concatenate(gaps) / PS_PER_S if gaps else None,
        itl_counts=counts_of(gaps) if gaps else None,
        failed=_failed_of(results, float(arrival_ps.min()) if len(rows) else 0.0),
    )


def _failed_of(results: Results, origin_ps: float) -> FailedRequests:
    """The requests that did not finish; a call that never came has no arrival."""
    requests, names = results.requests, results.workload.request_id
    rows = np.flatnonzero(requests.status != Status.FINISHED).tolist()
    stamps = ((row, int(requests.arrival_ps[row])) for row in rows)
    return FailedRequests.of(
        ((names[row] if names else str(row), None if ps < 0 else ps) for row, ps in stamps),
        origin_ps,
        PS_PER_S,
    )
