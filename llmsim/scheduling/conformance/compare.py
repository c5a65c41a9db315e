"""Runs the same case through vLLM's scheduler and ours, in the same loop, and finds the first
difference.
"""

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from llmsim import _native
from llmsim.scheduling.conformance.cases import Case, run_case
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.vllm_live import live_case


@dataclass(frozen=True)
class Comparison:
    """`difference` is empty when all steps are equal; `options` shows the case's configuration."""

    steps: int
    difference: str
    options: str


def compare(seed: int, num_requests: int) -> Comparison:
    """Compares one random case, step by step: items in order, gauges, preemptions,
    finishes, times.
    """
    case, scheduler = live_case(random_case(seed, num_requests))

    def vllm_group(group: Any, config: Any, program: Any) -> Any:
        theirs = _native.PythonSchedulerConfig(scheduler, config.kv)
        return _native.GroupSpec(group, theirs, program, record_schedule=True)

    options = json.dumps(case["config"])
    steps = 0
    for ours, theirs in zip_longest(run_case(case), run_case(case, vllm_group)):
        difference = _difference(ours, theirs)
        if difference:
            return Comparison(steps, f"step {steps}: {difference}", options)
        steps += 1
    return Comparison(steps, "", options)


def _difference(ours: Case | None, theirs: Case | None) -> str:
    if ours is None or theirs is None:
        return f"only {'vLLM' if ours is None else 'ours'} goes on"
    for field, value in theirs.items():
        if ours[field] != value:
            return f"{field} is {ours[field]}, vLLM's {value}"
    return ""
