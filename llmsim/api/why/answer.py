"""`why`: blame of the slowest requests, causes that a run has confirmed, and what would help."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim.api.why.blockers import Blocker, Blockers
from llmsim.api.why.causes import Candidate, Kind, candidates
from llmsim.api.why.changes import Change, more_instances
from llmsim.api.why.machines import limits
from llmsim.api.why.request import RequestStory, story_of
from llmsim.api.why.seen import (
    METRICS,
    Rows,
    Seen,
    Slowness,
    checked_metric,
    checked_percentile,
    metric_ms,
    slowness_of,
)
from llmsim.config.errors import InfeasibleError, InputError
from llmsim.core import PS_PER_MS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from llmsim.api.result import Result

MATERIAL = 0.25
"""Part of the percentile, or of the mean from it on, that a remedy must take away to confirm a
cause.
"""
MATERIAL_OF_SIZE = 0.35
"""The same for too few devices: twice as many take a quarter from the tail of many healthy runs."""
HALF = 0.5
"""A cause of a lower kind comes first if it explains this part of what a higher kind does."""
DIGITS = 6
NONE_FINISHED = "no request of the changed run has the metric"


@dataclass(frozen=True)
class WhatIf:
    """A change, and the percentile in ms without and with it.

    `after` is None where the changed run is not possible. The means are those of the requests from
    the percentile on.
    """

    change: str
    before: float
    after: float | None
    cause: str | None = None
    problem: str | None = None
    """Why the changed run is not possible."""
    mean_before: float = 0.0
    mean_after: float | None = None
    group: int | None = None
    """The group of the cause."""

    @property
    def reduction(self) -> float:
        """The part of the percentile that the change takes away; negative where it adds."""
        return _part_taken(self.before, self.after)

    @property
    def mean_reduction(self) -> float:
        """The same of the mean of the requests from the percentile on."""
        return _part_taken(self.mean_before, self.mean_after)

    def relief(self, kind: Kind) -> float:
        """The part by which the change confirms a cause of a kind.

        A percentile is one request, which may stand just beyond those that a cause delays. So the
        mean counts as well where the percentile does not rise. More devices shorten every tail, and
        so their cause has to show in the percentile.
        """
        if kind == Kind.SIZE or self.reduction < 0:
            return self.reduction
        return max(self.reduction, self.mean_reduction)


def _part_taken(before: float, after: float | None) -> float:
    return 0.0 if after is None or not before else 1 - after / before


@dataclass(frozen=True)
class Cause:
    """A reason for the percentile that a run has confirmed."""

    name: str
    group: int | None
    share: float
    """The share of the slowest requests' time that shows it."""
    evidence: str
    resource: str
    reduction: float
    """What its best remedy takes away from the percentile, or from the mean beyond it."""


@dataclass(frozen=True, eq=False)
class Why:
    """The answer: who is slow, what they wait for, why, and what would help."""

    seen: Seen = field(repr=False)
    causes: tuple[Cause, ...]
    what_ifs: tuple[WhatIf, ...]
    blockers: tuple[Blocker, ...]
    limits: tuple[dict[str, Any], ...] = field(repr=False)
    request: RequestStory | None = None

    def to_dict(self) -> dict[str, Any]:
        """What `llmsim why --json` prints."""
        seen = self.seen
        return {
            "metric": seen.metric,
            "percentile": seen.percentile,
            "value_ms": round(seen.value_ms, DIGITS),
            "slowest": {
                "requests": len(seen.cohort),
                "request_ids": [seen.name(row) for row in seen.cohort[:100].tolist()],
                "groups": _counts(seen, seen.cohort),
            },
            "blame": _blame(seen),
            "behind": [
                {
                    "request_id": seen.name(one.row),
                    "input_tokens": one.input_tokens,
                    "delayed_requests": one.delayed,
                    "overlap_ms": round(one.overlap_ps / PS_PER_MS, DIGITS),
                }
                for one in self.blockers
            ],
            "limits": list(self.limits),
            "causes": [
                {
                    "name": one.name,
                    "group": one.group,
                    "share": round(one.share, DIGITS),
                    "evidence": one.evidence,
                    "resource": one.resource,
                    "reduction": round(one.reduction, DIGITS),
                }
                for one in self.causes
            ],
            "what_ifs": [
                {
                    "change": one.change,
                    "before": round(one.before, DIGITS),
                    "after": None if one.after is None else round(one.after, DIGITS),
                    "cause": one.cause,
                    "problem": one.problem,
                    "slowest_mean_before": round(one.mean_before, DIGITS),
                    "slowest_mean_after": None
                    if one.mean_after is None
                    else round(one.mean_after, DIGITS),
                }
                for one in self.what_ifs
            ],
            "request": None if self.request is None else self.request.to_dict(),
        }

    def plot(self) -> "Figure":
        """The answer as a picture: blame before and after the first token, and what-ifs."""
        from llmsim.api.why.picture import picture

        return picture(self)

    def __str__(self) -> str:
        from llmsim.api.why.text import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        """The answer for notebooks."""
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def why(
    result: "Result",
    metric: str = "ttft",
    percentile: float = 99.0,
    *,
    request: str | int | None = None,
    what_if: int | None = None,
) -> Why:
    """Explains a percentile of a result.

    `what_if` is the most changes that runs test (None: those that may matter, 0: none; then no
    cause is confirmed and candidates are causes). `request` adds one request's story. Raises
    InputError for an unknown metric, percentile or request, and where no request finished.
    """
    seen = Seen(result, checked_metric(metric), checked_percentile(percentile))
    _ = seen.value_ms
    _check_steps(seen)
    story = None if request is None else story_of(seen, request)
    found = candidates(seen)
    tested = _tested(seen, found, what_if)
    causes = _causes(found, tested, confirmed=what_if != 0)
    ranked = sorted(tested, key=lambda one: (one.after is None, one.after))
    return Why(
        seen,
        tuple(causes),
        tuple(ranked),
        tuple(Blockers(seen).of_cohort()) if metric != "tpot" else (),
        tuple(limits(seen)),
        story,
    )


def _check_steps(seen: Seen) -> None:
    results = seen.result._results
    if not len(results.steps.get("group", ())):
        raise InputError("this run recorded no steps; run it with steps=True, which is the default")


def _tested(seen: Seen, found: Sequence[Candidate], most: int | None) -> list[WhatIf]:
    """The remedies of all candidates, most suspicious first, each run once."""
    planned: dict[str, tuple[Change, Candidate | None]] = {}
    for one in sorted(found, key=lambda one: (one.kind, -one.share)):
        for change in one.remedies:
            planned.setdefault(change.text, (change, one))
    for change in _general(seen):
        planned.setdefault(change.text, (change, None))
    chosen = list(planned.values())[:most]
    return [_run(seen, change, cause) for change, cause in chosen]


def _general(seen: Seen) -> Iterator[Change]:
    """What is worth to know of any run: whether more instances help."""
    group = int(np.bincount(seen.waiting_group[seen.cohort]).argmax())
    yield more_instances(seen.result, seen.pool_of(group))


def _run(seen: Seen, change: Change, candidate: Candidate | None) -> WhatIf:
    import warnings

    cause = None if candidate is None else candidate.name
    group = None if candidate is None else candidate.group

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = change.make(seen.result.inputs).run(steps=False, series=False)
    except (InputError, InfeasibleError) as error:
        return WhatIf(change.text, seen.value_ms, None, cause, str(error), group=group)
    before = _without_change(seen, change)
    after = slowness_of(metric_ms(other, seen.metric), seen.percentile)
    if after is None:
        return WhatIf(change.text, before.value_ms, None, cause, NONE_FINISHED, group=group)
    return WhatIf(
        change.text,
        before.value_ms,
        after.value_ms,
        cause,
        mean_before=before.mean_ms,
        mean_after=after.mean_ms,
        group=group,
    )


def _without_change(seen: Seen, change: Change) -> Slowness:
    """The run as it is, over the requests that the changed run has as well."""
    if change.most_input_tokens is None:
        return seen.slowness
    kept = seen.known[seen.input_tokens[seen.known] <= change.most_input_tokens]
    found = slowness_of(seen.values_ms[kept], seen.percentile)
    return seen.slowness if found is None else found


def _causes(
    found: Sequence[Candidate], tested: Sequence[WhatIf], *, confirmed: bool
) -> list[Cause]:
    """Candidates that a run confirms, in order of what their best remedy takes away."""
    causes = [_cause(one, _best_relief(one, tested)) for one in found]
    chosen = list(zip(found, causes, strict=True))
    if confirmed:
        chosen = [(one, cause) for one, cause in chosen if cause.reduction >= _material(one.kind)]
    ranked: list[Cause] = []
    for kind in sorted(Kind, reverse=True):
        mine = [cause for one, cause in chosen if one.kind == kind]
        mine.sort(key=lambda cause: -cause.reduction)
        enough = not ranked or any(cause.reduction >= HALF * ranked[0].reduction for cause in mine)
        ranked = [*mine, *ranked] if enough else [*ranked, *mine]
    return ranked


def _material(kind: Kind) -> float:
    return MATERIAL_OF_SIZE if kind == Kind.SIZE else MATERIAL


def _best_relief(candidate: Candidate, tested: Sequence[WhatIf]) -> float:
    """What the best remedy of a candidate takes away; one name may have candidates of several
    groups.
    """
    mine = [
        one.relief(candidate.kind)
        for one in tested
        if (one.cause, one.group) == (candidate.name, candidate.group)
    ]
    return max(mine, default=0.0)


def _cause(one: Candidate, reduction: float) -> Cause:
    return Cause(one.name, one.group, one.share, one.evidence, one.resource, reduction)


def _counts(seen: Seen, rows: Rows) -> dict[str, int]:
    groups, counts = np.unique(seen.waiting_group[rows], return_counts=True)
    return {str(int(group)): int(count) for group, count in zip(groups, counts, strict=True)}


def _blame(seen: Seen) -> dict[str, dict[str, dict[str, float]]]:
    """Mean ms of each part before and after the first token, of the slowest and of all."""
    return {
        name: {
            part: {
                "slowest_ms": _mean_ms(parts[part][seen.cohort]),
                "all_ms": _mean_ms(parts[part][seen.known]),
            }
            for part in parts
        }
        for name, parts in (
            ("before_first_token", seen.before),
            ("after_first_token", seen.after),
        )
    }


def _mean_ms(times_ps: "np.ndarray[Any, np.dtype[np.int64]]") -> float:
    return round(float(times_ps.mean()) / PS_PER_MS, DIGITS) if len(times_ps) else 0.0


def title(seen: Seen) -> str:
    """The percentile in words, such as p99 TTFT."""
    return f"p{seen.percentile:g} {METRICS[seen.metric]}"
