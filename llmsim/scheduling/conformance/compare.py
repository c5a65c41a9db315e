"""Runs the same case through vLLM's scheduler and ours, in the same loop, and finds the first
difference.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from llmsim import _native
from llmsim.scheduling.conformance.cases import Case, GroupSteps, run_groups
from llmsim.scheduling.conformance.engine_failure import EngineFailureError, words_of
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.smallest import smallest
from llmsim.scheduling.conformance.vllm.live import live_case
from llmsim.scheduling.conformance.vllm.scheduler import VllmScheduler

MOST_TRIALS = 60
"""Runs that make a case smaller, at most."""


class Comparison(Struct, frozen=True):
    """`difference` is empty when all steps are equal; `options` shows the case's configuration, and
    `requests` counts those of the smallest case found that differs. `not_comparable` says why there
    is nothing to compare with; empty: there is.
    """

    steps: int
    difference: str
    options: str
    requests: int = 0
    not_comparable: str = ""


def compare(seed: int, num_requests: int) -> Comparison:
    """Compares one random case, step by step: items in order, gauges, preemptions,
    finishes, times. A case that differs is made smaller first.
    """
    case = random_case(seed, num_requests)
    try:
        steps, difference = first_difference(case)
    except EngineFailureError as error:
        options = json.dumps(case["config"])
        return Comparison(0, "", options, len(case["requests"]), str(error))
    if difference:
        case = smallest(case, _differs, MOST_TRIALS)
        steps, difference = first_difference(case)
    return Comparison(steps, difference, json.dumps(case["config"]), len(case["requests"]))


def first_difference(case: Case) -> tuple[int, str]:
    """How many steps are equal, and what then differs; empty where nothing does. Raises
    EngineFailureError where vLLM's scheduler ends with an error.
    """
    with _engine():
        case, schedulers = live_case(case)
    try:
        ours = run_groups(case)
    except RuntimeError as error:
        return 0, f"our scheduler ends with an error: {error}"
    with _engine():
        theirs = their_groups(case, schedulers)
    if ours.stands_still and not theirs.stands_still:
        return sum(map(len, theirs.groups)), f"ours stands still: {ours.stalled}"
    steps, until = 0, min(_goes_on_at(ours, theirs), _goes_on_beside(ours, schedulers))
    for index, (own, real) in enumerate(zip(ours.groups, theirs.groups, strict=True)):
        for one, other in zip_longest(_before(own, until), _before(real, until)):
            difference = _difference(one, other)
            if difference:
                where = f" of group {index}" if len(ours.groups) > 1 else ""
                return steps, f"step {steps}{where}: {difference}"
            steps += 1
    return steps, ""


@contextmanager
def _engine() -> Iterator[None]:
    """Errors in here are vLLM's."""
    try:
        yield
    except EngineFailureError:
        raise
    except Exception as error:
        raise EngineFailureError(f"vLLM's scheduler ends with {words_of(error)}") from error


def _goes_on_at(ours: GroupSteps, theirs: GroupSteps) -> int:
    """When ours first runs what vLLM's no longer does, in ps, if that stands still for ever."""
    if not theirs.stands_still:
        return _NEVER
    longer = [
        own[len(real)]["schedule_ps"]
        for own, real in zip(ours.groups, theirs.groups, strict=True)
        if len(own) > len(real)
    ]
    return min(longer, default=_NEVER)


def _goes_on_beside(ours: GroupSteps, schedulers: Sequence[VllmScheduler]) -> int:
    """The same where vLLM's stands still until somebody comes or gives up."""
    steps = [
        step["schedule_ps"]
        for own, theirs in zip(ours.groups, schedulers, strict=True)
        for step in own
        if step["schedule_ps"] in theirs.stood_still_ps
    ]
    return min(steps, default=_NEVER)


_NEVER = 1 << 62


def _before(steps: list[Case], until: int) -> Iterator[Case]:
    return (step for step in steps if step["schedule_ps"] < until)


def their_groups(case: Case, schedulers: Sequence[VllmScheduler]) -> GroupSteps:
    """The steps of vLLM's schedulers, made for this case by `live_case`."""

    def vllm_group(group: Any, config: Any, program: Any) -> Any:
        theirs = _native.PythonSchedulerConfig(
            schedulers[group.index], config.kv, config.speculation
        )
        return _native.GroupSpec(group, theirs, program, record_schedule=True)

    return run_groups(case, vllm_group)


def _differs(case: Case) -> bool:
    try:
        return bool(first_difference(case)[1])
    except EngineFailureError:
        return False


def _difference(ours: Case | None, theirs: Case | None) -> str:
    if ours is None or theirs is None:
        return f"only {'vLLM' if ours is None else 'ours'} goes on"
    for field, value in theirs.items():
        if ours[field] != value:
            return f"{field} is {ours[field]}, vLLM's {value}"
    return ""
