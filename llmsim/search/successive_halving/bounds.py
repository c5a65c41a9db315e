"""What the figures of a point cannot be better than, known before it runs."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmsim.config.errors import InvariantError
from llmsim.core import PS_PER_MS, PS_PER_S
from llmsim.model import load_model
from llmsim.search.apply import Base, Run, run_of, shown
from llmsim.search.figures import DEVICES
from llmsim.search.journal import Trial, key_of
from llmsim.search.rates import RATE, at_rate
from llmsim.search.space import REQUESTS, Point
from llmsim.search.templates import DEPLOYMENT
from llmsim.workload.dataset import load_dataset
from llmsim.workload.spec_text import PREFIX as SYNTHETIC

SLACK = 1e-6
"""Share by which a bound is wider, for figures are rounded."""
TPOT = re.compile(r"(?:p\d+|mean|median)_tpot_ms")
PLAIN = frozenset(
    {
        "--block-size",
        "--cost-source",
        "--cudagraph-capture-sizes",
        "--cudagraph-mode",
        "--dataset",
        "--disable-term",
        "--dtype",
        "--enable-prefix-caching",
        "--enforce-eager",
        "--engine-profile",
        "--goodput",
        "--gpu-memory-utilization",
        "--kv-cache-dtype",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--seed",
        REQUESTS,
    }
)
"""Options beside which every request is served whole, from its own arrival on."""
UNSERVED = ("calls=", "timeout=")
"""Keys of a synthetic workload whose requests come or go by what the run does."""
Range = tuple[float, float]
"""The least and the most that a figure can be."""
ANY: Range = (-math.inf, math.inf)
LeastSteps = Callable[[Sequence[Run]], list[int]]
"""The least time between two tokens of a request in each run, ps."""


@dataclass
class Bounds:
    """Bounds of the points of a model's deployments.

    A request's tokens come one step after the other, and no step is faster than the least entries
    of the compiled tables; the last answer ends no earlier than it does after its arrival.
    """

    base: Base
    least_steps: LeastSteps
    _steps_ps: dict[str, int] = field(default_factory=dict)
    _loads: dict[tuple[str, int], "_Load"] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the space has bounds at all."""
        file = self.base.space.file
        options = {*file.options, *(name for name in file.vary if name != RATE)}
        return bool(self.base.space.plans) and file.load is None and options <= PLAIN

    def look_at(self, points: Sequence[Point]) -> None:
        """Learns the steps of points; those of one kind of instance are compiled once."""
        new = {kind: point for point in points if (kind := self._kind(point)) not in self._steps_ps}
        runs = [run_of(self.base, point) for point in new.values()]
        self._steps_ps |= zip(new, self.least_steps(runs), strict=True)

    def of(self, point: Point, requests: int) -> Mapping[str, Range]:
        """The ranges of figures of a point with so many requests; others may be anything."""
        step_ps = self._steps_ps[self._kind(point)]
        plan = self.base.space.plans[str(point[DEPLOYMENT])]
        found: dict[str, Range] = {DEVICES: (plan.devices, plan.devices)}
        for name in (*self.base.space.file.minimise, *self.base.space.file.require):
            if TPOT.fullmatch(name):
                found[name] = (step_ps / PS_PER_MS * (1 - SLACK), math.inf)
        load = self._load(point, requests)
        if load.longest > load_model(plan.model).max_position_embeddings:
            return found  # answers end at the model's context
        return found | load.throughputs(step_ps)

    def check(self, trial: Trial, requests: int) -> None:
        """Raises InvariantError where a run is better than its bounds."""
        ranges = self.of(trial.point, requests)
        for name, value in trial.values.items():
            least, most = ranges.get(name, ANY)
            if not least <= value <= most:
                raise InvariantError(
                    f"{name} of {shown(trial.point)} is {value:.9g}, and its bounds are "
                    f"{least:.9g} and {most:.9g}; please report this"
                )

    def _kind(self, point: Point) -> str:
        """Equal for points whose answering instances have the same tables."""
        plan = self.base.space.plans[str(point[DEPLOYMENT])]
        pools = [(pool.shape, pool.role) for pool in plan.pools if pool.role != "prefill"]
        differing = (RATE, REQUESTS, DEPLOYMENT, "--dataset")
        options = {name: value for name, value in point.items() if name not in differing}
        return f"{plan.device} {pools} {key_of(options)}"

    def _load(self, point: Point, requests: int) -> "_Load":
        text = str(
            point.get("--dataset")
            or self.base.space.file.options.get("--dataset")
            or self.base.space.file.dataset
        )
        if RATE in point:
            text = at_rate(text, point[RATE])
        key = text, requests
        if key not in self._loads:
            self._loads[key] = _Load.of(text, requests)
        return self._loads[key]


@dataclass(frozen=True)
class _Load:
    """Arrivals and lengths of the requests of a run; without any where they are not known."""

    arrival_ps: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray

    @classmethod
    def of(cls, text: str, requests: int) -> "_Load":
        if not text.startswith(SYNTHETIC) or any(key in text for key in UNSERVED):
            return cls(*(np.empty(0, np.int64),) * 3)
        load = load_dataset(text, known_models=(), granularity=16, limit=requests)
        columns = load.arrival_ps, load.input_tokens, load.output_tokens
        return cls(*(column.astype(np.int64) for column in columns))

    @property
    def longest(self) -> int:
        """Tokens of the longest request; 0 without any."""
        return int((self.inputs + self.outputs).max(initial=0))

    def throughputs(self, step_ps: int) -> dict[str, Range]:
        """Of a run that serves all requests whole, each of which takes its steps."""
        if not len(self.arrival_ps) or int(self.arrival_ps.min()) < 0:
            return {}
        ends_ps = self.arrival_ps + (self.outputs - 1) * step_ps
        span_s = (int(ends_ps.max()) - int(self.arrival_ps.min())) / PS_PER_S
        if span_s <= 0:
            return {}
        inputs, outputs = int(self.inputs.sum()), int(self.outputs.sum())
        counts = {
            "request_throughput": len(self.arrival_ps),
            "output_throughput": outputs,
            "total_token_throughput": inputs + outputs,
        }
        return {name: (0.0, count / span_s * (1 + SLACK)) for name, count in counts.items()}
