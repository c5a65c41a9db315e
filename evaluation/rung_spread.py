"""Measures how far the figures of few requests are from those of many: the margin of halving.

usage: python evaluation/rung_spread.py [--points 400] [--jobs 0] [--output DIR]

Each space is another than that of `evaluation/search_scale.py`: model, device, number of devices,
lengths and seed. Every drawn point runs with every number of requests. The table has, for each
number, two things. The spread is by how much the logarithm of a figure differs from that of the
last rung, beside the median of its space, at the 68th and 95th percentile. The margin is the
smallest one with which every point of the last rung's front would have stayed.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from llmsim.cli.arguments import OneSentenceParser
from llmsim.search.apply import load_base
from llmsim.search.journal import Trial
from llmsim.search.prune import Pruner
from llmsim.search.space import REQUESTS, Point, Space, load_space
from llmsim.search.study import fronts
from llmsim.search.successive_halving.halving import architecture_of, needed_margin
from llmsim.search.trials import Trials
from llmsim.sizing.workers.workers import Workers

STUDY = Path(__file__).resolve().parent / "studies" / "frontier_256.yaml"
COUNTS = (125, 250, 500, 1000, 2000)
SYNTHETIC = "synthetic:n=2000,rate=1,input=lognormal:{},output=lognormal:{},seed={}"
SPACES: dict[str, dict[str, Any]] = {
    "Qwen3-32B on 64 H100": {
        "model": "Qwen/Qwen3-32B",
        "hardware": "H100",
        "gpus": 64,
        "dataset": SYNTHETIC.format(2000, 150, 101),
    },
    "Llama-3.1-8B on 32 A100": {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": "A100-80GB-SXM",
        "gpus": 32,
        "dataset": SYNTHETIC.format(500, 500, 102),
    },
    "Qwen3-30B-A3B on 64 H200": {
        "model": "Qwen/Qwen3-30B-A3B",
        "hardware": "H200",
        "gpus": 64,
        "dataset": SYNTHETIC.format(800, 200, 103),
    },
}


def space_of(folder: Path, fields: Mapping[str, Any]) -> Space:
    """The study with other fields, as a search file in a folder."""
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    document = {**study, "architecture": ["colocated", "pd"], **fields}
    document["split_step"] = max(1, document["gpus"] // 32)
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return load_space(path)


def drawn(space: Space, count: int, seed: int = 0) -> list[Point]:
    """Points of the space that nothing rules out, at random."""
    places = Pruner(space).kept()
    if len(places) > count:
        draws = np.random.Generator(np.random.PCG64(seed))
        places = places[np.sort(draws.choice(len(places), count, replace=False))]
    return [space.at(int(place)) for place in places]


def rungs(space: Space, folder: Path, points: Sequence[Point], jobs: int) -> list[list[Trial]]:
    """For every number of requests, the trials of all points."""
    with Workers(jobs, apart=True) as workers:
        known = Trials(load_base(space), folder, workers)
        found = [known.of([{**point, REQUESTS: count} for point in points]) for count in COUNTS]
    return [
        [replace(one, point=point) for one, point in zip(trials, points, strict=True)]
        for trials in found
    ]


def logarithms(space: Space, trials: Sequence[Trial], at: Sequence[int]) -> np.ndarray:
    """Logarithms of the figures that are wanted (shape (points, figures))."""
    names = [name for name, _ in space.objectives]
    return np.log([[trials[i].values[name] for name in names] for i in at])


def measured(space: Space, found: Sequence[Sequence[Trial]]) -> list[list[float]]:
    """For every number of requests but the last: both percentiles of the spread, and the margin."""
    last = found[-1]
    at = [
        i for i in range(len(last)) if all(one[i].state in ("feasible", "short") for one in found)
    ]
    front = [i for indices in fronts(space, last).values() for i in indices]
    whole = logarithms(space, last, at)
    groups = np.array([architecture_of(space, last[i].point) for i in at])
    rows = []
    for trials in found[:-1]:
        difference = logarithms(space, trials, at) - whole
        for group in np.unique(groups):
            difference[groups == group] -= np.median(difference[groups == group], axis=0)
        spread = [float(np.percentile(np.abs(difference), share)) for share in (68, 95)]
        rows.append([*spread, max(needed_margin(space, trials, i) for i in front)])
    return rows


def main() -> None:
    """Prints a table for each space."""
    parser: argparse.ArgumentParser = OneSentenceParser(description=__doc__)
    parser.add_argument("--points", type=int, default=400, help="points of each space")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one per processor")
    parser.add_argument("--output", type=Path, default=Path("outputs/rung_spread"))
    given = parser.parse_args()
    for i, (name, fields) in enumerate(SPACES.items()):
        folder = given.output / str(i)
        folder.mkdir(parents=True, exist_ok=True)
        space = space_of(folder, fields)
        points = drawn(space, given.points)
        rows = measured(space, rungs(space, folder, points, given.jobs))
        print(
            f"{name}, {len(points)} points\n| requests | 68 % | 95 % | margin |\n|---|---|---|---|"
        )
        for count, row in zip(COUNTS, rows, strict=False):
            print("| {:,} | {:.3f} | {:.3f} | {:.3f} |".format(count, *row), flush=True)


if __name__ == "__main__":
    main()
