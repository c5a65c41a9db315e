"""The front of speed for a user against throughput, over very many plans and rates.

1. Plans that do not fit, and points that the data sheet's peaks rule out, are never run.
2. Points are run with few requests; those far from every front are dropped, and the others are run
   with more (successive halving).
3. Points are run in waves. What others of a wave have measured may beat the best that a point can
   do: it serves no more than arrives, and is no faster than its decode instances are alone or than
   it was with fewer requests. Such a point is not run.

What was measured is kept in a journal, so that a search that was killed goes on where it stopped.
"""

import bisect
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from llmsim.config.errors import InputError, LlmsimError
from llmsim.config.files.code_identity import code_hash
from llmsim.core import PS_PER_S
from llmsim.lowering import LoweringOptions
from llmsim.plurals import counted, grouped, plural
from llmsim.sizing.bounds import Pruned, Reason, pruned_reason
from llmsim.sizing.load import RATE, Load
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan
from llmsim.sizing.targets import Targets
from llmsim.sizing.workers.workers import Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RUNGS = (250, 1000, 2000)
MARGIN = 0.2
"""A point stays while no other is better by this share in both speed and throughput."""
SPEED_MARGIN = 0.05
"""The same of speed where the other's is settled, and throughput is that with all requests."""
LIFETIMES = 3
"""A point's speed is settled when requests arrive for so many times as long as one takes."""
SLACK, SETTLED_SLACK = 0.025, 0.015
"""With more requests no point has become faster, or had a shorter TTFT, by more
(evaluation/README.md).
"""
ALONE_SLACK = 0.1
"""A request may be faster by so much than most are with the least load that was tried."""
WAVES = 4
"""The last wave has half of a rung's points, the one before a quarter, and so on."""
MOMENT_S = 1e-12
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
    beaten: list[tuple[int, int]] = field(default_factory=list)
    """(requests, points that were not run since others beat the best that they can do)."""
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
    in_waves: bool = True,
) -> Frontier:
    """Runs the points that nothing rules out, rung by rung.

    `ttft_ms` are the limits for which a front is wanted, `least_speed` the tokens per second for a
    user that matter. Answers do not depend on the number of workers. Not `in_waves`, all points of
    a rung are run. Raises InputError where the journal is of another search.
    """
    found = Frontier(ttft_ms)
    known = Journal(journal, load)
    alive = static_filter(points, load, found, least_speed=least_speed)
    limits = _Limits(ttft_ms, least_speed, margin)
    outlook = _Outlook(load, rungs[-1])
    before: dict[str, Seen] = {}
    for requests in rungs:
        rung = _Rung(outlook, requests, limits, before)
        new = 0
        for wave in rung.waves(alive) if in_waves else [alive]:
            able = rung.unbeaten(wave) if in_waves else wave
            seen, new_ones = _measured(able, load, requests, workers, known)
            rung.add(seen)
            new += new_ones
        found.rungs.append((requests, len(rung.seen), new))
        found.beaten.append((requests, len(alive) - len(rung.seen)))
        alive = [one.point for one in rung.near()]
        before = {one.point.key: one for one in rung.seen}
        found.finalists = [one for one in rung.seen if not one.problem]
    return found


@dataclass(frozen=True)
class _Limits:
    """Which points matter, and by how much another has to be better."""

    ttft_ms: tuple[float, ...]
    least_speed: float
    margin: float


class _Outlook:
    """What points do with more requests, from what they did with fewer."""

    def __init__(self, load: Load, all_requests: int) -> None:
        self.all_requests = all_requests
        self._load = load
        self._known: dict[int, tuple[Floats, Floats]] = {}
        self._fastest: dict[tuple[Any, ...], float] = {}
        """Speed of instances that decode, in their points with the least load."""

    def note(self, seen: Seen) -> None:
        """Keeps how fast its instances are."""
        key = _decodes(seen.point.plan)
        if not seen.problem:
            self._fastest[key] = max(self._fastest.get(key, 0.0), seen.speed)

    def speed_alone(self, point: Point) -> float:
        """The highest speed of the instances that decode, whatever the load."""
        return self._fastest.get(_decodes(point.plan), math.inf) * (1 + SLACK)

    def most_tokens(self, point: Point, requests: int) -> float:
        """Tokens per second that the point cannot exceed with so many requests."""
        if self._load.kind != RATE:
            return math.inf
        fastest = self._fastest.get(_decodes(point.plan), math.inf) * (1 + ALONE_SLACK)
        return self._tokens(point.rate, requests, fastest)

    def _requests(self, count: int) -> "tuple[Floats, Floats]":
        """When requests arrive at one per second, and the tokens of their answers."""
        if count not in self._known:
            arrivals = self._load.workload(1.0, count, 16).arrival_ps
            tokens = self._load.lengths(count)[1].astype(np.float64)
            self._known[count] = (arrivals - arrivals.min()) / PS_PER_S, tokens
        return self._known[count]

    def _tokens(self, rate: float, requests: int, speed: float, ttft_s: float = 0.0) -> float:
        """Tokens per second until the last one is there, at that speed for each user. Where
        requests come at their rate, no more are served than arrive.
        """
        arrivals, tokens = self._requests(requests)
        ends = arrivals / rate + ttft_s + (tokens - 1) / speed
        return float(tokens.sum() / max(ends.max(), MOMENT_S))

    def is_settled(self, seen: Seen) -> bool:
        """Whether its speed is hardly another one with more requests."""
        arrivals, tokens = self._requests(seen.requests)
        lifetime_s = (seen.ttft_ms + float(tokens.mean()) * seen.tpot_ms) / 1000
        return float(arrivals.max()) / seen.point.rate >= LIFETIMES * lifetime_s

    def most_speed(self, seen: Seen) -> float:
        """The highest speed that it may have with more requests."""
        return seen.speed * (1 + (SETTLED_SLACK if self.is_settled(seen) else SLACK))

    def final_tokens(self, seen: Seen) -> float:
        """Tokens per second with all requests, of a point that is settled."""
        rate = seen.point.rate
        return self._tokens(rate, self.all_requests, seen.speed, seen.ttft_ms / 1000)


class _Rung:
    """Points that are run with as many requests, and which of them need no run."""

    def __init__(
        self, outlook: _Outlook, requests: int, limits: _Limits, before: Mapping[str, Seen]
    ) -> None:
        self.seen: list[Seen] = []
        self._outlook, self._requests, self._limits = outlook, requests, limits
        self._before = before
        self._is_last = requests == outlook.all_requests

    def waves(self, points: Sequence[Point]) -> Iterator[list[Point]]:
        """First those that tell most about the others."""
        order = self._by_promise(points) if self._before else _alone_first(points)
        begin = 0
        for wave in range(WAVES):
            end = len(order) >> (WAVES - wave - 1) if wave else max(1, len(order) >> (WAVES - 1))
            chosen = set(order[begin:end])
            if chosen:
                yield [one for i, one in enumerate(points) if i in chosen]
            begin = max(begin, end)

    def _by_promise(self, points: Sequence[Point]) -> list[int]:
        """By how many others were better with fewer requests."""
        beaten = np.zeros(len(points), dtype=np.int64)
        architectures = [point.plan.architecture for point in points]
        for architecture in dict.fromkeys(architectures):
            mine = [i for i, one in enumerate(architectures) if one == architecture]
            seen = [self._before[points[i].key] for i in mine]
            speed = np.array([one.speed for one in seen])
            tokens = np.array([one.output_tok_s for one in seen])
            for i, one in zip(mine, seen, strict=True):
                better = (speed >= one.speed) & (tokens >= one.output_tok_s)
                beaten[i] = np.count_nonzero(better)
        return [int(i) for i in np.argsort(beaten, kind="stable")]

    def add(self, seen: Sequence[Seen]) -> None:
        """What a wave has measured."""
        self.seen += seen
        for one in seen:
            self._outlook.note(one)

    def near(self) -> list[Seen]:
        """The points near a front of their architecture within any of the limits."""
        rivals = self._rivals()
        return [one for one in self.seen if not one.problem and self._is_near(one, rivals)]

    def _is_near(self, one: Seen, rivals: "Mapping[tuple[str, float], _Rivals]") -> bool:
        if self._outlook.most_speed(one) < self._limits.least_speed:
            return False
        final_tokens = self._outlook.most_tokens(one.point, self._outlook.all_requests)
        best = _Best(one.speed, one.output_tok_s, final_tokens)
        return any(
            one.ttft_ms <= limit * (1 + self._limits.margin)
            and not rivals[one.point.plan.architecture, limit].beat(best, self._limits.margin)
            for limit in self._limits.ttft_ms
        )

    def unbeaten(self, points: Sequence[Point]) -> list[Point]:
        """Those whose best would not be beaten by a point that was run."""
        rivals = self._rivals()
        return [point for point in points if not self._is_beaten(point, rivals)]

    def _is_beaten(self, point: Point, rivals: "Mapping[tuple[str, float], _Rivals]") -> bool:
        outlook = self._outlook
        speed = outlook.speed_alone(point)
        before = self._before.get(point.key)
        if before is not None:
            speed = min(speed, outlook.most_speed(before))
        if speed < self._limits.least_speed:
            return True
        counts = (self._requests, outlook.all_requests)
        best = _Best(speed, *(outlook.most_tokens(point, count) for count in counts))
        least_ttft = 0.0 if before is None else before.ttft_ms * (1 - SLACK)
        margin = 0.0 if self._is_last else self._limits.margin
        architecture = point.plan.architecture
        return all(
            least_ttft > limit * (1 + margin)
            or ((architecture, limit) in rivals and rivals[architecture, limit].beat(best, margin))
            for limit in self._limits.ttft_ms
        )

    def _rivals(self) -> "dict[tuple[str, float], _Rivals]":
        of: dict[str, list[Seen]] = {}
        for one in self.seen:
            if not one.problem:
                of.setdefault(one.point.plan.architecture, []).append(one)
        return {
            (architecture, limit): _Rivals(
                [one for one in seen if one.ttft_ms <= limit], self._outlook, is_last=self._is_last
            )
            for architecture, seen in of.items()
            for limit in self._limits.ttft_ms
        }


class _Best(NamedTuple):
    """What a point does, or the best that it can do."""

    speed: float
    tokens: float
    """Tokens per second with the requests of the rung."""
    final_tokens: float
    """At most with all of them."""


class _Rivals:
    """Points of an architecture within a TTFT, which beat others."""

    def __init__(self, seen: Sequence[Seen], outlook: _Outlook, *, is_last: bool) -> None:
        self._measured = Envelope([(one.speed, one.output_tok_s) for one in seen])
        settled = [one for one in seen if not is_last and outlook.is_settled(one)]
        self._settled = Envelope([(one.speed, outlook.final_tokens(one)) for one in settled])
        self._is_last = is_last

    def beat(self, best: _Best, margin: float) -> bool:
        """Whether one is better by the margin, or has settled, and is clearly better."""
        speed, tokens, final_tokens = best
        if self._measured.reaches(speed * (1 + margin), tokens * (1 + margin)):
            return True
        return not self._is_last and self._settled.reaches(
            speed * (1 + SPEED_MARGIN), final_tokens * (1 + margin)
        )


class Envelope:
    """The highest second value of pairs, by their first one."""

    def __init__(self, pairs: Sequence[tuple[float, float]]) -> None:
        front = [pairs[i] for i in front_of(pairs)]
        self._falling = [-first for first, _ in front]
        self._highest = [second for _, second in front]

    def reaches(self, first: float, second: float) -> bool:
        """Whether a pair has at least both."""
        count = bisect.bisect_right(self._falling, -first)
        return count > 0 and self._highest[count - 1] >= second


def _decodes(plan: Plan) -> tuple[Any, ...]:
    """What a plan's speed with the least load depends on: its instances that decode."""
    pool = plan.pools[-1]
    chunks = plan.engine if pool.role is None else ()  # prompts run between its decodes
    return (plan.model, plan.device, pool.shape, chunks)


def _alone_first(points: Sequence[Point]) -> list[int]:
    """Of equal instances that decode the point with the least load, then the others, spread."""
    least: dict[tuple[Any, ...], tuple[float, int]] = {}
    for i, point in enumerate(points):
        key = _decodes(point.plan)
        load = (point.rate / point.plan.pools[-1].count, i)
        least[key] = min(least.get(key, load), load)
    first = sorted(i for _, i in least.values())
    others = np.array(sorted(set(range(len(points))) - set(first)), dtype=np.int64)
    # Every 8th, then every 4th, and so on: each wave is spread over all of them.
    spread = [others[begin::step] for begin, step in ((0, 8), (4, 8), (2, 4), (1, 2))]
    return [*first, *(i for part in spread for i in part.tolist())]


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
    """Reasons to prune; those of a plan are looked at once for each layout, not for each count, and
    not for each rate of points that follow each other.
    """

    def __init__(self, load: Load, targets: Targets) -> None:
        self._load, self._targets = load, targets
        self._pools: dict[tuple[Any, ...], tuple[Reason, float]] = {}
        self._plan: Plan | None = None
        self._of_plan: list[tuple[Reason, float]] = []

    def reason(self, point: Point, options: LoweringOptions) -> Reason:
        """Why the point cannot meet the targets; without a name where it may be run."""
        from llmsim.sizing.bounds import COMPUTE

        if point.plan is not self._plan:
            self._plan, self._of_plan = point.plan, list(self._limits(point.plan, options))
        for reason, most in self._of_plan:
            if reason.name:
                return reason
            if point.rate > most:
                return Reason(COMPUTE, f"{point.rate:g}/s", point.rate / most)
        return Reason()

    def _limits(self, plan: Plan, options: LoweringOptions) -> Iterator[tuple[Reason, float]]:
        """Of each pool, why it can be in no plan, or the highest rate of its instances."""
        for at, pool in enumerate(plan.pools):
            key = (plan.model, plan.device, plan.engine, pool.shape, pool.role)
            if key not in self._pools:
                self._pools[key] = self._limit(plan, at, options)
            reason, most = self._pools[key]
            yield reason, most * pool.count

    def _limit(self, plan: Plan, at: int, options: LoweringOptions) -> tuple[Reason, float]:
        from llmsim.sizing.bounds import most_per_instance

        alone = plan.with_counts(*(1 for _ in plan.pools))
        reason = _pool_reason(alone, at, self._load.scaled(1e-6), self._targets, options)
        if reason.name:
            return reason, math.inf
        role = plan.pools[at].role or "both"
        return reason, most_per_instance(alone, role, self._load, options)


def _pool_reason(
    plan: Plan, at: int, load: Load, targets: Targets, options: LoweringOptions
) -> Reason:
    """Why a pool cannot be part of any plan, from a plan of that pool in every role."""
    pools = tuple(replace(plan.pools[at], role=pool.role, count=1) for pool in plan.pools)
    alike = replace(plan, pools=pools)
    role = plan.pools[at].role
    if role == "prefill":
        targets = targets.only("ttft")
    elif role == "decode":
        targets = targets.only("tpot")
    return pruned_reason(alike, load, targets, RUNGS[0], options)


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
        problem = "" if run.complete else f"{counted(run.unfinished, 'request')} did not end"
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
    what = plural(found.candidates, "candidate")
    lines = [f"{found.candidates:,} {what}, {pruned.total():,} pruned without a run:"]
    lines += [f"  {count:>9,}  {reason}" for reason, count in pruned.most_common()]
    beaten = dict(found.beaten)
    for requests, points, new in found.rungs:
        unneeded = f", {beaten[requests]:,} beaten without a run" if beaten.get(requests) else ""
        ran = f"{grouped(points, 'point')} with {grouped(requests, 'request')}"
        lines.append(f"{ran} ({new:,} new){unneeded}")
    return "\n".join(lines)
