"""What a request takes that a deployment serves alone: under no load is it served faster."""

import dataclasses
import math
from functools import cache

import numpy as np

from llmsim.sizing.load import RATE, TRACE, Load
from llmsim.sizing.measure import Bench, Measured, is_servable
from llmsim.sizing.plan import Plan
from llmsim.sizing.targets import Miss, Targets

BEYOND = 0.05
"""Share of a target by which a request alone has to miss it: of unequal requests the one at the
percentile is chosen by its lengths, and of equal lengths one may take a little longer.
"""
SELDOM = 1e-3
"""Requests per second at which none meets another one."""


def missed_alone(
    bench: Bench, plan: Plan, load: Load, targets: Targets, requests: int
) -> tuple[Measured, Miss] | None:
    """The run of one request, and the target that it misses by most; None where a load may meet all
    of them, and for classes and traces, whose targets and prompts differ.

    The request stands for the percentile of the first requests of the load: for TTFT by its prompt,
    for TPOT by its mean context. End-to-end latency is known of equal requests only. Raises
    InputError and InfeasibleError.
    """
    if load.kind == TRACE or load.classes:
        return None
    inputs, outputs = (lengths.astype(np.int64) for lengths in load.lengths(requests))
    servable = is_servable(plan.model, inputs)
    inputs, outputs = inputs[servable], outputs[servable]

    @cache
    def run(prompt: int, answer: int) -> Measured:
        one = dataclasses.replace(
            load, kind=RATE, input=f"fixed:{prompt}", output=f"fixed:{answer}"
        )
        return bench.measure(plan, one, SELDOM, 1, (targets.percentile,))

    sizes = {"ttft": inputs, "tpot": 2 * inputs + outputs}
    if load.has_equal_requests():
        sizes["e2el"] = inputs
    found = []
    for metric, size in sizes.items():
        rows = np.flatnonzero(outputs > 1) if metric == "tpot" else np.arange(len(size))
        if not len(rows) or math.isinf(targets.of(metric)):
            continue
        rank = math.floor((len(rows) - 1) * targets.percentile / 100)
        row = rows[np.argsort(size[rows], kind="stable")[rank]]
        alone = run(int(inputs[row]), int(outputs[row]))
        found += [
            (alone, miss) for miss in targets.only(metric).misses(alone.at(targets.percentile))
        ]
    worst = max(found, key=lambda one: one[1].by, default=None)
    return worst if worst is not None and worst[1].by > BEYOND else None
