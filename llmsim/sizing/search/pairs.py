"""Deployments whose numbers of instances follow from what single ones take."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llmsim.sizing.load import CONCURRENCY, Load
from llmsim.sizing.plan import Plan, Pool
from llmsim.sizing.search.found import Unit
from llmsim.sizing.search.question import Costs, Question

MOST_STEPS = 4
"""Steps from the estimated instances of a role to half of them, where another role varies, too."""


def starts_of(question: Question, found: Sequence[Unit], costs: Costs) -> list[Plan]:
    """Plans with as many instances as the capacities of single ones suggest, the cheapest first."""
    plans = []
    level = question.load.level
    for one in found:
        if one.role == "both" and one.capacity.level:
            plans.append(one.plan.with_counts(math.ceil(level / one.level)))
    for device in question.devices:
        plans += _pairs(device, found, question.load)
    plans = [plan for plan in plans if _least_devices(plan) <= question.max_devices]
    return sorted(plans, key=lambda plan: (costs(plan), plan.label))


def balanced(question: Question, units: Sequence[Unit]) -> list[Plan]:
    """Deployments of any two roles with at least half as many instances as a closed loop is
    estimated to need, those that take most clients first.
    """
    plans = []
    for device in question.devices:
        for loop in itertools.starmap(Loop, roles(device, units)):
            ranges = [from_half(count, MOST_STEPS) for count in loop.counts(question.load.level)]
            for counts in itertools.product(*ranges):
                plans.append((loop.clients(counts), loop.plan(counts)))
    fitting = [one for one in plans if one[1].devices <= question.max_devices]
    fitting.sort(key=lambda one: (-one[0], one[1].label))
    return [plan for _, plan in fitting]


def from_half(count: int, most_steps: int) -> range:
    """Numbers of instances from an estimate down to half of it, in about so many steps at most."""
    half = math.ceil(count / 2)
    return range(count, half - 1, -max(1, (count - half) // most_steps))


def _least_devices(plan: Plan) -> int:
    """Bursts of several instances even out, so that fewer than estimated may do: half at best."""
    return math.ceil(plan.devices / 2)


def _pairs(device: str, found: Iterable[Unit], load: Load) -> list[Plan]:
    """Prefill and decode instances of any two layouts."""
    plans = []
    for prefill, decode in roles(device, found):
        if load.kind == CONCURRENCY:
            counts = Loop(prefill, decode).counts(load.level)
        else:
            counts = tuple(math.ceil(load.level / one.level) for one in (prefill, decode))
        plans.append(pair(prefill, decode, counts))
    return plans


@dataclass(frozen=True)
class Loop:
    """A prefill and a decode layout under a closed loop, by what each of them takes alone.

    A client that waits for its first token asks no decode instance, and one that is answered slowly
    asks no prefill instance. Where both roles are as slow as they were at their capacities, each
    client asks once in `cycle_s` (Little's law): fewer instances may do than of either role alone,
    and faster ones of one role may be too many for the other.
    """

    prefill: Unit
    decode: Unit

    @property
    def cycle_s(self) -> float:
        """From one request of a client to its next one."""
        prefill, decode = self.prefill.capacity.at, self.decode.capacity.at
        assert prefill is not None and decode is not None, "both take a level"
        return prefill.mean_ttft_s + decode.mean_after_s

    def counts(self, clients: float) -> tuple[int, ...]:
        """Instances of both roles that take so many clients."""
        per_s = clients / self.cycle_s
        return tuple(
            min(math.ceil(clients / one.level), math.ceil(per_s / one.requests_per_s))
            for one in (self.prefill, self.decode)
        )

    def clients(self, counts: Sequence[int]) -> float:
        """Clients that so many instances of both roles take at most."""
        units = zip(counts, (self.prefill, self.decode), strict=True)
        return self.cycle_s * min(count * one.requests_per_s for count, one in units)

    def plan(self, counts: tuple[int, ...]) -> Plan:
        """A deployment of both layouts."""
        return pair(self.prefill, self.decode, counts)


def pair(prefill: Unit, decode: Unit, counts: tuple[int, ...]) -> Plan:
    pools = (
        Pool(prefill.plan.pools[0].shape, counts[0], "prefill"),
        Pool(decode.plan.pools[1].shape, counts[1], "decode"),
    )
    return replace(prefill.plan, pools=pools)


def roles(device: str, found: Iterable[Unit]) -> Iterable[tuple[Unit, Unit]]:
    """Any prefill and any decode unit of a device that take some of the load."""
    usable = [one for one in found if one.plan.device == device and one.capacity.level]
    prefills = [one for one in usable if one.role == "prefill"]
    decodes = [one for one in usable if one.role == "decode"]
    return itertools.product(prefills, decodes)
