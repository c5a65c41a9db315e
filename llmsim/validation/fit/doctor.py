"""Finds the engine option that would explain a log which the described deployment contradicts.

A real machine is a few per cent faster or slower than its tables, so each option is judged at the
speed that suits it best: an option that leaves a machine of 6 % less speed explains the log, too.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from llmsim.config.errors import LlmsimError
from llmsim.validation.compare.compare import Comparison, compare
from llmsim.validation.compare.mismatch import LEAST_TTFT_S
from llmsim.validation.fit.golden_section import Axis, Minimum, minimise
from llmsim.validation.fit.suspects import Described, Suspect, suspects
from llmsim.validation.logs.recording import Finding, Recording

SimulateWith = Callable[[Mapping[str, Any], Mapping[str, float]], Recording]
"""Simulates with some options changed and with constants of the machine; raises LlmsimError where
the options contradict others.
"""

SICK_PERCENT = 4.0
"""Error of a simulation from which its options are doubted: cost tables alone err by less."""
HEALTHY_PERCENT = 1.0
"""Error that constants of a machine leave, below which they explain the log."""
EXPLAINS = 0.5
"""An option is named if it halves the error, and that which constants of the machine leave."""
ALIKE, ALIKE_PERCENT = 1.15, 0.3
"""Options whose errors differ by less explain a log equally; the likelier one is named."""
FEWEST = 10
"""Requests from which a log says more than chance."""
OTHER_WORK = ("lengths", "counts")
"""Findings of a log that does not hold the requests that are simulated."""
SETTLED = 0.005
"""Relative differences that no longer count: of factors, and of mean TPOTs."""
SPEED = Axis("time_factor", 0.75, 1.33, 0.01, logarithmic=True, coarse=7)
"""Factors on operator times that a machine may need: beyond, it is another machine."""
ANY_SPEED = Axis("time_factor", 0.3, 3.0, 0.02, logarithmic=True, coarse=9)
GAP = Axis("host_gap_ns", 0.0, 3e6, 5e4, logarithmic=False, coarse=6)
"""Idle times between two steps that a host may need beside those of the engine profile."""
ANY_GAP = Axis("host_gap_ns", 0.0, 24e6, 2e5, logarithmic=False, coarse=9)
AS_WELL_AS, AS_WELL_AS_PERCENT = 2.0, 0.5
"""An option must explain nearly as much as larger constants: tables may be of another card."""
PER_SPEED = 10.0
"""Error in percent that a factor on operator times counts like, for each unit of its logarithm."""
TRIES = 3
"""Simulations of an option in the first round: each corrects the machine by what those before it
say.
"""
FINALISTS = 3
"""Options of the second round, which looks for the speed that suits each of them best."""
FIRST_STEP = 1.06
NOTHING: Mapping[str, float] = MappingProxyType({"time_factor": 1.0, "host_gap_ns": 0.0})
"""Values of constants that change nothing."""
NEARBY: Mapping[str, Axis] = MappingProxyType(
    {
        "num_gpu_blocks_override": Axis("blocks", 0.94, 1.06, 6e-3, logarithmic=True, coarse=5),
        "max_num_batched_tokens": Axis("tokens", 0.6, 1.6, 0.05, logarithmic=True, coarse=7),
    }
)
"""Values that are tried near the best one, as factors, where a log shows no value itself."""


@dataclass(frozen=True)
class Diagnosis:
    """The option that explains the log best: the error with it and without, percent."""

    suspect: Suspect
    before: float
    after: float
    time_factor: float = 1.0
    """The factor on operator times at which the option explains the log."""

    @property
    def finding(self) -> Finding:
        """The diagnosis as a finding of a comparison."""
        one = self.suspect
        far = abs(self.time_factor - 1) >= SETTLED
        machine = f" with operator times x{self.time_factor:.3g}" if far else ""
        sentence = (
            f"{one.option} {_shown(one.value)} would explain the log: the mean error of TTFT, TPOT "
            f"and latency goes from {self.before:.1f} to {self.after:.1f} %{machine} "
            f"({one.evidence})"
        )
        return Finding("option", True, sentence)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def score(comparison: Comparison) -> float:
    """How far a simulation is from a log, percent: means and single requests, TTFT included.

    A network or a front end adds milliseconds to a TTFT, which are no error of an option: that of a
    short one counts as part of a tenth of a second.
    """
    errors, ttft = comparison.errors(), comparison.statistics["ttft"]["mean"]
    means = [
        100 * abs(ttft.simulated - ttft.real) / max(ttft.real, LEAST_TTFT_S),
        *(abs(errors[f"mean_{name}"]) for name in ("tpot", "latency")),
    ]
    paired = [errors[f"paired_mape_{name}"] for name in ("tpot", "latency")]
    known = [error for error in (*means, *paired) if not np.isnan(error)]
    return float(np.mean(known)) if known else 0.0


def sick(comparison: Comparison) -> bool:
    """Whether a simulation is so far from a log that its options are doubted."""
    return score(comparison) >= SICK_PERCENT


def served_other_work(comparison: Comparison) -> bool:
    """Whether the log holds other requests than the simulation."""
    return any(finding.code in OTHER_WORK for finding in comparison.findings)


def arrivals_explain(comparison: Comparison, at_the_logs: Recording) -> Finding | None:
    """What to say where the same options at the arrivals of the log explain it; else None."""
    real = comparison.pairs.real
    before = score(comparison)
    after = score(compare(real, at_the_logs, comparison.skip_seconds))
    if after > EXPLAINS * before:
        return None
    sentence = (
        f"the log's arrivals (--arrivals) would explain the log: the mean error of TTFT, TPOT and "
        f"latency goes from {before:.1f} to {after:.1f} %"
    )
    return Finding("option", True, sentence)


@dataclass(frozen=True)
class _Explained:
    """The best score of one option, and the factor on operator times that it was reached with."""

    score: float
    time_factor: float


def diagnose(
    real: Recording,
    simulate: SimulateWith,
    described: Described,
    skip_seconds: float,
    with_constants: float = np.inf,
) -> Diagnosis | None:
    """The option whose other value explains the log; None where none does.

    `with_constants` is the score of the best calibration: an option must explain more.
    """
    if with_constants < HEALTHY_PERCENT or len(real) < FEWEST:
        return None
    doctor = _Doctor(replace(real, itl_s=None), simulate, skip_seconds)
    before = doctor.score({}, {})
    if before < SICK_PERCENT:
        return None
    left = min(
        with_constants, doctor.at_best({}, SPEED).objective, doctor.at_best({}, GAP).objective
    )
    if left < HEALTHY_PERCENT:
        return None
    another_machine = min(
        doctor.at_best({}, ANY_SPEED).objective, doctor.at_best({}, ANY_GAP).objective
    )
    most = min(
        EXPLAINS * before, EXPLAINS * left, AS_WELL_AS * another_machine + AS_WELL_AS_PERCENT
    )
    found = [
        (suspect, explained)
        for suspect, explained in doctor.finals(suspects(real, described))
        if explained.score <= most and _credible(suspect, explained)
    ]
    if not found:
        return None
    least = min(explained.score for _, explained in found)
    alike = max(ALIKE * least, least + ALIKE_PERCENT)
    suspect, explained = _likeliest([one for one in found if one[1].score <= alike])
    return Diagnosis(suspect, before, explained.score, explained.time_factor)


def _likeliest(alike: Sequence[tuple[Suspect, _Explained]]) -> tuple[Suspect, _Explained]:
    """The first that the log shows; else that which leaves the least error and needs a machine
    whose speed is nearest to its tables'.
    """
    shown = [one for one in alike if one[0].seen]
    if shown:
        return shown[0]
    return min(alike, key=lambda one: one[1].score + PER_SPEED * abs(math.log(one[1].time_factor)))


def _credible(suspect: Suspect, explained: _Explained) -> bool:
    """An option that the log does not show must leave no more than cost tables do."""
    return suspect.seen or explained.score < SICK_PERCENT


def plausible(constants: Mapping[str, float]) -> bool:
    """Whether constants of a machine may be those of the machine that is described."""
    return all(
        axis.least <= constants.get(axis.name, NOTHING[axis.name]) <= axis.largest
        for axis in (SPEED, GAP)
    )


class _Doctor:
    """Simulates one log with options and constants of the machine."""

    def __init__(self, real: Recording, simulate: SimulateWith, skip_seconds: float) -> None:
        self._real, self._simulate, self._skip_seconds = real, simulate, skip_seconds
        self._most_served = 0
        self._described: dict[tuple[tuple[str, float], ...], Comparison] = {}

    def score(self, changed: Mapping[str, Any], constants: Mapping[str, float]) -> float:
        """The error of one simulation; infinite where it turns requests away."""
        return self._score(self._compared(changed, constants))

    def _score(self, compared: Comparison) -> float:
        served = len(compared.pairs.real)
        self._most_served = max(served, self._most_served)
        return score(compared) if served == self._most_served else np.inf

    def finals(self, tried: Iterable[Suspect]) -> list[tuple[Suspect, _Explained]]:
        """The options that explain most in a first round, at the speeds that suit them best; the
        likelier ones first.
        """
        first = []
        for number, suspect in enumerate(tried):
            try:
                explained = self._at_some_speed({suspect.option: suspect.value})
            except LlmsimError:  # the value contradicts another option of the server
                continue
            first.append((explained.score, number, suspect, explained))
        best: dict[str, tuple[float, int, Suspect, _Explained]] = {}
        for one in sorted(first, key=lambda one: one[:2]):
            best.setdefault(f"{one[2].option} {one[2].value}", one)
        finalists = sorted(list(best.values())[:FINALISTS], key=lambda one: one[1])
        return [self._refined(suspect, explained) for _, _, suspect, explained in finalists]

    def at_best(self, changed: Mapping[str, Any], axis: Axis) -> Minimum:
        """The least error over one constant of the machine, by golden sections."""
        return minimise(lambda value: self.score(changed, {axis.name: value}), axis)

    def _at_some_speed(self, changed: Mapping[str, Any]) -> _Explained:
        """The least error over a few factors on operator times, by the secants of the mean TPOT:
        where requests queue, it grows faster than the times of operators.
        """
        tried: list[tuple[float, float]] = []
        best, logarithm = _Explained(np.inf, 1.0), 0.0
        for _ in range(TRIES):
            compared = self._compared(changed, {SPEED.name: math.exp(logarithm)})
            explained = _Explained(self._score(compared), math.exp(logarithm))
            best = min(best, explained, key=_score)
            tpot = compared.statistics["tpot"]["mean"]
            known = tpot.real > 0 and tpot.simulated > 0
            if not known or abs(tpot.simulated / tpot.real - 1) < SETTLED:
                break
            tried.append((logarithm, math.log(tpot.simulated / tpot.real)))
            least, largest = math.log(SPEED.least), math.log(SPEED.largest)
            logarithm = min(max(_secant(tried), least), largest)
            if any(abs(logarithm - before) < SETTLED for before, _ in tried):
                break
        return best

    def _refined(self, suspect: Suspect, explained: _Explained) -> tuple[Suspect, _Explained]:
        """A finalist at the speed, and with the value near its own, that suit it best."""
        if explained.score > SETTLED:
            found = self.at_best({suspect.option: suspect.value}, SPEED)
            explained = min(explained, _Explained(found.objective, found.value), key=_score)
        nearby = NEARBY.get(suspect.option)
        if nearby is None or explained.score <= SETTLED:
            return suspect, explained
        constants = {SPEED.name: explained.time_factor}

        def value(factor: float) -> int:
            return max(1, round(factor * int(suspect.value)))

        def error(factor: float) -> float:
            try:
                return self.score({suspect.option: value(factor)}, constants)
            except LlmsimError:  # too few for another option of the server
                return np.inf

        found = minimise(error, nearby)
        if found.objective >= explained.score:
            return suspect, explained
        refined = replace(suspect, value=value(found.value))
        return refined, replace(explained, score=found.objective)

    def _compared(self, changed: Mapping[str, Any], constants: Mapping[str, float]) -> Comparison:
        """One simulation beside the log; those of the described options are remembered."""
        needed = {name: value for name, value in constants.items() if value != NOTHING[name]}
        key = tuple(needed.items())
        if not changed and key in self._described:
            return self._described[key]
        compared = compare(self._real, self._simulate(changed, needed), self._skip_seconds)
        if not changed:
            self._described[key] = compared
        return compared


def _score(explained: _Explained) -> float:
    return explained.score


def _secant(tried: Sequence[tuple[float, float]]) -> float:
    """The logarithm of the factor where that of the ratio of TPOTs should be 0; one small step
    where there is one point, or where the last two say nothing.
    """
    at, ratio = tried[-1]
    if len(tried) > 1:
        slope = (ratio - tried[-2][1]) / (at - tried[-2][0])
        if slope > 0.1:
            return at - ratio / slope
    step = min(abs(ratio), math.log(FIRST_STEP))
    return at - math.copysign(step, ratio)
