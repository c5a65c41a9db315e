"""What a few instances of one layout take alone, as workers measure it."""

from dataclasses import replace

from llmsim.config.errors import LlmsimError
from llmsim.sizing.alone import missed_alone
from llmsim.sizing.capacity import FEWEST, FEWEST_VERIFIED, Capacity, able, capacity, with_figures
from llmsim.sizing.load import CONCURRENCY
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.found import Unit
from llmsim.sizing.search.question import Question, role_targets

TOGETHER = 4
"""Instances whose capacity is measured together, where the load needs so many."""
MOST_PARTNERS = 16
"""Instances of the other role beside one: more than `PARTNERS` where decode instances have no room
for what a prefill instance computes.
"""
MORE = 1.25
"""Times the load that a prefill instance has to take beside more decode instances, for these to
matter.
"""
COARSE = 0.05
"""The precision of a capacity."""


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
    targets = role_targets(question.targets, role)
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
    targets = role_targets(question.targets, one.role)
    found = capacity(bench, one.deployment, question.load, targets, 0.0, fewest=fewest)
    return replace(one, capacity=found)


def with_whole_run(bench: Bench, task: tuple[Unit, Question]) -> Unit:
    """The instances with the figures of the level that they miss, if that run was given up."""
    one, question = task
    targets = role_targets(question.targets, one.role)
    known = with_figures(bench, one.deployment, question.load, targets, one.capacity)
    return replace(one, capacity=known)
