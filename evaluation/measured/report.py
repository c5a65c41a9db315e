"""Tables of errors: a row for each point, and their medians."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from measured.kv import Server
from measured.points import METRICS, Point

TARGETS = {"throughput": (5, 15), "ttft": (10, 30), "tpot": (5, 12)}
"""Median and 90th percentile of |error|, percent, unfitted."""


@dataclass(frozen=True)
class Row:
    """A point and its errors in percent, or why it has none."""

    point: Point
    errors: dict[str, float]
    skipped: str = ""
    own_share: float = 1.0
    """Share of the busy time from tables of the device itself."""
    kind: str = "dense_queued"
    """What `llmsim.results.error_bars.kind_of` says of the run."""


@dataclass(frozen=True)
class KvRow:
    """A server's start-up and the error of its predicted tokens in percent, or why it has none."""

    server: Server
    error: float
    predicted: int = 0
    skipped: str = ""


KV_TARGET_PERCENT = 3.0


def kv_markdown(rows: Sequence[KvRow]) -> str:
    """The tokens of each cache, how many servers are within the target, and what was skipped."""
    done = [row for row in rows if not row.skipped]
    if not done:
        return "No start-up log can be predicted here."
    lines = [
        "| log | vLLM | model | ranks | tokens | predicted | error, % |",
        "| --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    for row in done:
        one = row.server
        ranks = ", ".join(f"{name} {size}" for name, size in one.ranks.items() if size > 1)
        cells = (one.name, one.version, one.model, ranks, f"{one.tokens:,}", f"{row.predicted:,}")
        lines.append(f"| {' | '.join(cells)} | {row.error:+.1f} |")
    worst = _worst_by_system(done)
    within = sum(error <= KV_TARGET_PERCENT for error in worst)
    name = max(done, key=lambda row: abs(row.error)).server.name
    lines += [
        "",
        f"{within} of {len(worst)} servers are within {KV_TARGET_PERCENT:g} % (target: 80 %); "
        f"the worst is {name} with {max(worst):.1f} %.",
        "",
    ]
    lines += [f"- {row.server.name}: {row.skipped}" for row in rows if row.skipped]
    return "\n".join(lines)


def _worst_by_system(rows: Sequence[KvRow]) -> list[float]:
    """The largest absolute error of each system, percent."""
    by_system: dict[str, list[float]] = {}
    for row in rows:
        by_system.setdefault(row.server.system, []).append(abs(row.error))
    return [max(errors) for errors in by_system.values()]


def terms_markdown(rows: Sequence[Row], without: Mapping[str, Sequence[Row]]) -> str:
    """Median absolute errors with all terms, and with one removed at a time."""
    lines = [
        "| removed | throughput, % | TTFT, % | TPOT, % | throughput, grade C | TTFT, grade C |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in {"nothing": rows, **without}.items():
        counted = [row for row in found if row.point.counted]
        bounded = [row for row in found if row.point.grade == "C"]
        cells = [_median(counted, metric) for metric in METRICS]
        cells += [_median(bounded, metric) for metric in ("throughput", "ttft")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(rows: Sequence[Row], metric: str) -> str:
    errors = [abs(row.errors[metric]) for row in rows if metric in row.errors]
    return f"{statistics.median(errors):.1f}" if errors else ""


def points_markdown(rows: Sequence[Row]) -> str:
    """Every point, then medians of those that count, then what does not count or was skipped."""
    lines = [
        "| point | engine | grade | throughput, % | TTFT, % | TPOT, % |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [_point_line(row) for row in rows if not row.skipped]
    lines += ["", *summary_lines([row for row in rows if row.point.counted]), ""]
    lines += _reasons(rows, "skipped", lambda row: row.skipped)
    lines += _reasons(rows, "not counted, it gave", lambda row: row.point.gave, mark="")
    lines += _reasons(rows, "grade C", lambda row: row.point.doubt or row.point.contradiction)
    return "\n".join(lines)


def _reasons(
    rows: Sequence[Row], verdict: str, reason_of: Callable[[Row], str], mark: str = ","
) -> list[str]:
    """A line for each row that has such a reason not to count as it is."""
    reasons = {row.point.name: reason_of(row) for row in rows}
    return [f"- {name}: {verdict}{mark} {why}" for name, why in reasons.items() if why]


def _point_line(row: Row) -> str:
    """A row of the table of points."""
    cells = [f"{row.errors[name]:+.1f}" if name in row.errors else "" for name in METRICS]
    engine = f"{row.point.engine} {row.point.version or '?'}"
    return f"| {row.point.name} | {engine} | {row.point.grade} | {' | '.join(cells)} |"


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Median and 90th percentile of |error| of each metric, with the two worst points."""
    import numpy as np

    lines = [
        "| metric | n | median abs. error, % | 90th percentile, % | target | the two worst |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for name in METRICS:
        found = [(abs(row.errors[name]), row) for row in rows if name in row.errors]
        if not found:
            continue
        sizes = np.array([size for size, _ in found])
        worst = sorted(found, key=lambda one: -one[0])[:2]
        named = ", ".join(f"{row.point.name} {row.errors[name]:+.1f}" for _, row in worst)
        half, most = np.median(sizes), np.percentile(sizes, 90)
        target = "{} / {}".format(*TARGETS[name])
        lines.append(f"| {name} | {len(found)} | {half:.1f} | {most:.1f} | {target} | {named} |")
    return lines
