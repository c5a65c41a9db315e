"""Published means of a run, where no log of its requests exists: compared, and one constant of the
machine fitted.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite, shown
from llmsim.exact import exact_sum
from llmsim.lowering.adjust.calibration import KIND, SCHEMA_VERSION, Calibration, calibration_of
from llmsim.validation.compare.compare import Value
from llmsim.validation.compare.mismatch import LATENCIES, gross_differences
from llmsim.validation.fit.calibrate import AXES, MOST_OTHER_WORK, check_constant
from llmsim.validation.fit.golden_section import minimise
from llmsim.validation.logs.files import text_of
from llmsim.validation.logs.recording import Finding, Float64, Recording

TIMES: Mapping[str, str] = MappingProxyType(
    {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "latency": "e2el"}
)
"""Our name of a time -> its name in the result of vLLM's benchmark."""
STATISTICS: Mapping[str, str] = MappingProxyType(
    {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
)
AIPERF: Mapping[str, str] = MappingProxyType(
    {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "latency": "request_latency"}
)
"""aiperf's inter-token latency is that of a request: (latency - TTFT) / (tokens - 1), which vLLM
calls TPOT.
"""
COUNTS = ("completed", "total_input_tokens", "total_output_tokens")
FITTED_ON = ("mean_tpot", "mean_latency", "output_throughput")
"""What a constant is fitted on: the first of them that was published. TTFT follows: it is chaotic
where nothing queues, and the throughput of a run that keeps up is its arrivals'.
"""
MOST_LEFT_PERCENT = 1.0
"""Error of the fitted figure above which its constant explains nothing."""
LARGEST = 1e18
"""No figure of a run is larger, in any of the units."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}

SimulateMeans = Callable[[Calibration | None], Recording]


@dataclass(frozen=True)
class Means:
    """What was published of a run: `values` by our names (mean_ttft, p99_tpot, ...; seconds, tokens
    per second).
    """

    source: str
    kind: str
    values: Mapping[str, float]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class MeansComparison:
    """Published beside simulated."""

    means: Means
    simulated: Recording
    values: Mapping[str, Value]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing was found that makes the figures meaningless."""
        return not any(finding.unsound for finding in self.findings)

    def errors(self) -> dict[str, float]:
        """Every error in percent under the names of `Means.values`."""
        return {name: value.error_percent for name, value in self.values.items()}


@dataclass(frozen=True)
class MeansFit:
    """One constant fitted on one published figure; the other figures are predictions."""

    hardware: str
    name: str
    value: float
    fitted_on: str
    unfitted: MeansComparison
    fitted: MeansComparison
    findings: tuple[Finding, ...]


def read_means(path: Path) -> Means | None:
    """The result of `vllm bench serve --save-result`, of `llmsim run --json`, or aiperf's summary;
    None: another file.

    A file with single requests is no table of means: `read_recording` reads it. Raises InputError
    for a number that is none.
    """
    try:
        data = json.loads(text_of(path, "a table of means is JSON")) if path.is_file() else None
    except (InputError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("ttfts"):
        return None
    if isinstance(data.get("time_to_first_token"), dict):
        return _aiperf(path, data)
    if not {f"mean_{name}_ms" for name in TIMES.values()} & data.keys():
        return None
    values = {
        f"{ours}_{name}": _number(path, key, data[key]) / 1e3
        for name, theirs in TIMES.items()
        for ours, word in STATISTICS.items()
        if data.get(key := f"{word}_{theirs}_ms") is not None
    }
    for ours, theirs in (("output_throughput", "output_throughput"), ("makespan", "duration")):
        if data.get(theirs) is not None:
            values[ours] = _number(path, theirs, data[theirs])
    counts = {
        name: int(_number(path, name, data[name])) for name in COUNTS if data.get(name) is not None
    }
    return Means(str(path), "published means", values, counts)


def _aiperf(path: Path, data: Mapping[str, Any]) -> Means:
    values = {}
    for name, key in AIPERF.items():
        metric = data.get(key)
        if not isinstance(metric, dict):
            continue
        unit = _UNITS.get(str(metric.get("unit")))
        if unit is None:
            raise InputError(
                f'{path}: {key}.unit is "{metric.get("unit")}"; it may be {", ".join(_UNITS)}'
            )
        for ours in STATISTICS:
            theirs = "avg" if ours == "mean" else ours
            if metric.get(theirs) is not None:
                values[f"{ours}_{name}"] = _number(path, f"{key}.{theirs}", metric[theirs]) * unit
    rate = data.get("output_token_throughput")
    if isinstance(rate, dict) and rate.get("avg") is not None:
        values["output_throughput"] = _number(path, "output_token_throughput.avg", rate["avg"])
    count = data.get("request_count")
    counts = {}
    if isinstance(count, dict) and count.get("avg") is not None:
        counts["completed"] = int(_number(path, "request_count.avg", count["avg"]))
    return Means(str(path), "aiperf summary", values, counts)


def _number(path: Path, name: str, value: Any) -> float:
    number = finite(value)
    if number is None or not 0 <= number <= LARGEST:
        raise InputError(
            f"{path}: {name} is {shown(value)}; it must be a number from 0 to {LARGEST:g}"
        )
    return number


def compare_means(means: Means, simulated: Recording) -> MeansComparison:
    """Every published figure that the simulation has too; percentiles interpolate linearly."""
    columns: dict[str, Float64 | None] = {
        "ttft": simulated.ttft_s,
        "tpot": simulated.tpot_s,
        "itl": simulated.itl_s,
        "latency": simulated.latency_s,
    }
    ours = {"output_throughput": simulated.output_throughput, "makespan": simulated.makespan_s}
    for name, column in columns.items():
        valid = column[~np.isnan(column)] if column is not None else np.zeros(0)
        if not len(valid):
            continue
        ours[f"mean_{name}"] = float(valid.mean())
        ours |= {f"p{q}_{name}": float(np.percentile(valid, q)) for q in (50, 90, 95, 99)}
    values = {name: Value(real, ours[name]) for name, real in means.values.items() if name in ours}
    both = {name: values.get(f"mean_{name}") for name in LATENCIES}
    means_s = {
        name: (value.real, value.simulated) for name, value in both.items() if value is not None
    }
    mismatches = gross_differences(means_s, "published")
    return MeansComparison(means, simulated, values, (*mismatches, *_findings(means, simulated)))


def _findings(means: Means, simulated: Recording) -> list[Finding]:
    found = []
    for name, (count, there) in _counts(means, simulated).items():
        if count != there:
            sentence = (
                f"{name.replace('_', ' ')}: {count} published, {there} simulated; it is not the "
                "same work"
            )
            found.append(Finding("lengths", True, sentence))
    sentence = (
        "only means are known: no request is compared with itself, and arrivals are those of the "
        "trace"
    )
    return [
        *found,
        *(one for one in simulated.findings if one.unsound),
        Finding("means", False, sentence),
    ]


def _counts(means: Means, simulated: Recording) -> dict[str, tuple[int, int]]:
    """What was published and what was simulated of each count that is known of both."""
    there = {
        "completed": len(simulated),
        "total_input_tokens": exact_sum(simulated.input_tokens),
        "total_output_tokens": exact_sum(simulated.output_tokens),
    }
    return {name: (count, there[name]) for name, count in means.counts.items()}


def calibrate_means(
    means: Means,
    simulate: SimulateMeans,
    *,
    hardware: str,
    wanted: Sequence[str],
    available: Sequence[str],
) -> MeansFit:
    """Fits the one constant that `wanted` names to the first figure of `FITTED_ON` that was
    published.

    Raises InputError where another number of constants is wanted: one figure determines one
    constant.
    """
    if len(wanted) != 1:
        raise InputError(
            f"{means.source}: means determine one constant; say which with one --fit: "
            f"{', '.join(available)}"
        )
    (name,) = wanted
    check_constant(name, available)
    target = next((key for key in FITTED_ON if means.values.get(key)), None)
    if target is None:
        raise InputError(
            f"{means.source}: none of {', '.join(FITTED_ON)} is in it; a constant is fitted on "
            "one of them"
        )
    axis = AXES[name]

    def compared(value: float | None) -> MeansComparison:
        constants = None if value is None else calibration_of(hardware, "calibrate", {name: value})
        return compare_means(means, simulate(constants))

    unfitted = compared(None)
    _refuse_other_work(unfitted)
    found = minimise(lambda value: abs(compared(value).errors()[target]), axis)
    fitted = compared(found.value)
    findings = [*fitted.findings]
    if abs(fitted.errors()[target]) > MOST_LEFT_PERCENT:
        sentence = (
            f"{name} cannot bring {target.replace('_', ' ')} to what was published: "
            f"{fitted.errors()[target]:+.1f} %"
        )
        findings.append(Finding("range", True, sentence))
    return MeansFit(hardware, name, found.value, target, unfitted, fitted, tuple(findings))


def _refuse_other_work(comparison: MeansComparison) -> None:
    """Raises InputError where what was published counts other requests or tokens than the
    simulation.
    """
    for name, (published, simulated) in _counts(comparison.means, comparison.simulated).items():
        if abs(published - simulated) > MOST_OTHER_WORK * published:
            raise InputError(
                f"{comparison.means.source}: {name} is {published}, but {simulated} are simulated; "
                "give the trace that was served"
            )


def means_refusal(fit: MeansFit) -> str | None:
    """Why the constant is not written; None where it brings the figure that it was fitted on to
    what was published.
    """
    before, after = (abs(one.errors()[fit.fitted_on]) for one in (fit.unfitted, fit.fitted))
    if after <= MOST_LEFT_PERCENT and after <= before:
        return None
    reasons = "; ".join(finding.sentence for finding in fit.findings if finding.unsound)
    return (
        f"{fit.name} brings {fit.fitted_on.replace('_', ' ')} from {before:.2f} to {after:.2f} % "
        f"off; nothing was written{': ' if reasons else ''}{reasons}"
    )


def means_fit_json(fit: MeansFit, *, source: str) -> dict[str, Any]:
    """The file that `run --calibration` reads."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "hardware": fit.hardware,
        "constants": calibration_of(fit.hardware, source, {fit.name: fit.value}).constants(),
        "fitted": [fit.name],
        "fitted_on": fit.fitted_on,
        "source": source,
        "errors_percent": {"unfitted": _rounded(fit.unfitted), "fitted": _rounded(fit.fitted)},
        "findings": [vars(finding) for finding in fit.findings],
    }


def means_json(comparison: MeansComparison) -> dict[str, Any]:
    """A comparison as JSON values; seconds, tokens per second, percent."""
    return {
        "schema_version": 1,
        "published": {"source": comparison.means.source, "kind": comparison.means.kind},
        "output": {"source": comparison.simulated.source, "kind": comparison.simulated.kind},
        "sound": comparison.sound,
        "findings": [vars(finding) for finding in comparison.findings],
        "values": {
            name: {
                "real": value.real,
                "simulated": round(value.simulated, 9),
                "error_percent": error,
            }
            for (name, value), error in zip(
                comparison.values.items(), _rounded(comparison).values(), strict=True
            )
        },
    }


def _rounded(comparison: MeansComparison) -> dict[str, float | None]:
    return {
        name: round(error, 4) if np.isfinite(error) else None
        for name, error in comparison.errors().items()
    }
