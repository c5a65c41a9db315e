"""What the slowest requests of a run went through: their latency, its parts, and their company."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmsim.columns import FrontendCause, LatencyCauses
from llmsim.config.errors import InputError, nearest
from llmsim.core import PS_PER_MS, Int64, Status

if TYPE_CHECKING:
    from llmsim.api.result import Result

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end-to-end latency"}
ARTICLES = {"ttft": "a", "tpot": "a", "e2el": "an"}
PARTS = tuple(
    one.name.removesuffix("_ps") for one in (*LatencyCauses.COLUMNS, *FrontendCause.COLUMNS)
)
"""Parts of a latency, of which a run has those that it can have."""
WAITING = ("queue", "wait", "preemption")
"""Parts of a latency that pass before or between a request's own steps."""
FEWEST = 3
"""Requests that a cohort has at least, where so many finished."""
Rows = NDArray[np.intp]
Floats = NDArray[np.float64]


def checked_metric(metric: str) -> str:
    """The metric; raises InputError for one that is unknown."""
    if metric not in METRICS:
        raise InputError(
            f'metric is "{metric}"{nearest(metric, METRICS)}; it may be {", ".join(METRICS)}',
            field="metric",
            value=metric,
        )
    return metric


def checked_percentile(percentile: float) -> float:
    """The percentile; raises InputError for one that is no percentile."""
    if 0 < percentile < 1:
        raise InputError(
            f"percentile is {percentile:g} (did you mean {100 * percentile:g}?); it must be 0, or "
            "from 1 to below 100, such as 99",
            field="percentile",
            value=percentile,
        )
    if not 0 <= percentile < 100:
        raise InputError(
            f"percentile is {percentile:g}; it must be at least 0 and below 100, such as 99",
            field="percentile",
            value=percentile,
        )
    return percentile


def metric_ms(result: "Result", metric: str) -> Floats:
    """One value per request of the workload; NaN where the request has none."""
    requests = result._results.requests
    tokens = requests.emitted_tokens.astype(np.int64)
    value = {
        "ttft": requests.first_token_ps - requests.arrival_ps,
        "tpot": (requests.finish_ps - requests.first_token_ps) / np.maximum(tokens - 1, 1),
        "e2el": requests.finish_ps - requests.arrival_ps,
    }[metric]
    known = requests.status == Status.FINISHED
    if metric == "tpot":
        known = known & (tokens > 1)
    return np.where(known, value / PS_PER_MS, np.nan)


@dataclass(frozen=True)
class Slowness:
    """How slow the slowest requests are, ms."""

    value_ms: float
    """The percentile."""
    mean_ms: float
    """The mean of the requests from the percentile on."""


def slowness_of(values_ms: Floats, percentile: float) -> Slowness | None:
    """Over the values that are numbers; None without any."""
    known = values_ms[~np.isnan(values_ms)]
    if not len(known):
        return None
    value = float(np.percentile(known, percentile))
    return Slowness(value, float(known[known >= value].mean()))


def percentile_ms(result: "Result", metric: str, percentile: float) -> float | None:
    """The percentile over the finished requests; None where none has the metric."""
    found = slowness_of(metric_ms(result, metric), percentile)
    return None if found is None else found.value_ms


@dataclass(frozen=True, eq=False)
class Seen:
    """A run, one of its metrics, and its slowest requests."""

    result: "Result"
    metric: str
    percentile: float

    @cached_property
    def values_ms(self) -> Floats:
        """The metric of each request; NaN where there is none."""
        return metric_ms(self.result, self.metric)

    @cached_property
    def known(self) -> Rows:
        """Requests that have the metric."""
        return np.flatnonzero(~np.isnan(self.values_ms))

    @cached_property
    def slowness(self) -> Slowness:
        """Of the run as it is; raises InputError where no request has the metric."""
        found = slowness_of(self.values_ms, self.percentile)
        if found is None:
            enough = " with answers of several tokens" if self.metric == "tpot" else ""
            raise InputError(
                f"no request of this run has {ARTICLES[self.metric]} {METRICS[self.metric]}; run "
                f"one whose requests finish{enough}"
            )
        return found

    @property
    def value_ms(self) -> float:
        """The percentile; raises InputError where no request has the metric."""
        return self.slowness.value_ms

    @cached_property
    def cohort(self) -> Rows:
        """The requests from the percentile on, slowest first; FEWEST at least."""
        ordered = self.known[np.argsort(-self.values_ms[self.known], kind="stable")]
        return ordered[: max(self.reached, FEWEST)]

    @cached_property
    def reached(self) -> int:
        """How many requests reach the percentile."""
        return int(np.count_nonzero(self.values_ms[self.known] >= self.value_ms))

    @cached_property
    def before(self) -> Mapping[str, Int64]:
        """Parts of each request's time to first token, ps."""
        return _parts(self.result._results.first_token_blame())

    @cached_property
    def after(self) -> Mapping[str, Int64]:
        """Parts of each request's time after its first token, ps."""
        whole = self.result._results.blame
        return {name: part - self.before[name] for name, part in _parts(whole).items()}

    @cached_property
    def parts(self) -> Mapping[str, Int64]:
        """Parts of the time that the metric covers, ps."""
        if self.metric == "ttft":
            return self.before
        if self.metric == "tpot":
            return self.after
        return {name: before + self.after[name] for name, before in self.before.items()}

    def share(self, *names: str, rows: Rows | None = None) -> float:
        """The share of these parts in the time of the cohort, or of other rows."""
        chosen = self.cohort if rows is None else rows
        total = sum(int(part[chosen].sum()) for part in self.parts.values())
        mine = sum(int(self.parts[name][chosen].sum()) for name in names)
        return mine / total if total else 0.0

    @cached_property
    def group(self) -> NDArray[np.int16]:
        """The group that answered each request; -1: none."""
        return self.result._results.requests.group

    @cached_property
    def prompt_group(self) -> NDArray[np.int16]:
        """The group that computed each prompt."""
        transfers = self.result._results.kv_transfers
        if transfers is None:
            return self.group
        return np.where(transfers.prefill_group >= 0, transfers.prefill_group, self.group)

    @cached_property
    def waiting_group(self) -> NDArray[np.int16]:
        """The group at which a request waits in the metric's time."""
        return self.group if self.metric == "tpot" else self.prompt_group

    @cached_property
    def prompt_done_ps(self) -> Int64:
        """When each prompt was computed: the end of the prefill, or the first token."""
        results = self.result._results
        first, transfers = results.requests.first_token_ps, results.kv_transfers
        if transfers is None:
            return first
        return np.where(transfers.prefill_end_ps >= 0, transfers.prefill_end_ps, first)

    @cached_property
    def input_tokens(self) -> Int64:
        """Prompt tokens of each request."""
        return self.result._results.workload.input_tokens.astype(np.int64)

    def name(self, row: int) -> str:
        """The request's name in the trace, or its row."""
        names = self.result._results.workload.request_id
        return str(names[row]) if names else str(row)

    def steps_of(self, group: int) -> Mapping[str, NDArray[Any]]:
        """The steps of a group that ended before the run did."""
        steps = self.result._results.steps
        mine = (steps["group"] == group) & np.greater_equal(steps["end_ps"], 0)
        return {name: column[mine] for name, column in steps.items()}

    @cached_property
    def pools(self) -> list[list[int]]:
        """Groups that take requests from each other: the same model and role at the same time."""
        found: dict[tuple[str, str, str, int], list[int]] = {}
        firsts = [first for _, first in self.result._results.layout_visits]
        for group in self.result._prepared.deployment.groups:
            info = self.result._results.groups[group.index]
            visit = bisect_right(firsts, group.index)
            domain = "" if group.afd is None else group.afd.domain
            key = (info.model_name, str(group.pd_type), domain, visit)
            found.setdefault(key, []).append(group.index)
        return list(found.values())

    def pool_of(self, group: int) -> list[int]:
        """The groups among which the group's requests could have gone elsewhere."""
        return next(pool for pool in self.pools if group in pool)


def _parts(blame: Mapping[str, Int64]) -> dict[str, Int64]:
    """By part, without those that the run cannot have."""
    return {name: blame[f"{name}_ps"] for name in PARTS if f"{name}_ps" in blame}
