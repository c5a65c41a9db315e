"""Errors of a simulated run against a recorded one: of the distributions, and of each request
against itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim.plurals import counted
from llmsim.validation.compare.comparability import check
from llmsim.validation.logs.pairing import Pairs, pair
from llmsim.validation.logs.recording import Finding, Float64, Recording

METRICS = ("ttft", "tpot", "itl", "latency")
PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", *(f"p{q}" for q in PERCENTILES))
SKIP_SECONDS = 2.0
"""Requests that arrive this early meet a cold engine and are left out of paired figures."""


@dataclass(frozen=True)
class Value:
    """One figure of both runs; seconds, or tokens per second."""

    real: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """Simulated minus real, in percent of the real one."""
        return 100 * (self.simulated / self.real - 1) if self.real else float("nan")


@dataclass(frozen=True)
class Paired:
    """|simulated - real| / real over requests, percent."""

    mape: float
    median: float
    p90: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` found; `statistics[metric][statistic]`, `paired[metric]`, `totals[name]`."""

    pairs: Pairs
    skip_seconds: float
    num_paired: int
    """Requests in paired figures, the cold ones left out."""
    statistics: Mapping[str, Mapping[str, Value]]
    paired: Mapping[str, Paired]
    totals: Mapping[str, Value]
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        """The report of `llmsim validate`."""
        from llmsim.validation.compare.table import markdown

        return markdown(self)

    def __repr__(self) -> str:
        errors = self.errors()
        means = ", ".join(f"{name} {errors[f'mean_{name}']:+.1f} %" for name in self.statistics)
        pairs = f"{counted(self.num_paired, 'request')}"
        return f"Comparison of {pairs}, simulated minus real: mean {means}"

    def _repr_html_(self) -> str:
        """The report for notebooks."""
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    @property
    def sound(self) -> bool:
        """Whether nothing was found that makes the figures meaningless."""
        return not any(finding.unsound for finding in self.findings)

    def errors(self) -> dict[str, float]:
        """Every error in percent by one flat name: mean_ttft, p90_tpot, paired_mape_latency,
        makespan, ...
        """
        flat = {
            f"{statistic}_{metric}": value.error_percent
            for metric, values in self.statistics.items()
            for statistic, value in values.items()
        }
        for metric, errors in self.paired.items():
            flat[f"paired_mape_{metric}"], flat[f"paired_median_{metric}"] = (
                errors.mape,
                errors.median,
            )
        return flat | {name: value.error_percent for name, value in self.totals.items()}

    def as_json(self) -> dict[str, Any]:
        """The whole comparison as JSON values; milliseconds, percent; None where there
        is no value.
        """
        real, simulated = self.pairs.real, self.pairs.simulated
        return {
            "schema_version": 1,
            "log": {"source": real.source, "kind": real.kind},
            "output": {"source": simulated.source, "kind": simulated.kind},
            "requests": len(real),
            "paired_requests": self.num_paired,
            "skip_seconds": self.skip_seconds,
            "sound": self.sound,
            "findings": [vars(finding) for finding in self.findings],
            "metrics": {
                metric: {
                    **{
                        statistic: {
                            "real_ms": _rounded(1000 * value.real),
                            "simulated_ms": _rounded(1000 * value.simulated),
                            "error_percent": _rounded(value.error_percent),
                        }
                        for statistic, value in values.items()
                    },
                    **(
                        {"paired_percent": _paired_json(self.paired[metric])}
                        if metric in self.paired
                        else {}
                    ),
                }
                for metric, values in self.statistics.items()
            },
            **{
                name: {
                    "real": _rounded(value.real),
                    "simulated": _rounded(value.simulated),
                    "error_percent": _rounded(value.error_percent),
                }
                for name, value in self.totals.items()
            },
        }


def _paired_json(paired: Paired) -> dict[str, float | None]:
    return {name: _rounded(value) for name, value in vars(paired).items()}


def _rounded(value: float) -> float | None:
    return round(value, 6) if np.isfinite(value) else None


def compare(
    real: Recording, simulated: Recording, skip_seconds: float = SKIP_SECONDS
) -> Comparison:
    """Pairs two runs and compares them. Percentiles interpolate linearly; answers of one token have
    no TPOT.

    Raises InputError when the runs have no request in common.
    """
    pairs = pair(real, simulated)
    real, simulated = pairs.real, pairs.simulated
    warm = _warm(real, skip_seconds)
    columns = {
        "ttft": (real.ttft_s, simulated.ttft_s),
        "tpot": (real.tpot_s, simulated.tpot_s),
        "latency": (real.latency_s, simulated.latency_s),
    }
    pooled = dict(columns)
    if real.itl_s is not None and simulated.itl_s is not None:
        pooled["itl"] = (real.itl_s, simulated.itl_s)
    statistics = {name: _statistics(*pooled[name]) for name in METRICS if name in pooled}
    totals = {}
    if real.has_arrivals and simulated.has_arrivals:
        totals = {
            "output_throughput": Value(real.output_throughput, simulated.output_throughput),
            "makespan": Value(real.makespan_s, simulated.makespan_s),
        }
    paired = {name: _paired(a[warm], b[warm]) for name, (a, b) in columns.items()}
    findings = check(pairs, skip_seconds)
    return Comparison(pairs, skip_seconds, int(warm.sum()), statistics, paired, totals, findings)


def _warm(real: Recording, skip_seconds: float) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Requests that count in paired figures; all of them where arrivals are unknown or nobody would
    be left.
    """
    warm = (
        real.arrival_s >= skip_seconds if real.has_arrivals else np.ones(len(real), dtype=np.bool_)
    )
    return warm if warm.any() else np.ones(len(real), dtype=np.bool_)


def _statistics(real: Float64, simulated: Float64) -> dict[str, Value]:
    a, b = real[~np.isnan(real)], simulated[~np.isnan(simulated)]
    if not len(a) or not len(b):
        return dict.fromkeys(STATISTICS, Value(float("nan"), float("nan")))
    values = {"mean": Value(float(a.mean()), float(b.mean()))}
    at = (np.percentile(one, PERCENTILES).tolist() for one in (a, b))
    for q, mine, theirs in zip(PERCENTILES, *at, strict=True):
        values[f"p{q}"] = Value(mine, theirs)
    return values


def _paired(real: Float64, simulated: Float64) -> Paired:
    valid = ~np.isnan(real) & ~np.isnan(simulated) & (real > 0)
    if not valid.any():
        return Paired(float("nan"), float("nan"), float("nan"))
    errors = 100 * np.abs(simulated[valid] / real[valid] - 1)
    return Paired(float(errors.mean()), float(np.median(errors)), float(np.percentile(errors, 90)))
