"""The fewest devices, or dollars, that serve a load within its targets.

1. What cannot be is pruned: memory, layouts, the data sheet's speed.
2. The capacity of a few instances of every layout is bisected.
3. Layouts whose estimated cost is far above the best one's are left out.
4. For the others the smallest number of instances that serves the load is found by runs of the
   whole deployment; beyond the first ones of each architecture, only numbers that cost less than
   the best one found are run.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llmsim.config.errors import LlmsimError, WiderSplit
from llmsim.results.time_sources import TimeSources
from llmsim.sizing.alone import missed_alone
from llmsim.sizing.bounds import (
    DEVICES,
    LEAST_GAIN,
    MEMORY,
    SPREAD,
    Pruned,
    Reason,
    fitting_splits,
    gain_over_nodes,
    most_per_instance,
    pruned_reason,
)
from llmsim.sizing.capacity import (
    FEWEST,
    Capacity,
    able,
    capacity,
    enough_requests,
    with_figures,
)
from llmsim.sizing.load import CONCURRENCY, RATE, Load
from llmsim.sizing.measure import Bench, Measured
from llmsim.sizing.plan import Option, Plan, Pool
from llmsim.sizing.shapes import STAGES, units
from llmsim.sizing.targets import Miss, Targets
from llmsim.sizing.workers.workers import Workers

if TYPE_CHECKING:
    from llmsim.lowering import LoweringOptions

FEWEST_VERIFIED = 1000
"""Requests of a run that decides. Estimates have as many where lengths are drawn: the longest of
fewer ones may be beyond a target that those of all of them meet.
"""
MARGIN = 2.0
"""Layouts whose estimated cost is beyond this share of the best estimate are not verified."""
MOST_VERIFIED = 10
TOGETHER = 4
"""Instances whose capacity is measured together, where the load needs so many."""
PARTNERS, MOST_PARTNERS = 2, 16
"""Instances of the other role while one role's capacity is measured: more where decode instances
have no room for what a prefill instance computes.
"""
MORE = 1.25
"""Times the load that a prefill instance has to take beside more decode instances, for these to
matter.
"""
NEXT = 3
"""Deployments that are shown beside the best one."""
NEAREST = 6
"""Deployments that are run where a request alone misses the targets in all of them."""
COARSE = 0.05
MOST_CHEAPER = 200
MOST_INSTANCES = 16
"""Deployments, and instances of one layout, that are tried below the best one's cost."""
IMPROVED = 0.01
"""Share by which more instances have to come nearer to the targets, for still more to be tried."""
MOST_STEPS = 4
"""Steps from the estimated instances of a role to half of them, where another role varies, too."""
GROWTH = 16
"""Times the load that the best plan is driven to at most."""
BATCH = 8
BOUND = "too costly at the data sheet's peak"
PARTNER = "no instances of the other role meet their targets"
ESTIMATE = "estimated cost far above the best"


@dataclass(frozen=True)
class Question:
    """What is asked: which deployment of a model serves a load within targets."""

    model: str
    devices: tuple[str, ...]
    load: Load
    targets: Targets
    architectures: tuple[str, ...] = ("colocated", "pd")
    max_devices: int = 512
    devices_per_node: int = 8
    server: tuple[Option, ...] = ()
    """Which engine serves (`Plan.server`)."""


@dataclass(frozen=True)
class Unit:
    """One instance and how much of the load it takes."""

    plan: Plan
    role: str
    capacity: Capacity
    instances: int = 1
    """So many were measured together, as bursts of several instances even out."""
    partners: int = PARTNERS
    """Instances of the other role beside each of them."""
    is_bound: bool = False
    """Whether a request alone misses the targets, so that no level was tried."""
    problem: str = ""

    @property
    def level(self) -> float:
        """The level that each instance takes."""
        return self.capacity.level / self.instances

    @property
    def requests_per_s(self) -> float:
        """Requests per second that each instance takes."""
        return 0.0 if self.capacity.at is None else self.capacity.at.requests_per_s / self.instances

    @property
    def deployment(self) -> Plan:
        """What was measured: an instance of one role has more partners than it can keep busy."""
        if self.role == "both":
            return self.plan.with_counts(self.instances)
        counts = (self.instances, self.partners * self.instances)
        return self.plan.with_counts(*(counts if self.role == "prefill" else reversed(counts)))


@dataclass(frozen=True)
class Candidate:
    """A plan that was run under the load that is asked for."""

    plan: Plan
    run: Measured | None
    misses: tuple[Miss, ...]
    problem: str = ""

    @property
    def meets(self) -> bool:
        """Whether every request ended and every target was met."""
        return self.run is not None and self.run.complete and not self.misses

    @property
    def sources(self) -> TimeSources | None:
        """Where the times of its run come from; None where it did not run, or nothing was timed."""
        found = None if self.run is None else self.run.sources
        return found if found is not None and found.total_ps else None


@dataclass
class Found:
    """The answer before it is worded."""

    question: Question
    meeting: list[Candidate] = field(default_factory=list)
    """The smallest deployment of each layout that meets the targets, the best first."""
    missing: list[Candidate] = field(default_factory=list)
    """Deployments that miss a target: of the best layout the next smaller one first."""
    units: list[Unit] = field(default_factory=list)
    pruned: Pruned = field(default_factory=Pruned)
    evaluated: int = 0
    beyond: Capacity | None = None
    """How far the load of the best plan can grow."""
    fitting: Mapping[str, WiderSplit] = field(default_factory=dict)
    """Where memory or --max-devices rule everything out: the smallest instance by device."""

    @property
    def shown_missing(self) -> list[Candidate]:
        """Of those that miss a target: the nearest one that is smaller than the best, or the next
        ones where nothing meets the targets.
        """
        if not self.meeting:
            return self.missing[:NEXT]
        most = self.meeting[0].plan.devices
        return [one for one in self.missing if one.misses and one.plan.devices < most][:1]


def search(question: Question, workers: Workers, prices: Mapping[str, float | None]) -> Found:
    """The answer to a question; raises InputError."""
    found = Found(question)
    plans, later = _unpruned(question, found.pruned)
    if not plans and found.pruned.counts.keys() & {MEMORY, DEVICES}:
        found.fitting = fitting_splits(
            question.model, question.devices, max(STAGES), question.server
        )
    _search(found, plans, plans, workers, prices)
    if found.meeting:
        for one in later:
            found.pruned.add(SPREAD, one.plan)
    elif later:
        _search(found, later, [*plans, *later], workers, prices)
    found.evaluated += len(found.units)
    if not found.meeting and not found.missing:
        found.missing += _units_that_miss(found, workers)
    _order_missing(found)
    _run_shown(found, workers)
    if found.meeting:
        (found.beyond,) = workers.map(
            "llmsim.sizing.search:headroom", [(found.meeting[0].plan, question)]
        )
    return found


def _search(
    found: Found,
    plans: "Sequence[Bounded]",
    planned: "Sequence[Bounded]",
    workers: Workers,
    prices: Mapping[str, float | None],
) -> None:
    """Measures plans and verifies what may be the best; those `planned` before are measured."""
    question = found.question
    _measure_units(found, plans, planned, workers, prices)
    starts = _starts(question, found.units, prices)
    near = _near(starts, question, prices)
    kept = _kept(near, question)
    _verify(found, "llmsim.sizing.search:smallest", kept, workers, prices)
    others = [plan for plan in near if plan not in kept]
    cheaper = list(_cheaper(found, others, prices))[:MOST_CHEAPER]
    _verify(found, "llmsim.sizing.search:fewest", cheaper, workers, prices)
    if question.load.kind == CONCURRENCY:
        _try_balanced(found, workers, prices)
    tried = {_layout(one.plan) for one in (*found.meeting, *found.missing)}
    for plan in starts:
        if _layout(plan) not in tried:
            found.pruned.add(ESTIMATE, plan)
    if question.load.shares_prefixes():
        _try_cheaper(found, plans, workers, prices)


def _run_shown(found: Found, workers: Workers) -> None:
    """Runs to the end what the answer shows of deployments that miss a target."""
    question = found.question
    shown = [one for one in found.shown_missing if one.run is not None and one.run.is_given_up]
    whole = workers.map(
        "llmsim.sizing.search:verified_whole", [(one.plan, question) for one in shown]
    )
    of_plan = {one.plan: one for one in whole}
    found.missing = [of_plan.get(one.plan, one) for one in found.missing]


def _units_that_miss(found: Found, workers: Workers) -> list[Candidate]:
    """Where no layout takes any load within the targets: what each misses at the lowest one tried.

    A role is no deployment, and is named where nothing has both. Of those that one request alone
    has ruled out, the nearest are run.
    """
    ruled_out: list[Unit] = []
    measured: list[Unit] = []
    for one in _whole_if_any([one for one in found.units if one.capacity.misses]):
        (ruled_out if one.is_bound else measured).append(one)
    ruled_out.sort(key=lambda one: one.capacity.misses[0].by)
    tasks = [(one, found.question) for one in ruled_out[:NEAREST]]
    measured += workers.map("llmsim.sizing.search:least_loaded", tasks)
    tasks = [(one, found.question) for one in measured]
    measured = list(workers.map("llmsim.sizing.search:with_whole_run", tasks))
    return [Candidate(one.deployment, one.capacity.beyond, one.capacity.misses) for one in measured]


def _whole_if_any(units: list[Unit]) -> list[Unit]:
    """The units that serve requests alone, else all of them."""
    return [one for one in units if one.role == "both"] or units


def _verify(
    found: Found,
    task: str,
    plans: Sequence[Plan],
    workers: Workers,
    prices: Mapping[str, float | None],
) -> None:
    """Runs deployments, and adds the smallest one of each that meets the targets."""
    for candidates in workers.map(task, [(plan, found.question) for plan in plans]):
        found.evaluated += len(candidates)
        meeting = [one for one in candidates if one.meets]
        found.missing += [one for one in candidates if not one.meets]
        if meeting:
            found.meeting.append(min(meeting, key=lambda one: one.plan.devices))
    found.meeting.sort(key=lambda one: _rank(one, found.question, prices))


def _cheaper(
    found: Found, plans: Sequence[Plan], prices: Mapping[str, float | None]
) -> Iterable[Plan]:
    """The largest deployments of layouts that cost less than the best one found, with at least half
    as many instances of each role as estimated.
    """
    if not found.meeting:
        return
    best = cost_of(found.meeting[0].plan, found.question, prices)

    def is_cheaper(plan: Plan) -> bool:
        return cost_of(plan, found.question, prices) < best

    for plan in plans:
        most_steps = MOST_STEPS if len(plan.pools) > 1 else plan.devices
        ranges = [_from_half(pool.count, most_steps) for pool in plan.pools]
        cheaper = [
            counts for counts in itertools.product(*ranges) if is_cheaper(plan.with_counts(*counts))
        ]
        for counts in cheaper:
            if not any(_has_more(other, counts) for other in cheaper):
                yield plan.with_counts(*counts)


def _from_half(count: int, most_steps: int) -> range:
    """Numbers of instances from an estimate down to half of it, in about so many steps at most."""
    half = math.ceil(count / 2)
    return range(count, half - 1, -max(1, (count - half) // most_steps))


def _has_more(counts: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether no role has fewer instances than in `others`, and some role more."""
    pairs = zip(counts, others, strict=True)
    return counts != others and all(mine >= theirs for mine, theirs in pairs)


def _try_cheaper(
    found: Found,
    plans: "Sequence[Bounded]",
    workers: Workers,
    prices: Mapping[str, float | None],
) -> None:
    """Runs the deployments that cost less than the best one, those nearest to it first.

    Sessions find their prompts cached where they ran before, and wait for their own answers: fewer
    instances may serve them better, and one role's speed changes the load of the other. Capacities
    of parts say too little then.
    """
    question = found.question
    cheaper = _untried_below(found, plans, prices)
    tasks = [(plan, question) for plan in cheaper[:MOST_CHEAPER]]
    candidates = list(workers.map("llmsim.sizing.search:verified", tasks))
    found.evaluated += len(candidates)
    for candidate in candidates:
        side = found.meeting if candidate.meets else found.missing
        side.append(candidate)
    found.meeting.sort(key=lambda one: _rank(one, question, prices))


def _try_balanced(found: Found, workers: Workers, prices: Mapping[str, float | None]) -> None:
    """In a closed loop, runs prefill and decode instances that cost less than the best deployment,
    those that take most by their capacities first.

    More instances of one role may be too many for the other, so that bisection passes over some.
    """
    question = found.question
    waiting = _balanced(question, found.units)[:MOST_CHEAPER]
    while waiting:
        most = cost_of(found.meeting[0].plan, question, prices) if found.meeting else math.inf
        tried = {one.plan for one in (*found.meeting, *found.missing)}
        waiting = [
            plan for plan in waiting if plan not in tried and cost_of(plan, question, prices) < most
        ]
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        found.evaluated += len(batch)
        tasks = [(plan, question) for plan in batch]
        for candidate in workers.map("llmsim.sizing.search:verified", tasks):
            side = found.meeting if candidate.meets else found.missing
            side.append(candidate)
        found.meeting.sort(key=lambda one: _rank(one, question, prices))


def _balanced(question: Question, units: Sequence[Unit]) -> list[Plan]:
    """Deployments of any two roles with at least half as many instances as a closed loop is
    estimated to need, those that take most clients first.
    """
    plans = []
    for device in question.devices:
        for loop in itertools.starmap(_Loop, _roles(device, units)):
            ranges = [_from_half(count, MOST_STEPS) for count in loop.counts(question.load.level)]
            for counts in itertools.product(*ranges):
                plans.append((loop.clients(counts), loop.plan(counts)))
    fitting = [one for one in plans if one[1].devices <= question.max_devices]
    fitting.sort(key=lambda one: (-one[0], one[1].label))
    return [plan for _, plan in fitting]


def _untried_below(
    found: Found, plans: "Sequence[Bounded]", prices: Mapping[str, float | None]
) -> list[Plan]:
    """Deployments that were not run and cost less than the best one: the dearest first, or the
    cheapest where none meets the targets.
    """
    question = found.question

    def cost(plan: Plan) -> float:
        return cost_of(plan, question, prices)

    most = cost(found.meeting[0].plan) if found.meeting else math.inf
    tried = {one.plan for one in (*found.meeting, *found.missing)}
    untried = (plan for plan in _deployments(plans, question) if plan not in tried)
    cheaper = [plan for plan in untried if cost(plan) < most]
    return sorted(cheaper, key=cost, reverse=bool(found.meeting))


def _deployments(plans: "Sequence[Bounded]", question: Question) -> Iterable[Plan]:
    """Every deployment of the layouts that were not pruned, with few instances of each."""
    wholes = [one.plan for one in plans if one.role == "both"]
    for plan in (*wholes, *_handing_over(plans)):
        counts = [
            range(1, min(MOST_INSTANCES, question.max_devices // pool.shape.devices) + 1)
            for pool in plan.pools
        ]
        for chosen in itertools.product(*counts):
            wanted = plan.with_counts(*chosen)
            if wanted.devices <= question.max_devices:
                yield wanted


def _handing_over(plans: "Sequence[Bounded]") -> Iterable[Plan]:
    """Every prefill layout with every decode layout on the same device."""
    prefills = [one.plan for one in plans if one.role == "prefill"]
    decodes = [one.plan for one in plans if one.role == "decode"]
    for one, other in itertools.product(prefills, decodes):
        if one.device == other.device:
            yield replace(one, pools=(one.pools[0], other.pools[1]))


def verified(bench: Bench, task: tuple[Plan, Question]) -> Candidate:
    """A deployment under the load that is asked for."""
    plan, question = task
    run, missed, problem = _able(bench, plan, question, gives_up=True)
    return Candidate(plan, run, tuple(missed), problem)


def verified_whole(bench: Bench, task: tuple[Plan, Question]) -> Candidate:
    """The same with a run that nothing ends early."""
    plan, question = task
    run, missed, problem = _able(bench, plan, question, gives_up=False)
    return Candidate(plan, run, tuple(missed), problem)


def _measure_units(
    found: Found,
    plans: "Sequence[Bounded]",
    planned: "Sequence[Bounded]",
    workers: Workers,
    prices: Mapping[str, float | None],
) -> None:
    """The capacity of one instance of each layout, the most promising first, and those of one node
    before those over several.

    A layout that cannot come near the best estimate at the data sheet's peak is left out, and so
    are other engine options of a layout that is far from it. The best estimate is of an instance
    that does both, or of a prefill and a decode instance. Levels at which an instance could not
    come near it are not tried.
    """
    question = found.question
    waiting = sorted(
        plans,
        key=lambda one: (
            one.plan.spans_nodes,
            bool(one.plan.engine),
            one.least_cost(question, prices),
        ),
    )
    best = math.inf
    costs: dict[tuple[str, tuple[Pool, ...]], float] = {}
    while waiting:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        tasks = [
            (
                one.plan,
                one.role,
                one.most,
                one.least_level(question, prices, MARGIN * best),
                question,
            )
            for one in batch
        ]
        for one in workers.map("llmsim.sizing.search:unit", tasks):
            found.units.append(one)
            if one.role == "both" and one.capacity.level:
                count = math.ceil(question.load.level / one.level)
                cost = cost_of(one.plan.with_counts(count), question, prices)
                costs[one.plan.device, one.plan.pools] = cost
        starts = _starts(question, found.units, prices)
        if starts:
            best = cost_of(starts[0], question, prices)
        left = []
        alone = set(_alone(planned, found.units))
        for bounded in waiting:
            if (bounded.plan.device, bounded.role) in alone:
                found.pruned.add(PARTNER, bounded.plan)
            elif bounded.least_cost(question, prices) > MARGIN * best:
                found.pruned.add(BOUND, bounded.plan)
            elif costs.get((bounded.plan.device, bounded.plan.pools), 0.0) > MARGIN * best:
                found.pruned.add(ESTIMATE, bounded.plan)
            else:
                left.append(bounded)
        waiting = left


def _alone(plans: "Sequence[Bounded]", units: Sequence[Unit]) -> Iterable[tuple[str, str]]:
    """Devices and roles whose other role no layout of the device fills."""
    planned = Counter((one.plan.device, one.role) for one in plans)
    measured = Counter((one.plan.device, one.role) for one in units)
    filled = {(one.plan.device, one.role) for one in units if one.level}
    for device in {one.plan.device for one in plans}:
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            side = device, role
            if measured[side] == planned[side] and side not in filled:
                yield device, other


def _near(
    starts: Sequence[Plan], question: Question, prices: Mapping[str, float | None]
) -> list[Plan]:
    """The plans near the cheapest estimate."""
    if not starts:
        return []
    limit = MARGIN * cost_of(starts[0], question, prices)
    return [one for one in starts if cost_of(one, question, prices) <= limit]


def _kept(near: Sequence[Plan], question: Question) -> list[Plan]:
    """The plans whose smallest deployment is searched: some of each architecture."""
    kept = []
    for architecture in question.architectures:
        kept += [one for one in near if one.architecture == architecture][:MOST_VERIFIED]
    return kept


@dataclass(frozen=True)
class Bounded:
    """One instance of a layout, what it is measured for, and the most that it can take."""

    plan: Plan
    role: str
    most: float

    def least_cost(self, question: Question, prices: Mapping[str, float | None]) -> float:
        """What the instances of this role cost at least; the other role costs more than nothing."""
        count = max(1, math.ceil(question.load.level / self.most)) if self.most else 1
        return self._cost_alone(count, question, prices)

    def least_level(
        self, question: Question, prices: Mapping[str, float | None], limit: float
    ) -> float:
        """The level at which as many instances as take the load cost the limit.

        No level is too low for one role in a closed loop: it takes more where the other is slower.
        """
        if question.load.kind == CONCURRENCY and self.role != "both":
            return 0.0
        most_instances = max(1.0, limit / self._cost_alone(1, question, prices))
        return question.load.level / most_instances

    def _cost_alone(
        self, count: int, question: Question, prices: Mapping[str, float | None]
    ) -> float:
        at = 1 if self.role == "decode" else 0
        alone = replace(self.plan, pools=(replace(self.plan.pools[at], count=count),))
        return cost_of(alone, question, prices)


def _unpruned(question: Question, pruned: Pruned) -> tuple[list[Bounded], list[Bounded]]:
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
    reason = pruned_reason(plan, load, _role_targets(question.targets, role), requests, options)
    devices = _fewest_devices(plan, role)
    if not reason.name and devices > question.max_devices:
        return Reason(DEVICES, f"{devices} devices", devices)
    return reason


def _fewest_devices(plan: Plan, role: str) -> int:
    """Of a deployment with an instance of the role, whose other role may have another layout."""
    if role == "both":
        return plan.devices
    return plan.pools[1 if role == "decode" else 0].shape.devices + 1


def _role_targets(targets: Targets, role: str) -> Targets:
    """Prefill instances decide TTFT, decode instances TPOT."""
    if role == "prefill":
        return targets.only("ttft")
    return targets.only("tpot", "e2el") if role == "decode" else targets


def unit(bench: Bench, task: tuple[Plan, str, float, float, Question]) -> Unit:
    """The capacity of a few instances together, as few as the load needs.

    An instance alone takes far less than its share of several, where its targets leave little room
    for waiting: where several take the whole load, fewer say more only if each of them takes more.
    """
    plan, role, most, least, question = task
    own = plan.pools[1 if role == "decode" else 0]
    together = max(1, min(TOGETHER, question.max_devices // own.shape.devices))
    best: Unit | None = None
    while True:
        found = _unit(bench, plan, role, (least, most), question, together)
        best = found if best is None or found.level > best.level else best
        if together == 1 or found.problem or found.capacity.beyond is not None:
            return best
        together //= 2


def _unit(
    bench: Bench,
    plan: Plan,
    role: str,
    limits: tuple[float, float],
    question: Question,
    together: int,
) -> Unit:
    """The capacity of so many instances; `limits` are levels of each that matter or can be."""
    least, most = limits
    nothing = Unit(plan, role, Capacity(0.0, None, None, ()), together)
    targets = _role_targets(question.targets, role)
    fewest = FEWEST if question.load.has_equal_requests() else FEWEST_VERIFIED

    def measured(unit: Unit, start: float) -> Unit:
        found = capacity(
            bench,
            unit.deployment,
            question.load,
            targets,
            start,
            fewest=fewest,
            precision=COARSE,
            floor=least * together,
            ceiling=question.load.level,
            gives_up=True,
        )
        return replace(unit, capacity=found)

    def takes_more(unit: Unit, level: float) -> bool:
        load = question.load.scaled(min(question.load.level, level))
        return not able(bench, unit.deployment, load, targets, fewest=fewest, gives_up=True)[1]

    start = 16.0
    if question.load.kind != CONCURRENCY:
        start = min(question.load.level, most * together / 4)
    try:
        alone = missed_alone(bench, plan, question.load, targets, fewest)
        if alone is not None:
            run, miss = alone
            return replace(nothing, capacity=Capacity(0.0, None, run, (miss,)), is_bound=True)
        unit = measured(nothing, start)
        while role == "prefill" and unit.capacity.beyond and unit.partners < MOST_PARTNERS:
            more, level = replace(unit, partners=2 * unit.partners), unit.capacity.beyond.level
            if not takes_more(more, level * MORE):
                break
            unit = measured(more, level)
    except LlmsimError as error:
        return replace(nothing, problem=str(error))
    return unit


def least_loaded(bench: Bench, task: tuple[Unit, Question]) -> Unit:
    """Instances under the lowest load that is tried."""
    one, question = task
    fewest = FEWEST if question.load.has_equal_requests() else FEWEST_VERIFIED
    targets = _role_targets(question.targets, one.role)
    found = capacity(bench, one.deployment, question.load, targets, 0.0, fewest=fewest)
    return replace(one, capacity=found)


def with_whole_run(bench: Bench, task: tuple[Unit, Question]) -> Unit:
    """The instances with the figures of the level that they miss, if that run was given up."""
    one, question = task
    targets = _role_targets(question.targets, one.role)
    known = with_figures(bench, one.deployment, question.load, targets, one.capacity)
    return replace(one, capacity=known)


def _starts(
    question: Question, found: Sequence[Unit], prices: Mapping[str, float | None]
) -> list[Plan]:
    """Plans with as many instances as the capacities of single ones suggest, the cheapest first."""
    plans = []
    level = question.load.level
    for one in found:
        if one.role == "both" and one.capacity.level:
            plans.append(one.plan.with_counts(math.ceil(level / one.level)))
    for device in question.devices:
        plans += _pairs(device, found, question.load)
    plans = [plan for plan in plans if _least_devices(plan) <= question.max_devices]
    return sorted(plans, key=lambda plan: (cost_of(plan, question, prices), plan.label))


def _least_devices(plan: Plan) -> int:
    """Bursts of several instances even out, so that fewer than estimated may do: half at best."""
    return math.ceil(plan.devices / 2)


def _pairs(device: str, found: Iterable[Unit], load: Load) -> list[Plan]:
    """Prefill and decode instances of any two layouts."""
    plans = []
    for prefill, decode in _roles(device, found):
        if load.kind == CONCURRENCY:
            counts = _Loop(prefill, decode).counts(load.level)
        else:
            counts = tuple(math.ceil(load.level / one.level) for one in (prefill, decode))
        plans.append(_pair(prefill, decode, counts))
    return plans


@dataclass(frozen=True)
class _Loop:
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
        return _pair(self.prefill, self.decode, counts)


def _pair(prefill: Unit, decode: Unit, counts: tuple[int, ...]) -> Plan:
    pools = (
        Pool(prefill.plan.pools[0].shape, counts[0], "prefill"),
        Pool(decode.plan.pools[1].shape, counts[1], "decode"),
    )
    return replace(prefill.plan, pools=pools)


def _roles(device: str, found: Iterable[Unit]) -> Iterable[tuple[Unit, Unit]]:
    """Any prefill and any decode unit of a device that take some of the load."""
    usable = [one for one in found if one.plan.device == device and one.capacity.level]
    prefills = [one for one in usable if one.role == "prefill"]
    decodes = [one for one in usable if one.role == "decode"]
    return itertools.product(prefills, decodes)


def smallest(bench: Bench, task: tuple[Plan, Question]) -> list[Candidate]:
    """Runs of a layout with more and fewer instances around an estimate, until the smallest number
    that meets the targets is known.
    """
    plan, question = task
    run = _Runs(bench, plan, question)
    counts = _grown(run, run.estimate, plan, question)
    if counts is not None:
        _shrunk(run, counts)
    return list(run.tried.values())


def fewest(bench: Bench, task: tuple[Plan, Question]) -> list[Candidate]:
    """Runs of a deployment and, where it meets the targets, of fewer and fewer instances."""
    plan, question = task
    run = _Runs(bench, plan, question)
    if run.meets(run.estimate):
        _shrunk(run, run.estimate)
    return list(run.tried.values())


class _Runs:
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
            found, missed, problem = _able(self._bench, wanted, self._question, gives_up=gives_up)
            self.tried[counts] = Candidate(wanted, found, tuple(missed), problem)
        return self.tried[counts]


def _able(
    bench: Bench, plan: Plan, question: Question, *, gives_up: bool
) -> tuple[Measured | None, list[Miss], str]:
    try:
        return able(
            bench,
            plan,
            question.load,
            question.targets,
            fewest=FEWEST_VERIFIED,
            gives_up=gives_up,
        )
    except LlmsimError as error:
        return None, [], str(error)


def _grown(
    run: _Runs, counts: tuple[int, ...], plan: Plan, question: Question
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


def _shrunk(run: _Runs, counts: tuple[int, ...]) -> tuple[int, ...]:
    """The fewest instances of each pool in turn that meet the targets, by bisection, until none of
    them can do with fewer: in a closed loop slower decodes spare the prefills, and the reverse.
    """
    while (fewer := _shrunk_once(run, counts)) != counts:
        counts = fewer
    return counts


def _shrunk_once(run: _Runs, counts: tuple[int, ...]) -> tuple[int, ...]:
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


def cost_of(plan: Plan, question: Question, prices: Mapping[str, float | None]) -> float:
    """What is minimised: USD per hour where every device asked about has a price, else devices."""
    each = prices.get(plan.device)
    if each is None or any(prices.get(device) is None for device in question.devices):
        return float(plan.devices)
    return each * plan.devices


def _rank(
    one: Candidate, question: Question, prices: Mapping[str, float | None]
) -> tuple[float, float, str]:
    """The cheapest first; of equal ones that with the most room below its targets."""
    assert one.run is not None
    at = one.run.at(question.targets.percentile)
    used = max((at.get(name, 0.0) / most for name, most in question.targets.most_ms), default=0.0)
    return cost_of(one.plan, question, prices), used, one.plan.label


def _order_missing(found: Found) -> None:
    """The next smaller deployment of the best layout first, then by how little they miss."""
    best = found.meeting[0].plan if found.meeting else None

    def key(one: Candidate) -> tuple[bool, float, int]:
        alike = best is not None and _layout(one.plan) == _layout(best)
        worst = one.misses[0].by if one.misses and not one.misses[0].at_least else math.inf
        return not alike, worst, one.plan.devices

    found.missing.sort(key=key)


def _layout(plan: Plan) -> tuple[Any, ...]:
    return (plan.device, plan.engine, *((pool.shape, pool.role) for pool in plan.pools))


__all__ = ["RATE", "Candidate", "Found", "Question", "Unit", "search"]
