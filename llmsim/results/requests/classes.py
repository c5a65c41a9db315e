"""Classes of requests with latency targets of their own: how options write the targets, and
`classes` of the summary.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from llmsim.config.errors import InputError, nearest
from llmsim.core import PS_PER_S, Results, Status, Workload
from llmsim.exact import exact_sum
from llmsim.results.requests.goodput import SESSION_TARGET, TARGETS, goodput_block, parse_targets
from llmsim.results.requests.metrics import describe, latencies, makespan_ps, statistics_ms

EXAMPLE = "interactive=ttft:300,tpot:20;batch=e2el:60000"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_DIGITS = 6


class Objectives(Struct, frozen=True):
    """Latency targets, ps by the name of a latency."""

    targets_ps: Mapping[str, int] = field(default_factory=dict)
    """Those of requests whose class has none of its own."""
    classes_ps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, slo_class: str) -> Mapping[str, int]:
        """The targets of a class; "" stands for requests that are in none."""
        return self.classes_ps.get(slo_class, self.targets_ps)

    def over(self, others: Mapping[str, Mapping[str, int]]) -> "Objectives":
        """These, and those of other classes that these do not name."""
        return Objectives(self.targets_ps, {**others, **self.classes_ps})

    def check(self, classes: Collection[str], option: str) -> None:
        """Raises InputError for a class with targets that is none of a load's `classes`."""
        present = {name for name in classes if name}
        for name in self.classes_ps:
            if name not in present:
                raise InputError(
                    f'{option}: no request has the slo_class "{name}"{nearest(name, present)}; '
                    + _known_classes(present),
                    field=option,
                    value=name,
                )


def _known_classes(present: Collection[str]) -> str:
    if present:
        return f"classes of the load: {', '.join(sorted(present))}"
    return (
        "the load has no classes; `slo_class` of a trace names them, and `classes` of a drawn "
        "load, as chat:0.7|batch:0.3"
    )


def parse_objectives(
    texts: Sequence[str], option: str = "--goodput", known: tuple[str, ...] = TARGETS
) -> Objectives:
    """`ttft:1000,tpot:40`, `interactive=ttft:300,tpot:20;batch=e2el:60000`, or both joined by a
    semicolon; classes know the latencies of a request alone. Raises InputError.
    """
    plain: list[str] = []
    classes: dict[str, Mapping[str, int]] = {}
    for part in (part.strip() for text in texts for part in text.split(";")):
        name, equals, limits = part.partition("=")
        if not equals:
            plain.append(part)
            continue
        name = name.strip()
        if name in known and ":" not in limits.partition(",")[0]:
            raise InputError(
                f'{option}: "{part.partition(",")[0]}" has no colon; write NAME:MILLISECONDS, as '
                "ttft:1000,tpot:40 (an equals sign follows the name of a class)"
            )
        if not _NAME.match(name):
            raise InputError(
                f'{option}: "{name}" is no name of a class; write NAME=LIMITS with letters, '
                f"digits, dots, dashes and underscores, as {EXAMPLE}"
            )
        if name in classes:
            raise InputError(f"{option}: the class {name} is given twice; give it once")
        classes[name] = parse_targets([limits], f"{option} {name}")
    everyone = parse_targets([one for one in plain if one or not classes], option, known)
    if classes and SESSION_TARGET in everyone:
        raise InputError(
            f"{option}: attft counts sessions, and classes count requests; leave one of them out"
        )
    return Objectives(everyone, classes)


def goodput(results: Results, objectives: Objectives) -> dict[str, Any] | None:
    """`goodput` of the summary; where classes have targets, each request by those of its class.

    `targets_ms` and `shares` are then those of the other requests, and requests without a target
    are not counted.
    """
    if not objectives.classes_ps:
        return goodput_block(results, objectives.targets_ps)
    names = _names(results.workload)
    others = ~np.isin(names, list(objectives.classes_ps))
    rest = goodput_block(results, objectives.targets_ps, others)
    blocks = [
        goodput_block(results, limits_ps, names == name)
        for name, limits_ps in objectives.classes_ps.items()
    ]
    good = sum(block["good"] for block in (*blocks, rest) if block is not None)
    total = len(names) - (0 if rest is not None else int(np.count_nonzero(others)))
    duration_ps = makespan_ps(results)
    return {
        "targets_ms": {} if rest is None else rest["targets_ms"],
        "good": good,
        "share": round(good / total, _DIGITS) if total else None,
        "shares": {} if rest is None else rest["shares"],
        "request_goodput": round(good * PS_PER_S / duration_ps, _DIGITS) if duration_ps else None,
    }


def classes_block(results: Results, objectives: Objectives) -> dict[str, Any]:
    """`classes` of the summary: counts, throughput, latencies and goodput of each class."""
    names = _names(results.workload)
    return {
        name: _class(results, names == name, objectives.of(name))
        for name in sorted(set(names.tolist()) - {""})
    }


def _class(
    results: Results, rows: NDArray[np.bool_], targets_ps: Mapping[str, int]
) -> dict[str, Any]:
    requests = results.requests
    finished = np.flatnonzero(rows & (requests.status == Status.FINISHED))
    times = latencies(requests, finished)
    duration_ps = makespan_ps(results)
    output_tokens = exact_sum(requests.emitted_tokens[finished])
    block: dict[str, Any] = {
        "requests": int(np.count_nonzero(rows)),
        "completed": len(finished),
        "total_input_tokens": exact_sum(results.workload.input_tokens[finished]),
        "total_output_tokens": output_tokens,
        "request_throughput": _per_second(len(finished), duration_ps),
        "output_throughput": _per_second(output_tokens, duration_ps),
    }
    for name, values in (
        ("ttft", times.ttft_ps),
        ("tpot", times.tpot_ps),
        ("e2el", times.e2el_ps),
        ("queueing_delay", times.queueing_ps),
    ):
        block |= statistics_ms(name, describe(values))
    return {**block, "goodput": goodput_block(results, targets_ps, rows)}


def _names(workload: Workload) -> NDArray[np.str_]:
    """The class of each row; "" for none."""
    given = workload.slo_class
    return np.zeros(len(workload), "U1") if given is None else np.array(given, dtype=np.str_)


def _per_second(amount: int, duration_ps: int | None) -> float | None:
    return round(amount * PS_PER_S / duration_ps, _DIGITS) if duration_ps else None
