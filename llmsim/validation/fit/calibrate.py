"""Fits the documented constants of one machine to half of a recording and tests them on the other
half.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from llmsim.config.errors import InputError, nearest
from llmsim.lowering.adjust.calibration import KIND, SCHEMA_VERSION, Calibration, calibration_of
from llmsim.validation.compare.compare import Comparison, compare
from llmsim.validation.compare.mismatch import ANOTHER_SERVER
from llmsim.validation.fit.doctor import SICK_PERCENT, Diagnosis, plausible, score
from llmsim.validation.fit.golden_section import Axis, minimise
from llmsim.validation.fit.link import LINK, LinkFit, undetermined_link
from llmsim.validation.fit.nelder_mead import minimise_together
from llmsim.validation.logs.pairing import Pairs, pair
from llmsim.validation.logs.recording import Finding, Float64, Recording

Simulate = Callable[[Calibration | None], Recording]
"""One full simulation of the recorded trace with the constants given (None: nothing fitted)."""

AXES: Mapping[str, Axis] = MappingProxyType(
    {
        "time_factor": Axis("time_factor", 0.6, 1.6, 2e-4, logarithmic=True, coarse=11),
        "host_gap_ns": Axis("host_gap_ns", 0.0, 12e6, 4e3, logarithmic=False, coarse=7),
        "collective_factor": Axis(
            "collective_factor", 0.1, 10.0, 1e-3, logarithmic=True, coarse=11
        ),
        "link_bandwidth_gb_per_s": Axis(
            "link_bandwidth_gb_per_s", 1.0, 1024.0, 2e-3, logarithmic=True, coarse=11
        ),
        "link_latency_ns": Axis("link_latency_ns", 0.0, 120e3, 50.0, logarithmic=False, coarse=7),
    }
)
"""The constants that may be fitted, and no others: each belongs to a machine, never to a run."""
CLEARLY_BETTER = 0.9
"""A constant is preferred to those named before it only if it lowers the objective by a tenth: most
of them trade against each other, and a machine's speed is the likelier difference.
"""
FITTED_ON = ("latency", "tpot")
MAY_LOSE_PERCENT = 1.0
"""By which one of these errors, that of half of the requests, or the largest of the means may grow
on the held-out half while the error shrinks: single steps are random.
"""
FEWEST = 10
"""Requests of a half."""
OTHER_WORK = ("lengths", "counts")
"""Findings of a log that does not hold the requests that are simulated."""
MOST_OTHER_WORK = 0.01
"""Share of requests that may be missing or of another length, as where a client failed."""
NOISE_PERCENT = 0.2
"""And by more than this: so much does a per cent of random time in every step change the errors of
single requests.
"""
HELD_OUT_TARGET_PERCENT = 0.5
"""Means of the held-out half should agree this well once one constant of the machine is known."""
MEANS = ("mean_ttft", "mean_tpot", "mean_latency")


Doctor = Callable[[Recording, float], Diagnosis | None]
"""Looks for an option that explains a log better than this score of the best constants."""


@dataclass(frozen=True, eq=False)
class Fit:
    """One set of fitted constants: errors of the half that it was fitted on, and of the half that
    it never saw.
    """

    fitted: tuple[str, ...]
    constants: Mapping[str, float]
    objective: float
    """Of the fitted half, percent: see `objective`."""
    fit_half: Comparison
    held_out: Comparison
    simulations: int
    rivals: tuple[Mapping[str, float], ...] = ()
    """Links that were tried, and have no larger error than the one that the requests tell."""


@dataclass(frozen=True, eq=False)
class CalibrationReport:
    """What `calibrate` found: nothing fitted, each constant alone, and the choice among them."""

    hardware: str
    unfitted: Fit
    fits: tuple[Fit, ...]
    chosen: Fit
    other_half: Mapping[str, float]
    """The chosen constants, fitted on the other half instead: how stable they are."""
    cold: int
    """Requests of the first half that were left out, since they met a cold engine."""
    findings: tuple[Finding, ...]


class Calibrator:
    """Simulates with constants, and remembers what it has simulated. Owned by one `calibrate`."""

    def __init__(
        self, real: Recording, simulate: Simulate, hardware: str, skip_seconds: float
    ) -> None:
        self.real = real
        self.hardware = hardware
        self.skip_seconds = skip_seconds
        self._simulate = simulate
        self._done: dict[tuple[tuple[str, float], ...], Recording] = {}

    @property
    def simulations(self) -> int:
        """How many simulations were run."""
        return len(self._done)

    def run(self, constants: Mapping[str, float]) -> Recording:
        """The simulation with these constants."""
        key = tuple(sorted(constants.items()))
        if key not in self._done:
            calibration = (
                calibration_of(self.hardware, "calibrate", constants) if constants else None
            )
            self._done[key] = self._simulate(calibration)
        return self._done[key]

    def halves(self, constants: Mapping[str, float]) -> tuple[Comparison, Comparison]:
        """The first and second half of the requests by arrival, compared; those of the cold engine
        are in neither.
        """
        pairs = pair(self.real, self.run(constants))
        middle = len(pairs.real) // 2
        parts = (range(self._num_cold(pairs.real, middle), middle), range(middle, len(pairs.real)))
        first, second = (self._compare(pairs, rows) for rows in parts)
        return first, second

    def _num_cold(self, real: Recording, middle: int) -> int:
        first = real.arrival_s[:middle]
        cold = int((first < self.skip_seconds).sum()) if real.has_arrivals else 0
        if cold > middle // 2 or middle - cold < FEWEST:
            raise InputError(
                f"{real.source}: {cold} of the {middle} requests of the first half arrive in the "
                f"first {self.skip_seconds:g} s and would be left out; say --skip-seconds 0 if the "
                "engine was warm"
            )
        return cold

    def _compare(self, pairs: Pairs, rows: range) -> Comparison:
        return compare(pairs.real.rows(rows), pairs.simulated.rows(rows), self.skip_seconds)


def objective(comparison: Comparison) -> float:
    """What is minimised: mean absolute error of the requests' latency and TPOT, plus those of their
    means, percent. Answers of one token have no TPOT.

    Paired errors find the constant (means agree by cancellation, pairs do not); the means settle
    what the noise of single requests leaves open. TTFT is left to follow: it is chaotic where
    nothing queues.
    """
    return sum(_parts(comparison).values()) / 2


def single_errors(comparison: Comparison) -> Float64:
    """ln(real / simulated) of the latency and the TPOT of every request."""
    real, simulated = comparison.pairs.real, comparison.pairs.simulated
    times = [(real.latency_s, simulated.latency_s), (real.tpot_s, simulated.tpot_s)]
    ours, theirs = (np.concatenate(columns) for columns in zip(*times, strict=True))
    known = (ours > 0) & (theirs > 0)
    return np.asarray(np.log(ours[known] / theirs[known]), np.float64)


def _parts(comparison: Comparison) -> dict[str, float]:
    errors = comparison.errors()
    both = {name: errors[f"paired_mape_{name}"] + abs(errors[f"mean_{name}"]) for name in FITTED_ON}
    return {name: error for name, error in both.items() if not np.isnan(error)}


def calibrate(
    real: Recording,
    simulate: Simulate,
    *,
    hardware: str,
    wanted: Sequence[str],
    available: Sequence[str],
    skip_seconds: float,
    doctor: Doctor | None = None,
) -> CalibrationReport:
    """Fits on the first half by arrival and tests on the second.

    `wanted` names constants to fit together; empty: each of `available` alone, but the two of the
    link together, and the best of them is chosen. The `doctor` then looks for an option that
    explains more than any of them. Raises InputError for a constant that is not available
    here.
    """
    for name in wanted:
        check_constant(name, available)
    if len(real) < 2 * FEWEST:
        raise InputError(
            f"{real.source}: fitting and testing need two halves of at least {FEWEST} requests; "
            f"the log has {len(real)}"
        )
    if not (real.latency_s > 0).any():
        raise InputError(
            f"{real.source}: no request takes any time, so that no constant can be fitted; give "
            "the time of each last token"
        )
    calibrator = Calibrator(replace(real, itl_s=None), simulate, hardware, skip_seconds)
    _refuse_other_work(real, calibrator.run({}))
    unfitted = _fit(calibrator, (), half=0)
    sets = [tuple(wanted)] if wanted else _one_by_one(available)
    fits = tuple(_fit(calibrator, names, half=0) for names in sets)
    chosen = unfitted
    for fit in fits:
        if _clearly_better(fit, chosen) and not any(loses(fit, to) for to in (unfitted, chosen)):
            chosen = fit
    found = _findings(real, calibrator, chosen, skip_seconds)
    if doctor is not None:
        scores = [
            score(compare(real, calibrator.run(fit.constants), skip_seconds))
            for fit in (unfitted, *fits)
            if plausible(fit.constants)
        ]
        diagnosis = doctor(real, min(scores))
        found += () if diagnosis is None else (diagnosis.finding,)
    swapped = _fit(calibrator, chosen.fitted, half=1) if chosen.fitted else chosen
    rivals = (swapped.constants, *chosen.rivals, *swapped.rivals)
    found += undetermined_link(chosen.constants, rivals)
    paired = len(pair(calibrator.real, calibrator.run({})).real)
    return CalibrationReport(
        hardware,
        unfitted,
        fits,
        chosen,
        swapped.constants,
        paired - len(chosen.fit_half.pairs.real) - len(chosen.held_out.pairs.real),
        found,
    )


def loses(fit: Fit, to: Fit) -> str | None:
    """What the constants make worse, beside others or none, on the half that they were not fitted
    on; None where they improve it.
    """
    before, after = (sum(_parts(one.held_out).values()) / 2 for one in (to, fit))
    if f"{after:.2f}" == f"{before:.2f}":
        return f"the error of the held-out half stays at {before:.2f} %"
    if after > before:
        return f"the error of the held-out half goes from {before:.2f} to {after:.2f} %"
    less, more = _others(to), _others(fit)
    for name, error in less.items():
        if not more[name] <= error + MAY_LOSE_PERCENT:
            return f"the {name} of the held-out half goes from {error:.2f} to {more[name]:.2f} %"
    return None


def why_not(fit: Fit, unfitted: Fit) -> str | None:
    """Why the constants are no better than none; None where they are."""
    before, after = unfitted.objective, fit.objective
    if lost := loses(fit, unfitted):
        return lost
    if _clearly_better(fit, unfitted):
        return None
    return f"the error of the first half goes from {before:.2f} to {after:.2f} %, less than a tenth"


def _others(fit: Fit) -> dict[str, float]:
    """Errors of the held-out half that may not grow much even if all together shrink: a few
    requests, or one of the means, can outweigh the others in a sum.
    """
    parts, errors = _parts(fit.held_out), fit.held_out.errors()
    medians = {f"median error of {name}": errors[f"paired_median_{name}"] for name in parts}
    found = {f"error of {name}": error for name, error in parts.items()}
    return found | medians | {"largest error of a mean": held_out_means_percent(fit)}


NOT_ENOUGH = (
    "no constant lowers the error of the first half by a tenth and loses nothing on the other"
)
"""Why nothing is chosen, where something would be needed."""


def refusal(report: CalibrationReport) -> str | None:
    """Why nothing is written; None where a constant was chosen, or where nothing needs one."""
    another = _said(report, lambda finding: finding.code in ANOTHER_SERVER)
    if another:
        return (
            "the log does not match the options, and no constant of a machine stands for that: "
            f"{another}"
        )
    at_range_end = _said(report, lambda finding: finding.code == "range")
    left_percent = held_out_means_percent(report.chosen)
    if at_range_end and left_percent >= SICK_PERCENT:
        return (
            f"no constant explains the log: {at_range_end}, and the held-out means still differ "
            f"by {left_percent:.2f} %"
        )
    unfitted_percent = held_out_means_percent(report.unfitted)
    if report.chosen.fitted or unfitted_percent <= HELD_OUT_TARGET_PERCENT:
        return None
    reasons = _said(report, lambda finding: finding.unsound)
    return (
        f"the held-out means differ by {unfitted_percent:.2f} %, but {NOT_ENOUGH}; nothing was "
        f"written for {report.hardware}: {reasons or _LACKS}"
    )


_LACKS = "what the model lacks is no constant of the machine"


def _said(report: CalibrationReport, about: Callable[[Finding], bool]) -> str:
    """Sentences of some of its findings."""
    return "; ".join(finding.sentence for finding in report.findings if about(finding))


def _refuse_other_work(real: Recording, simulated: Recording) -> None:
    """Raises InputError where the log does not hold the requests that are simulated."""
    pairs = pair(real, simulated)
    alone = max(len(real), len(simulated)) - len(pairs.real)
    a, b = pairs.real, pairs.simulated
    unequal = np.zeros(len(a), dtype=np.bool_)
    for theirs, ours in ((a.input_tokens, b.input_tokens), (a.output_tokens, b.output_tokens)):
        unequal |= (theirs != ours) & (theirs >= 0) & (ours >= 0)
    if alone + int(np.count_nonzero(unequal)) <= MOST_OTHER_WORK * len(real):
        return
    said = [
        finding.sentence
        for finding in compare(real, simulated).findings
        if finding.code in OTHER_WORK
    ]
    raise InputError(
        f"{real.source} is not a log of what is simulated: {'; '.join(said)}; give the trace "
        "that was recorded"
    )


def _clearly_better(fit: Fit, than: Fit) -> bool:
    noise = NOISE_PERCENT if than.fitted else 0.0
    return (
        fit.objective < CLEARLY_BETTER * than.objective and fit.objective < than.objective - noise
    )


def _one_by_one(available: Sequence[str]) -> list[tuple[str, ...]]:
    return [(name,) for name in available if name not in LINK] + (
        [LINK] if set(LINK) <= set(available) else []
    )


def check_constant(name: str, available: Sequence[str]) -> None:
    """Raises InputError for a name that is no constant, or one that changes nothing in this
    deployment.
    """
    if name not in AXES:
        raise InputError(
            f'--fit "{name}" is no constant{nearest(name, AXES)}; it may be {", ".join(AXES)}'
        )
    if name not in available:
        raise InputError(
            f'--fit "{name}" changes nothing in this deployment; it may be {", ".join(available)}'
        )


def _fit(calibrator: Calibrator, names: tuple[str, ...], *, half: int) -> Fit:
    """One constant alone; several from where they would be one after the other, then all together;
    a link as its requests tell bandwidth from latency.
    """
    before = calibrator.simulations

    seen: list[tuple[float, Mapping[str, float]]] = []

    def error(tried: Mapping[str, float]) -> float:
        found = objective(calibrator.halves(tried)[half])
        seen.append((found, tried))
        return found

    def errors(tried: Mapping[str, float]) -> Float64:
        return single_errors(calibrator.halves(tried)[half])

    if set(names) == set(LINK):
        constants = LinkFit(error, errors, *(AXES[name] for name in LINK)).found()
    else:
        constants = _together(error, names)
    halves = calibrator.halves(constants)
    fitted, held_out = halves[half], halves[1 - half]
    used = calibrator.simulations - before
    least = objective(fitted)
    rivals = tuple(tried for found, tried in seen if found <= least and tried.keys() == {*LINK})
    return Fit(names, constants, least, fitted, held_out, used, rivals)


def _together(
    error: Callable[[Mapping[str, float]], float], names: Sequence[str]
) -> dict[str, float]:
    constants = _one_after_the_other(error, names)
    if len(names) == 1:
        return constants
    axes = [AXES[name] for name in names]
    start = tuple(constants[name] for name in names)
    best = minimise_together(
        lambda values: error(dict(zip(names, values, strict=True))), axes, start
    )
    return dict(zip(names, best, strict=True))


def _one_after_the_other(
    error: Callable[[Mapping[str, float]], float], names: Sequence[str]
) -> dict[str, float]:
    constants: dict[str, float] = {}
    for name in names:

        def alone(value: float, name: str = name) -> float:
            return error({**constants, name: value})

        constants[name] = minimise(alone, AXES[name]).value
    return constants


def _findings(
    real: Recording, calibrator: Calibrator, chosen: Fit, skip_seconds: float
) -> tuple[Finding, ...]:
    whole = compare(real, calibrator.run(chosen.constants), skip_seconds)
    found = [finding for finding in whole.findings if finding.code != "few"]
    for name, value in chosen.constants.items():
        axis = AXES[name]
        if axis.coordinate(value) >= axis.coordinate(axis.largest) - axis.tolerance or (
            axis.logarithmic
            and axis.coordinate(value) <= axis.coordinate(axis.least) + axis.tolerance
        ):
            sentence = (
                f"{name} ends at {value:g}, an end of the searched range: the model lacks "
                "something else"
            )
            found.append(Finding("range", True, sentence))
    if not plausible(chosen.constants):
        shown = ", ".join(f"{name} {value:.3g}" for name, value in chosen.constants.items())
        sentence = (
            f"{shown} makes another machine of the described one; compare hardware, model, dtype, "
            "tensor_parallel_size, engine_profile and cost source with the server"
        )
        found.append(Finding("another machine", True, sentence))
    return tuple(found)


def held_out_means_percent(fit: Fit) -> float:
    """The largest error of the held-out half's mean TTFT, TPOT and latency."""
    errors = fit.held_out.errors()
    return float(np.nanmax([abs(errors[name]) for name in MEANS]))


def calibration_json(report: CalibrationReport, *, source: str) -> dict[str, Any]:
    """The file that `run --calibration` reads: the constants, and beside them how they were
    obtained.
    """
    chosen = report.chosen
    calibration = calibration_of(report.hardware, source, chosen.constants)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "hardware": report.hardware,
        "constants": calibration.constants(),
        "fitted": list(chosen.fitted),
        "source": source,
        "fitted_on_the_other_half": dict(report.other_half),
        "errors_percent": {
            "unfitted": _errors_json(report.unfitted),
            "fitted": _errors_json(chosen),
        },
        "findings": [vars(finding) for finding in report.findings],
    }


def _errors_json(fit: Fit) -> dict[str, dict[str, float]]:
    return {
        name: {
            key: round(error, 4) for key, error in comparison.errors().items() if np.isfinite(error)
        }
        for name, comparison in (("fit_half", fit.fit_half), ("held_out_half", fit.held_out))
    }
