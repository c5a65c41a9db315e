"""How two runs differ, metric by metric, and which differences are more than chance.

One pair of runs is tested by its request pairs: a circular block bootstrap (D. N. Politis and
J. P. Romano, 1992) over the requests in order of arrival, with blocks of 2 sqrt(n) requests, since
requests that queue together share their fate. Its standard error rests on few blocks, and that of a
percentile on the requests beyond it: Student's t has as many degrees of freedom, less one. Several
pairs, one per seed, are tested by Student's t over the pairs. Both test the logarithm of B / A: the
metrics are positive, and an interval of their ratio never goes below 0, which is -100 %. Where all
pairs change alike there is no spread, and the sign test of n pairs gives 2^(1-n); one pair says
nothing of chance. Holm's procedure (S. Holm, 1979) keeps the chance of any false alarm over all
metrics at `alpha`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmsim.config.errors import InputError
from llmsim.exact import exact_sum
from llmsim.validation.logs.pairing import Pairs
from llmsim.validation.logs.recording import Float64, Int64, Recording

STATISTICS: Mapping[str, float | None] = {
    "mean": None,
    "median": 50.0,
    "p90": 90.0,
    "p95": 95.0,
    "p99": 99.0,
}
"""Name of a statistic, and its percentile; None: the mean."""
WHOLE_RUN: Mapping[str, Callable[[Recording], float]] = {
    "duration": lambda run: run.duration_s,
    "request_throughput": lambda run: len(run) / run.duration_s,
    "output_throughput": lambda run: exact_sum(run.output_tokens) / run.duration_s,
}
"""One number per run (s, requests/s, tokens/s), of all of its requests: its chance is known over
several seeds only.
"""
RESAMPLED_VALUES = 20_000_000
"""Values drawn for one statistic: bounds time for long runs."""
DRAWN_AT_ONCE = 100_000
"""Values of resamples that are drawn and sorted together, or of one resample: bounds memory."""
MOST_RESAMPLES, FEWEST_RESAMPLES = 500, 100
MOST_LOG_RATIO = 100.0
"""Of an interval's end: further up it says nothing, and its exponential would leave floats."""
FEWEST_BLOCKS = 8
"""Of the block bootstrap: short runs have shorter blocks, so that resamples differ."""


class Sample(ABC):
    """Milliseconds that the requests of a run took, in order of arrival."""

    requests: int
    """How many there are."""
    values: int
    """How many values they have."""

    @abstractmethod
    def statistics(self) -> Float64:
        """The mean and the percentiles, linear between neighbours in rank."""

    @abstractmethod
    def resampled(self, rows: Int64) -> Float64:
        """The same of the requests of each resample, whose shape is (resamples, requests)."""


class OnePerRequest(Sample):
    """A value for each request."""

    def __init__(self, ms: Float64) -> None:
        self.requests = self.values = len(ms)
        self._ms = ms

    def statistics(self) -> Float64:
        return _statistics(self._ms)

    def resampled(self, rows: Int64) -> Float64:
        return _statistics(self._ms[rows])


class SeveralPerRequest(Sample):
    """The values of all requests together, of which each request brings its own ones."""

    def __init__(self, ms: Float64, counts: Int64) -> None:
        self.requests, self.values = len(counts), len(ms)
        order = np.argsort(ms, kind="stable")
        self._ordered = ms[order]
        self._request = np.repeat(np.arange(len(counts)), counts)[order]
        self._counts = counts
        self._sums = np.add.reduceat(ms, np.cumsum(counts) - counts) if len(ms) else ms

    def statistics(self) -> Float64:
        return _statistics(self._ordered)

    def resampled(self, rows: Int64) -> Float64:
        return np.array([self._of_resample(one) for one in rows])

    def _of_resample(self, drawn: Int64) -> Float64:
        times = np.bincount(drawn, minlength=self.requests)
        total = int(times @ self._counts)
        up_to = np.cumsum(times[self._request])
        below, above, part = _ranks(total - 1)
        lower, upper = (
            self._ordered[np.searchsorted(up_to, rank, side="right")] for rank in (below, above)
        )
        return np.concatenate(([times @ self._sums / total], lower + part * (upper - lower)))


def _one_per_request(of_request: Callable[[Recording], Float64]) -> "SamplesOf":
    """Of the requests that have the latency in both runs."""

    def samples(pair: Pairs) -> tuple[Sample, Sample]:
        a, b = of_request(pair.real) * 1e3, of_request(pair.simulated) * 1e3
        known = ~(np.isnan(a) | np.isnan(b))
        return OnePerRequest(a[known]), OnePerRequest(b[known])

    return samples


def _between_tokens(pair: Pairs) -> tuple[Sample, Sample]:
    """Of the requests that have times between tokens in both runs; none where a log lacks them."""
    real, simulated = pair.real, pair.simulated
    if real.itl_counts is None or simulated.itl_counts is None:
        return OnePerRequest(np.empty(0)), OnePerRequest(np.empty(0))
    known = np.flatnonzero((real.itl_counts > 0) & (simulated.itl_counts > 0))
    return _gaps_of(real.rows(known)), _gaps_of(simulated.rows(known))


def _gaps_of(run: Recording) -> Sample:
    assert run.itl_s is not None and run.itl_counts is not None, "the caller looked"
    return SeveralPerRequest(run.itl_s * 1e3, run.itl_counts)


SamplesOf = Callable[[Pairs], tuple[Sample, Sample]]
LATENCIES: Mapping[str, SamplesOf] = {
    "ttft": _one_per_request(lambda run: run.ttft_s),
    "tpot": _one_per_request(lambda run: run.tpot_s),
    "itl": _between_tokens,
    "e2el": _one_per_request(lambda run: run.latency_s),
}
"""What both runs of a pair have of each latency."""


def _statistics(values: Float64) -> Float64:
    """Shape (..., statistics) of values of shape (..., requests): the mean and the percentiles,
    linear between neighbours in rank.
    """
    ordered = np.sort(values)
    below, above, part = _ranks(ordered.shape[-1] - 1)
    lower, upper = ordered[..., below], ordered[..., above]
    between = lower + part * (upper - lower)
    return np.concatenate((ordered.mean(axis=-1, keepdims=True), between), axis=-1)


def _ranks(last: int) -> tuple[Int64, Int64, Float64]:
    """Of each percentile the ranks of its neighbours, and how far it is from the lower one; `last`
    is the highest rank.
    """
    percentiles = [percentile for percentile in STATISTICS.values() if percentile is not None]
    ranks = np.array(percentiles) / 100 * last
    below = ranks.astype(np.int64)
    return below, np.minimum(below + 1, last), ranks - below


@dataclass(frozen=True)
class Difference:
    """One metric of run A and of run B; latencies in ms, throughputs per second, durations in s."""

    a: float
    b: float
    ci: tuple[float, float] | None
    """Bounds of `delta_pct` at the confidence 1 - alpha; None where chance cannot be known."""
    p: float | None
    """Probability of a difference at least as large by chance."""
    significant: bool | None = None
    """Whether p passes Holm's procedure over all metrics."""

    @property
    def delta_pct(self) -> float | None:
        """B minus A in percent of A; None where A is 0 and B is not."""
        return _percent(self.a, self.b)


def differences(
    pairs: Sequence[Pairs], alpha: float = 0.05, seed: int = 0
) -> dict[str, Difference]:
    """Every metric of both runs; `pairs` holds one pair of runs, or one per seed.

    `alpha` is the chance of any false alarm, between 0 and 1; `seed` draws the resamples. Raises
    InputError where no request is in both runs of a pair.
    """
    found = _of_latencies(pairs, alpha, seed) | _of_whole_runs(pairs, alpha)
    if not found:
        raise InputError("the runs have no latency in common; record arrivals and first tokens")
    return _holm(found, alpha)


def _of_latencies(pairs: Sequence[Pairs], alpha: float, seed: int) -> dict[str, Difference]:
    """Of the latencies that requests of every pair have."""
    found: dict[str, Difference] = {}
    for name, samples_of in LATENCIES.items():
        samples = [samples_of(one) for one in pairs]
        if all(a.requests for a, _ in samples):
            of_latency = _of_requests(samples, alpha, seed)
            found |= {f"{statistic}_{name}_ms": one for statistic, one in of_latency.items()}
    return found


def _of_whole_runs(pairs: Sequence[Pairs], alpha: float) -> dict[str, Difference]:
    """Of makespan and throughput, where every run has arrivals."""
    if not all(run.has_arrivals for one in pairs for run in one.runs):
        return {}
    found: dict[str, Difference] = {}
    for name, of_run in WHOLE_RUN.items():
        ends = [(of_run(one.runs[0]), of_run(one.runs[1])) for one in pairs]
        found[name] = _of_seeds(ends, alpha) if len(ends) > 1 else _single(*ends[0])
    return found


def _of_requests(
    samples: Sequence[tuple[Sample, Sample]], alpha: float, seed: int
) -> dict[str, Difference]:
    """The statistics of one latency."""
    ends = [(a.statistics(), b.statistics()) for a, b in samples]
    if len(ends) > 1:
        return {
            name: _of_seeds([(float(a[at]), float(b[at])) for a, b in ends], alpha)
            for at, name in enumerate(STATISTICS)
        }
    (a, b), (before, after) = samples[0], ends[0]
    befores, afters = _resampled(a, b, np.random.default_rng(seed))
    return {
        name: _tested(
            float(before[at]),
            float(after[at]),
            Spread.of(befores[:, at], afters[:, at], a.requests, _freedom(a.requests, tail)),
            alpha,
        )
        for at, (name, tail) in enumerate(STATISTICS.items())
    }


def _freedom(count: int, percentile: float | None) -> int:
    """Degrees of freedom of a statistic of `count` requests: its blocks, or the requests beyond the
    percentile where those are fewer, less one.
    """
    observed = count / _block_length(count)
    if percentile is not None:
        observed = min(observed, count * (1 - percentile / 100))
    return max(1, round(observed) - 1)


def _resampled(a: Sample, b: Sample, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """The statistics of A and those of B in resamples of request pairs, each of shape (resamples,
    statistics). The same requests are drawn for both runs.
    """
    count, values = a.requests, max(a.values, b.values)
    resamples = int(np.clip(RESAMPLED_VALUES // values, FEWEST_RESAMPLES, MOST_RESAMPLES))
    befores, afters = np.empty((2, resamples, len(STATISTICS)))
    at_once = max(1, DRAWN_AT_ONCE // count)
    for first in range(0, resamples, at_once):
        part = slice(first, min(first + at_once, resamples))
        rows = _block_rows(count, part.stop - part.start, rng)
        befores[part], afters[part] = a.resampled(rows), b.resampled(rows)
    return befores, afters


def _block_length(count: int) -> int:
    return max(1, min(round(2 * math.sqrt(count)), count // FEWEST_BLOCKS))


def _block_rows(count: int, resamples: int, rng: np.random.Generator) -> Int64:
    """The requests of each resample, of shape (resamples, count)."""
    length = _block_length(count)
    starts = rng.integers(0, count, size=(resamples, -(-count // length), 1))
    rows = (starts + np.arange(length)) % count
    return rows.reshape(resamples, -1)[:, :count]


def _of_seeds(ends: Sequence[tuple[float, float]], alpha: float) -> Difference:
    """Student's t over the pairs' differences."""
    a, b = np.array(ends).T
    spread = Spread.of(a, b, len(ends), len(ends) - 1, of_mean=True)
    return _tested(float(a.mean()), float(b.mean()), spread, alpha)


@dataclass(frozen=True)
class Spread:
    """The standard error of a relative difference, and the scale on which it counts."""

    error: float
    pairs: int
    """Request pairs, or pairs of runs, that were observed."""
    freedom: int
    """Degrees of freedom."""
    by_ratio: bool
    """Whether the error is that of log(B / A), else of (B - A) / A: a ratio of 0 has no
    logarithm.
    """

    @classmethod
    def of(
        cls, a: Float64, b: Float64, pairs: int, freedom: int, *, of_mean: bool = False
    ) -> "Spread":
        """What samples of both runs say: of the value, or of their mean."""
        by_ratio = bool(np.all(a > 0) and np.all(b > 0))
        samples = np.log(b / a) if by_ratio else (b - a) / np.where(a == 0, 1.0, a)
        parts = math.sqrt(len(a)) if of_mean else 1.0
        return cls(float(samples.std(ddof=1)) / parts, pairs, freedom, by_ratio)

    def distance(self, a: float, b: float) -> float:
        """How far B is from A on the scale."""
        return math.log(b / a) if self.by_ratio else (b - a) / (a or 1.0)

    def percent(self, distance: float) -> float:
        """The relative difference at a distance, from -100 % on."""
        if not self.by_ratio:
            return 100 * max(-1.0, distance)
        return 100 * math.expm1(min(distance, MOST_LOG_RATIO))


def _tested(a: float, b: float, spread: Spread, alpha: float) -> Difference:
    """Student's t of a difference."""
    from scipy.stats import t

    delta = _percent(a, b)
    if delta is None:
        return Difference(a, b, None, None)
    if spread.pairs == 1:
        return _single(a, b)
    if spread.error == 0:
        return Difference(a, b, (delta, delta), 1.0 if delta == 0 else 2.0 ** (1 - spread.pairs))
    distance = spread.distance(a, b)
    p = 2 * float(t.sf(abs(distance) / spread.error, spread.freedom))
    width = float(t.ppf(1 - alpha / 2, spread.freedom)) * spread.error
    return Difference(a, b, (spread.percent(distance - width), spread.percent(distance + width)), p)


def _single(a: float, b: float) -> Difference:
    """One number of one run: equal, or different by nobody knows what chance."""
    return Difference(a, b, (0.0, 0.0), 1.0) if a == b else Difference(a, b, None, None)


def _percent(a: float, b: float) -> float | None:
    if a == 0:
        return 0.0 if b == 0 else None
    return 100 * ((b - a) / a)


def _holm(found: Mapping[str, Difference], alpha: float) -> dict[str, Difference]:
    tested = sorted((one.p, name) for name, one in found.items() if one.p is not None)
    passes = True
    verdicts: dict[str, bool] = {}
    for rank, (p, name) in enumerate(tested):
        passes = passes and p <= alpha / (len(tested) - rank)
        verdicts[name] = passes
    return {
        name: Difference(one.a, one.b, one.ci, one.p, verdicts.get(name))
        for name, one in found.items()
    }
