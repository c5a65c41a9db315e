"""The load that a plan is measured with: equal draws at every level, so that levels compare."""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_S, Clients, Workload
from llmsim.sizing.targets import NO_CLASS

RATE, CONCURRENCY, TRACE = "rate", "concurrency", "trace"
MANY = 400
UNITS = {RATE: "requests/s", TRACE: "x the trace's rate"}


def shown_level(kind: str, level: float, digits: int = 6) -> str:
    """A level with its unit, such as `1 client` or `2.5 requests/s`."""
    if kind == CONCURRENCY:
        return "1 client" if level == 1 else f"{level:,.0f} clients"
    return f"{level:.{digits}g} {UNITS[kind]}"


@dataclass(frozen=True)
class Load:
    """What clients ask for.

    The level of a load is its requests per second, its clients in a closed loop, or the factor on
    a trace's own rate. Lengths and the gaps between arrivals are the same draws at every level.
    """

    kind: str
    level: float
    """The level that is asked for."""
    input: str = "fixed:1000"
    output: str = "fixed:200"
    dataset: str = ""
    seed: int = 1
    classes: str = ""
    """Classes of the requests and their shares, such as chat:0.7|batch:0.3."""

    def workload(self, level: float, requests: int, granularity: int) -> Workload:
        """The first requests at a level."""
        base = _base(self._text(requests), requests, granularity)
        if self.kind == CONCURRENCY:  # a client asks as soon as it has its answer
            return replace(base, arrival_ps=np.minimum(base.arrival_ps, 0))
        scaled = np.where(
            base.arrival_ps >= 0, np.round(base.arrival_ps / level).astype(np.int64), -1
        )
        return replace(base, arrival_ps=scaled)

    def clients(self, level: float) -> Clients | None:
        """The closed loop of a level; None for arrivals that wait for nobody."""
        if self.kind != CONCURRENCY:
            return None
        return Clients(max(1, round(level)), np.empty(0, np.int64))

    def lengths(self, requests: int) -> tuple[np.ndarray, np.ndarray]:
        """Prompt and answer tokens of the first requests."""
        base = _base(self._text(requests), requests, 16)
        return base.input_tokens, base.output_tokens

    def classes_of(self, requests: int) -> "np.ndarray | None":
        """The class of each of the first requests, as keys of targets have it; None: no request
        has one.
        """
        names = _base(self._text(requests), requests, 16).slo_class
        return None if names is None else np.array([name or NO_CLASS for name in names])

    def has_equal_requests(self) -> bool:
        """Whether all requests have the same lengths, so that few of them show what many do."""
        return not self.dataset and all(len(np.unique(one)) == 1 for one in self.lengths(MANY))

    def shares_prefixes(self) -> bool:
        """Whether prompts may be cached, so that no bound on their computation holds."""
        return self.kind == TRACE

    @property
    def natural_rate(self) -> float:
        """Requests per second of a trace at its own pace; 0 where it has none."""
        base = _base(self._text(0), 0, 16)
        arrivals = base.arrival_ps[base.arrival_ps >= 0]
        span = int(arrivals.max() - arrivals.min()) if len(arrivals) > 1 else 0
        return (len(arrivals) - 1) * PS_PER_S / span if span else 0.0

    def run_options(self, requests: int) -> tuple[str, dict[str, Any]]:
        """The dataset and the options of `llmsim.run` that simulate the first requests at the
        level.
        """
        if self.kind == TRACE:
            path = Path(self.dataset)
            return str(path.resolve()) if path.exists() else self.dataset, {"seed": self.seed}
        closed = self.kind == CONCURRENCY
        clients = {"max_concurrency": round(self.level)} if closed else {}
        text = self._text(requests, "inf" if closed else repr(self.level))
        return text, {**clients, "seed": self.seed}

    def run_arguments(self, requests: int) -> list[str]:
        """The same as arguments of `llmsim run`."""
        dataset, options = self.run_options(requests)
        given = [("--" + name.replace("_", "-"), str(value)) for name, value in options.items()]
        return ["--dataset", dataset, *(word for pair in given for word in pair)]

    def scaled(self, level: float) -> "Load":
        """The same load with another level to reach."""
        return dataclasses.replace(self, level=level)

    def _text(self, requests: int, rate: str = "1") -> str:
        if self.dataset:
            return self.dataset
        classes = f"classes={self.classes}," if self.classes else ""
        return (
            f"synthetic:n={requests},rate={rate},{classes}input={self.input},output={self.output},"
            f"seed={self.seed}"
        )


@lru_cache(maxsize=64)
def _base(text: str, requests: int, granularity: int) -> Workload:
    from llmsim.workload import load_dataset

    workload = load_dataset(text, known_models=(), granularity=granularity, limit=requests)
    if not len(workload):
        raise InputError(f"{text}: the trace has no request", field="dataset", value=text)
    return workload
