"""Published means of a run, where no log of its requests exists: compared, and one constant of the
machine fitted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.exact import exact_sum
from llmsim.lowering.adjust.calibration import KIND, SCHEMA_VERSION, Calibration, calibration_of
from llmsim.validation.compare.compare import Value
from llmsim.validation.compare.mismatch import LATENCIES, gross_differences
from llmsim.validation.fit.calibrate import AXES, MOST_OTHER_WORK, check_constant
from llmsim.validation.fit.golden_section import minimise
from llmsim.validation.logs.means_readers import Means
from llmsim.validation.logs.recording import Finding, Float64, Recording

FITTED_ON = ("mean_tpot", "mean_latency", "output_throughput")
"""What a constant is fitted on: the first of them that was published. TTFT follows: it is chaotic
where nothing queues, and the throughput of a run that keeps up is its arrivals'.
"""
MOST_LEFT_PERCENT = 1.0
"""Error of the fitted figure above which its constant explains nothing."""

SimulateMeans = Callable[[Calibration | None], Recording]


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
