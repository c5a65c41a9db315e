"""Which points of a space are tried: all of a small one, those that optuna asks for of
a large one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from llmsim.config.errors import InputError
from llmsim.results.pareto import pareto_front
from llmsim.search.figures import violations
from llmsim.search.journal import Trial
from llmsim.search.prune import Pruner
from llmsim.search.space import Dimension, Point, Space
from llmsim.search.successive_halving.bounds import Bounds
from llmsim.search.successive_halving.ceilings import Ceilings
from llmsim.search.successive_halving.halving import Rung, architecture_of, halved

AT_ONCE = 8
"""Points that optuna is asked for together: what it proposes must not depend on how many processes
there are.
"""

MOST_ASKED = 4
"""Points asked for, for each that is tried: those that were tried before are asked for again."""
CANNOT = 1e6
"""By how much a point that cannot run misses each requirement."""


class Evaluate(Protocol):
    """Runs points; the runs of a search that halves may be stopped above ceilings."""

    def __call__(
        self, points: Sequence[dict[str, Any]], ceilings: Sequence[Ceilings] = ()
    ) -> list[Trial]: ...


def is_grid(space: Space, trials: int) -> bool:
    """Whether every point is tried."""
    return space.size is not None and space.size <= trials


@dataclass
class Course:
    """How a search went, where not every point is run whole."""

    candidates: int = 0
    pruned: Mapping[str, int] = field(default_factory=dict)
    """Points that were left out without a run, by reason."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """One of these points, and why, by reason."""
    drawn: int = 0
    """Points of the first rung."""
    rungs: list[Rung] = field(default_factory=list)


def search(
    space: Space,
    evaluate: Evaluate,
    trials: int,
    seed: int,
    course: Course | None = None,
    bounds: Bounds | None = None,
) -> list[Trial]:
    """The trials of the search, each point once, in the order in which they were asked for; with
    bounds, a search that halves leaves points out that would not be an answer.

    Raises InputError where the space needs optuna and that is not installed.
    """
    if space.halves:
        return _halved(space, evaluate, trials, seed, course or Course(), bounds)
    if is_grid(space, trials):
        return evaluate(list(space.grid()))
    return _asked_for(space, evaluate, trials, seed)


def _asked_for(space: Space, evaluate: Evaluate, trials: int, seed: int) -> list[Trial]:
    """The trials of points that optuna's sampler asks for, one after the other."""
    study = _optuna_study(space, trials, seed)
    found: dict[str, Trial] = {}
    # What is asked for again costs nothing, but may go on for ever.
    for _ in range(0, MOST_ASKED * trials, AT_ONCE):
        asked = [study.ask() for _ in range(AT_ONCE)]
        points = [_point(space, trial) for trial in asked]
        keys = [_key(point) for point in points]
        unknown = list(dict.fromkeys(key for key in keys if key not in found))
        new = unknown[: trials - len(found)]
        told = {*found, *new}
        wanted = [point for key, point in zip(keys, points, strict=True) if key in told]
        results = {_key(result.point): result for result in evaluate(wanted)}
        found |= {key: results[key] for key in new}
        for trial, key in zip(asked, keys, strict=True):
            if key in results:
                _tell(study, space, trial, results[key])
        if len(found) == trials:
            break
    return list(found.values())


def _optuna_study(space: Space, trials: int, seed: int) -> Any:
    optuna = _optuna(space, trials)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    directions = ["maximize" if more else "minimize" for _, more in space.objectives]
    sampler = _sampler(optuna, space, seed)
    return optuna.create_study(directions=directions, sampler=sampler)


def _halved(
    space: Space,
    evaluate: Evaluate,
    trials: int,
    seed: int,
    course: Course,
    bounds: Bounds | None,
) -> list[Trial]:
    """Draws points that nothing rules out, and runs them rung by rung."""
    if space.size is None:
        raise InputError(f"{space.path}: a range without steps cannot be halved; give it a step")
    pruner = Pruner(space)
    places = pruner.kept() if space.plans else np.arange(space.size)
    course.candidates, course.pruned = space.size, dict(pruner.counts)
    course.examples = dict(pruner.examples)
    if trials < len(places):
        draws = np.random.Generator(np.random.PCG64(seed))
        places = places[np.sort(draws.choice(len(places), trials, replace=False))]
    kept = [space.at(int(place)) for place in places]
    course.drawn = len(kept)
    if space.file.halving is None:
        return evaluate(kept)
    if not space.file.halving.bounds or bounds is None or not bounds.known:
        bounds = None
    return halved(space, evaluate, kept, course.rungs, bounds)


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


def best(space: Space, trials: Sequence[Trial]) -> list[int]:
    """Indices of the feasible trials that no other beats, by the first objective, then the next."""
    feasible = [i for i, trial in enumerate(trials) if trial.state == "feasible"]
    costs = [
        [_sign(more) * trials[i].values[name] for name, more in space.objectives] for i in feasible
    ]
    front = pareto_front(costs)
    return [feasible[i] for i in sorted(front, key=lambda i: (costs[i], i))]


def fronts(space: Space, trials: Sequence[Trial]) -> dict[str, list[int]]:
    """For every architecture, the indices of the trials that no other one of it beats."""
    names = dict.fromkeys(architecture_of(space, trial.point) for trial in trials)
    found = {}
    for name in names:
        own = [i for i, one in enumerate(trials) if architecture_of(space, one.point) == name]
        found[name] = [own[i] for i in best(space, [trials[i] for i in own])]
    return found


def _sign(more: bool) -> int:
    return -1 if more else 1


def _optuna(space: Space, trials: int) -> Any:
    try:
        import optuna
    except ImportError:
        points = f"{space.size} points" if space.size is not None else "a range without steps"
        raise InputError(
            f"{space.path}: the space has {points}, --trials is {trials}: give --trials as many "
            "to try all, steps to "
            'its ranges, or pip install "llmsim[search]", which chooses some'
        ) from None
    return optuna


def _sampler(optuna: Any, space: Space, seed: int) -> Any:
    """TPE for one objective, NSGA-II for several; both heed how far a point is from what is
    required.
    """
    if len(space.objectives) == 1:
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=2 * AT_ONCE)


def _point(space: Space, trial: Any) -> dict[str, Any]:
    """The point that optuna asks for."""
    return {one.name: _suggested(trial, one) for one in space.dimensions}


def _suggested(trial: Any, dimension: Dimension) -> Any:
    """A value; of listed ones its index is asked for, so that values may be anything."""
    if not dimension.values:
        return trial.suggest_float(dimension.name, dimension.low, dimension.high)
    last = len(dimension.values) - 1
    if dimension.ordered:
        return dimension.values[trial.suggest_int(dimension.name, 0, last)]
    return dimension.values[trial.suggest_categorical(dimension.name, list(range(last + 1)))]


def _tell(study: Any, space: Space, trial: Any, result: Trial) -> None:
    """A point that cannot run is farther from what is required than any that can; its figures then
    do not matter.
    """
    if result.state == "failed":
        from optuna.trial import TrialState

        study.tell(trial, state=TrialState.FAIL)
        return
    can = result.state != "infeasible"
    missed = violations(space, result.values) if can else dict.fromkeys(space.file.require, CANNOT)
    for name, by in missed.items():
        trial.set_constraint(name, by)
    trial.set_constraint("runs", 0.0 if can else CANNOT)
    study.tell(trial, [result.values[name] if can else 0.0 for name, _ in space.objectives])
