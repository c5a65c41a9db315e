"""What a search found, as a table and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llmsim.plurals import grouped, plural
from llmsim.search.figures import names
from llmsim.search.journal import Trial
from llmsim.search.space import Space
from llmsim.search.study import Course, fronts


def as_json(
    space: Space,
    trials: Sequence[Trial],
    front: Sequence[int],
    *,
    grid: bool,
    seed: int,
    course: Course | None = None,
) -> dict[str, Any]:
    """Every trial and which of them nothing beats; the same for the same search, whatever came in
    between.
    """
    found = {
        "schema_version": 1,
        "space": str(space.path),
        "points": space.size,
        "tried": "all" if grid else f"{len(trials)} chosen by optuna, seed {seed}",
        "minimise": list(space.file.minimise),
        "maximise": list(space.file.maximise),
        "trials": [asdict(trial) for trial in trials],
        "pareto": [{"trial": i, **asdict(trials[i])} for i in front],
    }
    return found if course is None else found | _course(space, trials, seed, course)


def _course(space: Space, trials: Sequence[Trial], seed: int, course: Course) -> dict[str, Any]:
    """What a search that draws, prunes and halves says beside its last trials."""
    kept = course.candidates - sum(course.pruned.values())
    drawn = "all" if course.drawn == kept else f"{course.drawn} drawn at random, seed {seed}"
    return {
        "tried": drawn,
        "candidates": course.candidates,
        "pruned": dict(course.pruned),
        "rungs": [
            {
                "requests": one.requests,
                "points": one.points,
                "stopped": one.stopped,
                "pruned": dict(one.pruned),
            }
            for one in course.rungs
        ],
        "fronts": fronts(space, trials),
    }


def counts_text(course: Course) -> str:
    """Lines: candidates, what was pruned and why, and the runs of each rung."""
    pruned = sum(course.pruned.values())
    what = plural(course.candidates, "candidate")
    lines = [f"{course.candidates:,} {what}, {pruned:,} pruned without a run"]
    ordered = sorted(course.pruned.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"  {count:>9,}  {reason}" for reason, count in ordered]
    if course.candidates - pruned > course.drawn:
        lines.append(f"{course.drawn:,} of {course.candidates - pruned:,} points drawn at random")
    for rung in course.rungs:
        left = sum(rung.pruned.values())
        more = f", {left:,} by their bounds not" if left else ""
        points = f"{grouped(rung.points, 'point')}"
        requests = f"{grouped(rung.requests, 'request')}"
        lines.append(f"{points} run with {requests}{more}")
        lines += [f"  {count:>9,}  {reason}" for reason, count in sorted(rung.pruned.items())]
        if rung.stopped:
            lines.append(
                f"  {rung.stopped:>9,}  of those that ran had a figure that rules them out"
            )
    return "".join(f"{line}\n" for line in lines)


def as_table(space: Space, trials: Sequence[Trial], front: Sequence[int]) -> str:
    """Markdown: what nothing beats (marked), what meets the requirements, what misses one, cannot
    run or has failed; of a search that halves, what nothing beats alone.
    """
    figures, varied = names(space), [one.name for one in space.dimensions]
    lines = [["", *varied, *figures, "why not"], ["---"] * (len(varied) + len(figures) + 2)]
    for i in _shown(space, trials, front):
        trial = trials[i]
        mark = "best" if i in front else ""
        cells = [_figure_text(trial, name) for name in figures]
        point = [_text(trial.point[name]) for name in varied]
        lines.append([mark, *point, *cells, trial.reason.replace("|", "/")])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


_RANKS = {"feasible": 1, "short": 2, "infeasible": 3, "failed": 4}


def _shown(space: Space, trials: Sequence[Trial], front: Sequence[int]) -> list[int]:
    """Indices of the table's trials: the front first, then by state and by the first objective."""
    first, more = space.objectives[0]
    sign = -1 if more else 1

    def order(i: int) -> tuple[int, float, int]:
        rank = 0 if i in front else _RANKS[trials[i].state]
        return rank, sign * trials[i].values.get(first, 0.0), i

    of_front_alone = space.halves and len(front) > 0
    return sorted(front if of_front_alone else range(len(trials)), key=order)


def _figure_text(trial: Trial, name: str) -> str:
    return f"{trial.values[name]:.6g}" if name in trial.values else ""


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return (text if len(text) <= 40 else f"{text[:37]}...").replace("|", "/")
