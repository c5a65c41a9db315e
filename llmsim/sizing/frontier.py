"""The front of speed for a user against throughput, over very many plans and rates.

1. Plans that do not fit, and points that the data sheet's peaks rule out, are never run.
2. Every point is run with few requests; those far from every front are dropped, and the others
   are run with more (successive halving).

What was measured is kept in a journal, so that a search that was killed goes on where it stopped.
"""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.code_identity import code_hash
from llmsim.config.errors import InputError, LlmsimError
from llmsim.lowering import LoweringOptions
from llmsim.sizing.bounds import Pruned, Reason, pruned_reason
from llmsim.sizing.load import Load
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan
from llmsim.sizing.targets import Targets
from llmsim.sizing.workers import Workers

RUNGS = (250, 1000, 2000)
MARGIN = 0.2
"""A point stays while no other is better by this share in both speed and throughput."""
PERCENTILE = 95.0
RATES_PER_TASK = 16


@dataclass(frozen=True)
class Point:
    """A plan at a rate of requests."""

    plan: Plan
    rate: float

    @property
    def key(self) -> str:
        """Equal for equal points, in every process."""
        text = json.dumps([asdict(self.plan), self.rate], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Seen:
    """What a run of a point gave; all times at one percentile."""

    point: Point
    requests: int
    ttft_ms: float
    tpot_ms: float
    output_tok_s: float
    problem: str = ""

    @property
    def speed(self) -> float:
        """Tokens per second for a user."""
        return 1000 / self.tpot_ms if self.tpot_ms else 0.0


@dataclass
class Frontier:
    """What a search over points found."""

    ttft_ms: tuple[float, ...]
    finalists: list[Seen] = field(default_factory=list)
    """The points of the last rung."""
    rungs: list[tuple[int, int, int]] = field(default_factory=list)
    """(requests, points that were run, of these new in this call)."""
    pruned: Pruned = field(default_factory=Pruned)
    candidates: int = 0

    def front(self, ttft_ms: float, architecture: str | None = None) -> list[Seen]:
        """The points that nothing beats within a TTFT, the fastest for a user first."""
        able = [
            one
            for one in self.finalists
            if one.ttft_ms <= ttft_ms and architecture in (None, one.point.plan.architecture)
        ]
        return [able[i] for i in front_of([(one.speed, one.output_tok_s) for one in able])]

    def best(self, ttft_ms: float, speed: float, architecture: str) -> Seen | None:
        """The highest throughput at a speed for a user; None where nothing reaches it."""
        able = [one for one in self.front(ttft_ms, architecture) if one.speed >= speed]
        return max(able, key=lambda one: one.output_tok_s, default=None)


def front_of(values: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of pairs, both to be large, that no other pair is as good in both and better in one;
    by falling first value.
    """
    order = sorted(range(len(values)), key=lambda i: (-values[i][0], -values[i][1], i))
    front, highest = [], -math.inf
    for i in order:
        if values[i][1] > highest:
            highest = values[i][1]
            front.append(i)
    return front


def near_front(values: Sequence[tuple[float, float]], margin: float) -> list[int]:
    """Indices of pairs that no other pair beats by the margin in both."""
    if not values:
        return []
    pairs = np.array(values, dtype=float)
    order = np.argsort(-pairs[:, 0], kind="stable")
    speeds = pairs[order, 0]
    highest = np.maximum.accumulate(pairs[order, 1])
    # Of the pairs that are faster by the margin, the highest throughput.
    count = np.searchsorted(-speeds, -pairs[:, 0] * (1 + margin), side="right")
    beaten = np.where(count > 0, highest[np.maximum(count - 1, 0)], -math.inf)
    return [i for i in range(len(pairs)) if beaten[i] < pairs[i, 1] * (1 + margin)]


def explore(
    points: Iterable[Point],
    load: Load,
    workers: Workers,
    *,
    ttft_ms: tuple[float, ...] = (math.inf,),
    least_speed: float = 0.0,
    rungs: Sequence[int] = RUNGS,
    margin: float = MARGIN,
    journal: Path | None = None,
) -> Frontier:
    """Runs the points that nothing rules out, rung by rung.

    `ttft_ms` are the limits for which a front is wanted, `least_speed` the tokens per second for a
    user that matter. Answers do not depend on the number of workers. Raises InputError where the
    journal is of another search.
    """
    found = Frontier(ttft_ms)
    known = Journal(journal, load)
    alive = static_filter(points, load, found, least_speed=least_speed)
    for i, requests in enumerate(rungs):
        seen, new = _measured(alive, load, requests, workers, known)
        found.rungs.append((requests, len(seen), new))
        if i + 1 < len(rungs):
            alive = [one.point for one in _near(seen, ttft_ms, margin)]
        else:
            found.finalists = [one for one in seen if not one.problem]
    return found


def _targets(ttft_ms: tuple[float, ...], least_speed: float) -> Targets:
    """What no point of a front may miss."""
    most = [("ttft", max(ttft_ms))]
    if least_speed:
        most.append(("tpot", 1000 / least_speed))
    return Targets(tuple(one for one in most if math.isfinite(one[1])), PERCENTILE)


def static_filter(
    points: Iterable[Point], load: Load, found: Frontier, *, least_speed: float = 0.0
) -> list[Point]:
    """The points that neither memory nor the data sheet's peaks rule out; all are counted."""
    options = LoweringOptions()
    static = _Static(load, _targets(found.ttft_ms, least_speed))
    kept = []
    for point in points:
        found.candidates += 1
        reason = static.reason(point, options)
        if reason.name:
            found.pruned.add(reason.name, point.plan, reason.sentence, reason.excess)
        else:
            kept.append(point)
    return kept


class _Static:
    """Reasons to prune; those of a plan are looked at once for each layout, not for each count."""

    def __init__(self, load: Load, targets: Targets) -> None:
        self._load, self._targets = load, targets
        self._pools: dict[tuple[Any, ...], Reason] = {}
        self._most: dict[tuple[Any, ...], float] = {}

    def reason(self, point: Point, options: LoweringOptions) -> Reason:
        """Why the point cannot meet the targets; without a name where it may be run."""
        from llmsim.sizing.bounds import COMPUTE, most_per_instance

        plan = point.plan
        for at, pool in enumerate(plan.pools):
            key = (plan.model, plan.device, plan.engine, pool.shape, pool.role)
            if key not in self._pools:
                alone = plan.with_counts(*(1 for _ in plan.pools))
                low = self._load.scaled(1e-6)
                role = pool.role or "both"
                self._pools[key] = _pool_reason(alone, at, low, self._targets, options)
                self._most[key] = (
                    math.inf
                    if self._pools[key].name
                    else most_per_instance(alone, role, self._load, options)
                )
            if self._pools[key].name:
                return self._pools[key]
            most = self._most[key] * pool.count
            if point.rate > most:
                return Reason(COMPUTE, f"{point.rate:g}/s", point.rate / most)
        return Reason()


def _pool_reason(
    plan: Plan, at: int, load: Load, targets: Targets, options: LoweringOptions
) -> Reason:
    """Why a pool cannot be part of any plan, from a plan of that pool in every role."""
    from dataclasses import replace

    pools = tuple(replace(plan.pools[at], role=pool.role, count=1) for pool in plan.pools)
    alike = replace(plan, pools=pools)
    role = plan.pools[at].role
    if role == "prefill":
        targets = targets.only("ttft")
    elif role == "decode":
        targets = targets.only("tpot")
    return pruned_reason(alike, load, targets, RUNGS[0], options)


def _near(seen: Sequence[Seen], limits: tuple[float, ...], margin: float) -> list[Seen]:
    """The points near a front of their architecture within any of the limits."""
    kept: set[int] = set()
    architectures = {one.point.plan.architecture for one in seen}
    for limit in limits:
        for architecture in architectures:
            able = [
                i
                for i, one in enumerate(seen)
                if not one.problem
                and one.point.plan.architecture == architecture
                and one.ttft_ms <= limit * (1 + margin)
            ]
            pairs = [(seen[i].speed, seen[i].output_tok_s) for i in able]
            kept |= {able[i] for i in near_front(pairs, margin)}
    return [seen[i] for i in sorted(kept)]


def _measured(
    points: Sequence[Point], load: Load, requests: int, workers: Workers, journal: "Journal"
) -> tuple[list[Seen], int]:
    """What runs of the points give, in their order, and how many were new."""
    missing: dict[Plan, list[Point]] = {}
    for point in points:
        if journal.known(point, requests) is None:
            missing.setdefault(point.plan, []).append(point)
    tasks = [
        (load, requests, batch[i : i + RATES_PER_TASK])
        for batch in missing.values()
        for i in range(0, len(batch), RATES_PER_TASK)
    ]
    new = 0
    for answers in workers.map("llmsim.sizing.frontier:run_points", tasks):
        journal.add(answers)
        new += len(answers)
    found = [journal.known(point, requests) for point in points]
    return [one for one in found if one is not None], new


def run_points(bench: Bench, task: tuple[Load, int, list[Point]]) -> list[Seen]:
    """Runs of one plan at several rates; one that fails has its sentence as its answer."""
    load, requests, points = task
    found = []
    for point in points:
        try:
            run = bench.measure(point.plan, load, point.rate, requests, (PERCENTILE,))
        except LlmsimError as error:
            found.append(Seen(point, requests, 0.0, 0.0, 0.0, str(error)))
            continue
        at = run.at(PERCENTILE)
        problem = "" if run.complete else f"{run.unfinished} requests did not end"
        found.append(
            Seen(
                point,
                requests,
                at.get("ttft", 0.0),
                at.get("tpot", 0.0),
                run.output_tok_s,
                problem,
            )
        )
    return found


class Journal:
    """Answers in a file, one line each; a line that is damaged is no answer."""

    def __init__(self, path: Path | None, load: Load) -> None:
        self._path = path
        self._known: dict[tuple[str, int], tuple[float, float, float, str]] = {}
        head = json.dumps({"load": asdict(load), "percentile": PERCENTILE, "code": code_hash()})
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._read(path, head)
        else:
            path.write_text(head + "\n", encoding="utf-8")

    def _read(self, path: Path, head: str) -> None:
        data = path.read_text(encoding="utf-8", errors="replace")
        first, *lines = data.split("\n")
        if first != head:
            raise InputError(
                f"{path} is of another load or another version of llmsim; name another journal, "
                "or remove it",
                file=str(path),
            )
        for line in lines:
            try:
                key, requests, ttft, tpot, tokens, problem = json.loads(line)
            except ValueError:
                continue
            self._known[key, requests] = (ttft, tpot, tokens, problem)
        if not data.endswith("\n"):  # the search was killed while it wrote
            with path.open("a", encoding="utf-8") as stream:
                stream.write("\n")

    def known(self, point: Point, requests: int) -> Seen | None:
        """The answer of an earlier run."""
        found = self._known.get((point.key, requests))
        return None if found is None else Seen(point, requests, *found)

    def add(self, answers: Sequence[Seen]) -> None:
        """Keeps answers, on disk when this returns."""
        lines = []
        for one in answers:
            values = (one.ttft_ms, one.tpot_ms, one.output_tok_s, one.problem)
            self._known[one.point.key, one.requests] = values
            lines.append(json.dumps([one.point.key, one.requests, *values]) + "\n")
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write("".join(lines))
                stream.flush()
                os.fsync(stream.fileno())


def sampled(points: Sequence[Point], count: int, seed: int) -> list[Point]:
    """So many of the points, drawn without replacement, in their order."""
    if count >= len(points):
        return list(points)
    chosen = np.random.Generator(np.random.PCG64(seed)).choice(len(points), count, replace=False)
    return [points[i] for i in sorted(chosen)]


def counts_text(found: Frontier) -> str:
    """How many candidates there were, what was pruned and why, and the runs of each rung."""
    pruned: Counter[str] = found.pruned.counts
    lines = [f"{found.candidates:,} candidates, {pruned.total():,} pruned without a run:"]
    lines += [f"  {count:>9,}  {reason}" for reason, count in pruned.most_common()]
    lines += [
        f"{points:,} points with {requests:,} requests ({new:,} new)"
        for requests, points, new in found.rungs
    ]
    return "\n".join(lines)
