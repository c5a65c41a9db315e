"""Runs of whole deployments with more and fewer instances, as workers make them."""

import math

from llmsim.config.errors import LlmsimError
from llmsim.sizing.capacity import FEWEST_VERIFIED, Capacity, able, capacity, with_figures
from llmsim.sizing.measure import Bench, Measured
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.found import Candidate
from llmsim.sizing.search.question import Question
from llmsim.sizing.targets import Miss

IMPROVED = 0.01
"""Share by which more instances have to come nearer to the targets, for still more to be tried."""
GROWTH = 16
"""Times the load that the best plan is driven to at most."""


def verified(bench: Bench, task: tuple[Plan, Question]) -> Candidate:
    """A deployment under the load that is asked for."""
    plan, question = task
    run, missed, problem = _run(bench, plan, question, gives_up=True)
    return Candidate(plan, run, tuple(missed), problem)


def verified_whole(bench: Bench, task: tuple[Plan, Question]) -> Candidate:
    """The same with a run that nothing ends early."""
    plan, question = task
    run, missed, problem = _run(bench, plan, question, gives_up=False)
    return Candidate(plan, run, tuple(missed), problem)


def smallest(bench: Bench, task: tuple[Plan, Question]) -> list[Candidate]:
    """Runs of a layout with more and fewer instances around an estimate, until the smallest number
    that meets the targets is known.
    """
    plan, question = task
    run = Runs(bench, plan, question)
    counts = grown(run, run.estimate, plan, question)
    if counts is not None:
        shrunk(run, counts)
    return list(run.tried.values())


def fewest(bench: Bench, task: tuple[Plan, Question]) -> list[Candidate]:
    """Runs of a deployment and, where it meets the targets, of fewer and fewer instances."""
    plan, question = task
    run = Runs(bench, plan, question)
    if run.meets(run.estimate):
        shrunk(run, run.estimate)
    return list(run.tried.values())


def headroom(bench: Bench, task: tuple[Plan, Question]) -> Capacity:
    """The highest level that a plan takes, up to GROWTH times the load."""
    plan, question = task
    load, targets = question.load, question.targets
    found = capacity(
        bench,
        plan,
        load,
        targets,
        load.level,
        fewest=FEWEST_VERIFIED,
        ceiling=load.level * GROWTH,
        gives_up=True,
    )
    return with_figures(bench, plan, load, targets, found)


class Runs:
    """A layout with any numbers of instances under the load that is asked for, each run once."""

    def __init__(self, bench: Bench, plan: Plan, question: Question) -> None:
        self._bench, self._plan, self._question = bench, plan, question
        self.estimate = tuple(pool.count for pool in plan.pools)
        self.tried: dict[tuple[int, ...], Candidate] = {}

    def __call__(self, counts: tuple[int, ...]) -> Candidate:
        """The whole run with so many instances, pool by pool."""
        return self._tried(counts, gives_up=False)

    def meets(self, counts: tuple[int, ...]) -> bool:
        """Whether so many instances meet the targets; a run far beyond one is given up."""
        return self._tried(counts, gives_up=True).meets

    def _tried(self, counts: tuple[int, ...], *, gives_up: bool) -> Candidate:
        if counts not in self.tried:
            wanted = self._plan.with_counts(*counts)
            found, missed, problem = _run(self._bench, wanted, self._question, gives_up=gives_up)
            self.tried[counts] = Candidate(wanted, found, tuple(missed), problem)
        return self.tried[counts]


def _run(
    bench: Bench, plan: Plan, question: Question, *, gives_up: bool
) -> tuple[Measured | None, list[Miss], str]:
    try:
        return able(
            bench,
            plan,
            question.load,
            question.targets,
            fewest=FEWEST_VERIFIED,
            stops=question.targets.ceilings if gives_up else (),
        )
    except LlmsimError as error:
        return None, [], str(error)


def grown(
    run: Runs, counts: tuple[int, ...], plan: Plan, question: Question
) -> tuple[int, ...] | None:
    """More instances of what is missed until the targets are met; None at the limit of devices, or
    where twice as many devices miss the targets by as much.

    Prefill instances decide TTFT, but wait where decode instances have no room for KV: once more of
    one role do not help, the other one grows. At the limit of devices it takes the place of those
    that did not help.
    """
    nearest, nearest_devices = math.inf, 0
    nearest_counts = counts
    at = -1
    while plan.with_counts(*counts).devices > question.max_devices and max(counts) > 1:
        counts = tuple(max(1, count - 1) for count in counts)
    while plan.with_counts(*counts).devices <= question.max_devices:
        found = run(counts)
        if found.meets:
            return counts
        devices, missed = found.plan.devices, _missed_by(found)
        if not nearest_devices or missed < nearest * (1 - IMPROVED):
            nearest, nearest_devices, nearest_counts = missed, devices, counts
            at = _role_missed(found)
        elif devices >= 2 * nearest_devices:
            return None
        else:
            at = (at + 1) % len(counts)
        step = max(1, counts[at] // 8)
        counts = _more_of(counts, at, step)
    for at in range(len(counts)):
        other = _more_of(nearest_counts, at, 1)
        if plan.with_counts(*other).devices <= question.max_devices and run(other).meets:
            return other
    return None


def _more_of(counts: tuple[int, ...], at: int, step: int) -> tuple[int, ...]:
    return tuple(count + step * (i == at) for i, count in enumerate(counts))


def _role_missed(one: Candidate) -> int:
    """The pool that decides the target which is missed most: decodes decide all but TTFT."""
    if len(one.plan.pools) == 1 or not one.misses:
        return 0
    return 0 if one.misses[0].metric == "ttft" else 1


def _missed_by(one: Candidate) -> float:
    """Found over target of what is missed most; infinite where requests did not end."""
    return 1 + one.misses[0].by if one.misses and one.run is not None else math.inf


def shrunk(run: Runs, counts: tuple[int, ...]) -> tuple[int, ...]:
    """The fewest instances of each pool in turn that meet the targets, by bisection, until none of
    them can do with fewer: in a closed loop slower decodes spare the prefills, and the reverse.
    """
    while (fewer := _shrunk_once(run, counts)) != counts:
        counts = fewer
    return counts


def _shrunk_once(run: Runs, counts: tuple[int, ...]) -> tuple[int, ...]:
    for at in range(len(counts)):
        met, missed = counts[at], 0
        while met - missed > 1:
            middle = (met + missed) // 2
            if run.meets((*counts[:at], middle, *counts[at + 1 :])):
                met = middle
            else:
                missed = middle
        counts = (*counts[:at], met, *counts[at + 1 :])
    return counts
