"""Points that cannot be an answer, found without a run: memory, layouts, the data sheet's speed."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.config.engine.options import command_line_options
from llmsim.config.errors import InfeasibleError, LlmsimError
from llmsim.lowering import LoweringOptions
from llmsim.search.figures import DEVICES, excluded_by_devices
from llmsim.search.rates import RATE, at_rate
from llmsim.search.space import Dimension, Point, Space
from llmsim.search.templates import DEPLOYMENT
from llmsim.sizing.bounds import (
    COMPUTE,
    LENGTH,
    MEMORY,
    SPLIT,
    TPOT,
    TTFT,
    Speed,
    first_groups,
    speed,
    views_of,
)
from llmsim.sizing.plan import Option, Plan, Pool, Shape
from llmsim.workload.dataset import load_dataset
from llmsim.workload.spec_text import PREFIX as SYNTHETIC

LATENCY = re.compile(r"(?:p(\d+)|mean|median)_(ttft|tpot)_ms")
LARGER = "give more gpus, or hardware with more memory"
FASTER = "relax the requirement, or give faster hardware"
REMEDIES = {
    DEVICES: "relax the requirement on devices",
    MEMORY: LARGER,
    SPLIT: "give other gpus, tp or pp",
    LENGTH: f"{LARGER}, or shorter requests",
    TPOT: FASTER,
    TTFT: FASTER,
    COMPUTE: "lower the rate, or give more gpus",
}
"""What lets points run that are pruned for a reason."""
SHARED = ("prefixes=", "calls=")
"""Keys of a synthetic workload whose prompts may be cached."""
US_PER_MS, US_PER_S, PS_PER_S = 1e3, 1e6, 1e12


@dataclass(frozen=True)
class _Instance:
    """What is known of one instance of a pool: why it cannot be, or how fast it is at best."""

    reason: str = ""
    sentence: str = ""
    kv_tokens: int = 0
    speed: Speed | None = None


@dataclass(frozen=True)
class _Verdict:
    """Why a point cannot be an answer at any rate, or the most requests per second of one."""

    reason: str = ""
    sentence: str = ""
    most_rate: float = math.inf


@dataclass
class Pruner:
    """Looks at points that differ in their rate alone together, and at each kind of instance once
    for all of them.
    """

    space: Space
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    _reasons: list[str] = field(default_factory=lambda: [""])
    _instances: dict[tuple[Any, ...], _Instance] = field(default_factory=dict)
    _lengths: dict[str, "_Lengths"] = field(default_factory=dict)

    def kept(self) -> NDArray[np.int64]:
        """The points that have to run, by their places in the grid (`Space.at`), ascending; the
        others are counted under their reasons.
        """
        codes = self._codes
        found, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
        for at in np.argsort(firsts):  # as somebody finds them who goes through the grid
            if reason := self._reasons[found[at]]:
                point = self.space.at(int(firsts[at]))
                self.counts[reason] = int(counts[at])
                self.examples[reason] = f"{point[DEPLOYMENT]}: {self._sentence(point)}"
        return np.flatnonzero(codes == 0)

    def pruned(self, reason: str) -> NDArray[np.int64]:
        """The places of the points that are pruned for a reason."""
        return np.flatnonzero(self._codes == self._code(reason))

    def _sentence(self, point: Point) -> str:
        """What is wrong with a point that is pruned."""
        verdict = self._verdict({name: value for name, value in point.items() if name != RATE})
        fastest = f"at most {verdict.most_rate:.4g} requests/s, not {point.get(RATE, 0.0):.4g}"
        return verdict.sentence or fastest

    @cached_property
    def _codes(self) -> NDArray[np.int8]:
        """For each point of the grid its reason, as a place in `_reasons`; 0: it has none."""
        dimensions = self.space.dimensions
        fixed = [one for one in dimensions if one.name != RATE]
        verdicts = self._verdicts(fixed)
        shape = [len(one.values) for one in fixed]
        codes = np.array([self._code(one.reason) for one in verdicts], np.int8).reshape(*shape, 1)
        names = [one.name for one in dimensions]
        if RATE not in names:
            return codes.ravel()
        at = names.index(RATE)
        most = np.array([one.most_rate for one in verdicts]).reshape(*shape, 1)
        too_fast = np.array(dimensions[at].values, np.float64) > most
        codes = np.where((codes == 0) & too_fast, np.int8(self._code(COMPUTE)), codes)
        return np.moveaxis(codes, -1, at).ravel()

    def _verdicts(self, fixed: Sequence[Dimension]) -> list["_Verdict"]:
        """Those of all points of these dimensions, the last one varying fastest."""
        names = [one.name for one in fixed]
        points = itertools.product(*(one.values for one in fixed))
        return [self._verdict(dict(zip(names, values, strict=True))) for values in points]

    def _code(self, reason: str) -> int:
        if reason not in self._reasons:
            self._reasons.append(reason)
        return self._reasons.index(reason)

    def _verdict(self, point: Point) -> "_Verdict":
        """What is known of a point at any rate."""
        plan = self.space.plans[point[DEPLOYMENT]]
        if excluded := excluded_by_devices(self.space, plan.devices):
            return _Verdict(DEVICES, excluded)
        options = {**self.space.file.options, **point}
        engine = engine_options(options)
        lengths = self._lengths_of(str(options.get("--dataset", self.space.file.dataset)))
        drafts = any("spec" in name for name in options)
        most = math.inf
        for pool in plan.pools:
            found = self._instance(plan, pool, engine)
            if found.reason:
                return _Verdict(found.reason, found.sentence)
            if pool.role != "prefill" and found.kv_tokens < lengths.longest:
                said = f"{lengths.longest} tokens, the KV of {found.kv_tokens} fits"
                return _Verdict(LENGTH, said)
            if found.speed is not None and not drafts:
                verdict = self._fastest(pool, found.speed, lengths)
                if verdict.reason:
                    return verdict
                most = min(most, verdict.most_rate)
        waits = any(name.startswith("--max-concurrency") for name in options)
        return _Verdict(most_rate=math.inf if waits else most)

    def _fastest(self, pool: Pool, found: Speed, lengths: "_Lengths") -> "_Verdict":
        """Whether the data sheet's peaks rule out what is required, or any rate of it."""
        most_rate = math.inf
        for name, bound in self.space.file.require.items():
            match = LATENCY.fullmatch(name)
            if match is None:
                continue
            most_us = bound.at_most * US_PER_MS
            if match[2] == "tpot":
                if pool.role != "prefill" and found.step_us > most_us:
                    return _Verdict(TPOT, f"{found.step_us / US_PER_MS:.1f} ms at least")
            elif pool.role != "decode" and not lengths.shared and match[1]:
                share = float(match[1])
                least = float(np.percentile(found.prompt_us(lengths.inputs), share))
                if least > most_us:
                    return _Verdict(TTFT, f"{least / US_PER_MS:.0f} ms at least")
                most_rate = min(most_rate, _most_rate(pool, found, lengths, share, most_us))
        return _Verdict(most_rate=most_rate)

    def _instance(self, plan: Plan, pool: Pool, engine: tuple[Option, ...]) -> _Instance:
        key = (plan.device, pool.shape, pool.role, engine)
        if key not in self._instances:
            self._instances[key] = _looked_at(plan, pool, engine)
        return self._instances[key]

    def _lengths_of(self, dataset: str) -> "_Lengths":
        if dataset not in self._lengths:
            halving = self.space.file.halving
            limit = halving.requests[-1] if halving else 0
            self._lengths[dataset] = _Lengths.of(dataset, limit)
        return self._lengths[dataset]


@dataclass(frozen=True)
class _Lengths:
    """Prompts of the requests that finalists run."""

    inputs: np.ndarray
    longest: int
    """Tokens of the longest request."""
    shared: bool
    """Whether prompts may be cached, so that no bound on their computation holds."""
    span_s: float
    """Time from 0 to the last arrival at one request per second."""

    @classmethod
    def of(cls, dataset: str, limit: int) -> "_Lengths":
        text = at_rate(dataset, 1.0) if dataset.startswith(SYNTHETIC) else dataset
        workload = load_dataset(text, known_models=(), granularity=16, limit=limit)
        inputs = workload.input_tokens.astype(np.int64)
        longest = int((inputs + workload.output_tokens - 1).max())
        shared = not dataset.startswith(SYNTHETIC) or any(key in dataset for key in SHARED)
        return cls(inputs, longest, shared, int(workload.arrival_ps.max()) / PS_PER_S)


def _most_rate(
    pool: Pool, found: Speed, lengths: _Lengths, percentile: float, most_us: float
) -> float:
    """The rate beyond which so many prompts cannot be computed until the target of the last one has
    passed: a share of all first tokens has to come by then.
    """
    work = np.sort(lengths.inputs)[: int(len(lengths.inputs) * percentile / 100)]
    needed_us = float(work.sum()) * found.token_us / pool.count
    if needed_us <= most_us:
        return math.inf
    return lengths.span_s * US_PER_S / (needed_us - most_us)


def _looked_at(plan: Plan, pool: Pool, engine: tuple[Option, ...]) -> _Instance:
    """One instance of a pool beside one of each other role."""
    pools = tuple(_beside(pool, other) for other in plan.pools)
    alike = replace(plan, pools=pools, engine=engine)
    at = [other.role for other in plan.pools].index(pool.role)
    try:
        views = views_of(alike.deployment(), pool, first_groups(alike)[at], LoweringOptions())
    except InfeasibleError as error:
        return _Instance(MEMORY, str(error))
    except LlmsimError as error:
        return _Instance(SPLIT, str(error))
    return _Instance("", "", views[0].kv_tokens, speed(views, pool.shape))


def _beside(pool: Pool, other: Pool) -> Pool:
    """One instance of another role, laid out alike; only decodes have attention and FFN apart."""
    whole = other.role == pool.role or not pool.shape.ffn
    return Pool(pool.shape if whole else Shape(), 1, other.role)


def engine_options(options: dict[str, Any]) -> tuple[Option, ...]:
    """The engine options among those of a run, in the words of a cluster file."""
    known = command_line_options()
    found = {}
    for name, value in options.items():
        key = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and key in known and value is not None:
            json.dumps(value)
            found[key] = value
    return tuple(sorted(found.items()))
