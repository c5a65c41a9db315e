"""Layouts that nothing rules out without a run, and the deployments that they make."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmsim.sizing.bounds import (
    DEVICES,
    LEAST_GAIN,
    Pruned,
    Reason,
    gain_over_nodes,
    most_per_instance,
    pruned_reason,
)
from llmsim.sizing.capacity import FEWEST_VERIFIED, enough_requests
from llmsim.sizing.load import CONCURRENCY
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.question import Costs, Question, role_targets
from llmsim.sizing.shapes import units

if TYPE_CHECKING:
    from llmsim.lowering import LoweringOptions

MOST_INSTANCES = 16
"""Instances of one layout that are tried below the best one's cost."""


@dataclass(frozen=True)
class Bounded:
    """One instance of a layout, what it is measured for, and the most that it can take."""

    plan: Plan
    role: str
    most: float

    def least_cost(self, question: Question, costs: Costs) -> float:
        """What the instances of this role cost at least; the other role costs more than nothing."""
        count = max(1, math.ceil(question.load.level / self.most)) if self.most else 1
        return self._cost_alone(count, costs)

    def least_level(self, question: Question, costs: Costs, limit: float) -> float:
        """The level at which as many instances as take the load cost the limit.

        No level is too low for one role in a closed loop: it takes more where the other is slower.
        """
        if question.load.kind == CONCURRENCY and self.role != "both":
            return 0.0
        most_instances = max(1.0, self.most_instances(costs, limit))
        return question.load.level / most_instances

    def most_instances(self, costs: Costs, limit: float) -> float:
        """How many instances cost the limit."""
        return limit / self._cost_alone(1, costs)

    def _cost_alone(self, count: int, costs: Costs) -> float:
        at = 1 if self.role == "decode" else 0
        alone = replace(self.plan, pools=(replace(self.plan.pools[at], count=count),))
        return costs(alone)


def unpruned(question: Question, pruned: Pruned) -> tuple[list[Bounded], list[Bounded]]:
    """The instances that nothing rules out, and those over nodes that gain little over others; a
    reason is counted once for each layout.

    Several architectures may have the same prefill instances, which are kept once.
    """
    from llmsim.lowering import LoweringOptions

    kept: list[Bounded] = []
    later: list[Bounded] = []
    options = LoweringOptions()
    roles: set[tuple[Any, ...]] = set()
    for plan, role in _planned(question):
        role_key = (plan.device, role, plan.pools[1 if role == "decode" else 0], plan.engine)
        if role_key in roles:
            continue
        reason = _reason(plan, role, question, options)
        if reason.name:
            pruned.add(reason.name, plan, reason.sentence, reason.excess)
            continue
        roles.add(role_key)
        bounded = Bounded(plan, role, most_per_instance(plan, role, question.load, options))
        gains = not plan.spans_nodes or gain_over_nodes(plan, options) >= LEAST_GAIN
        (kept if gains else later).append(bounded)
    return kept, later


def _planned(question: Question) -> Iterable[tuple[Plan, str]]:
    """Every plan of one instance, or of one of each role, and what it is measured for."""
    for device, architecture in itertools.product(question.devices, question.architectures):
        yield from units(
            question.model, device, architecture, question.devices_per_node, question.server
        )


def _reason(plan: Plan, role: str, question: Question, options: "LoweringOptions") -> Reason:
    """Why an instance is left out without a run; no name where nothing rules it out."""
    most = question.max_devices // min(pool.shape.devices for pool in plan.pools)
    load = replace(question.load, level=question.load.level / max(1, most))
    requests = enough_requests(
        question.load, question.targets, question.load.level, FEWEST_VERIFIED
    )
    reason = pruned_reason(plan, load, role_targets(question.targets, role), requests, options)
    devices = _fewest_devices(plan, role)
    if not reason.name and devices > question.max_devices:
        return Reason(DEVICES, f"{devices} devices", devices)
    return reason


def _fewest_devices(plan: Plan, role: str) -> int:
    """Of a deployment with an instance of the role, whose other role may have another layout."""
    if role == "both":
        return plan.devices
    return plan.pools[1 if role == "decode" else 0].shape.devices + 1


def deployments(plans: "Sequence[Bounded]", question: Question) -> Iterable[Plan]:
    """Every deployment of the layouts that were not pruned, with few instances of each."""
    wholes = [one.plan for one in plans if one.role == "both"]
    for plan in (*wholes, *handing_over(plans)):
        counts = [
            range(1, min(MOST_INSTANCES, question.max_devices // pool.shape.devices) + 1)
            for pool in plan.pools
        ]
        for chosen in itertools.product(*counts):
            wanted = plan.with_counts(*chosen)
            if wanted.devices <= question.max_devices:
                yield wanted


def handing_over(plans: "Sequence[Bounded]") -> Iterable[Plan]:
    """Every prefill layout with every decode layout on the same device."""
    prefills = [one.plan for one in plans if one.role == "prefill"]
    decodes = [one.plan for one in plans if one.role == "decode"]
    for one, other in itertools.product(prefills, decodes):
        if one.device == other.device:
            yield replace(one, pools=(one.pools[0], other.pools[1]))
