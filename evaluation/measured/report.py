"""Tables of errors: a row for each point, and their medians."""

from collections.abc import Sequence
from dataclasses import dataclass

from measured.points import METRICS, Point

TARGETS = {"throughput": (5, 15), "ttft": (10, 30), "tpot": (5, 12)}
"""Median and 90th percentile of |error|, percent, unfitted."""


@dataclass(frozen=True)
class Row:
    """A point and its errors in percent, or why it has none."""

    point: Point
    errors: dict[str, float]
    skipped: str = ""


def points_markdown(rows: Sequence[Row]) -> str:
    """Every point, then medians of grades A and B, then what was skipped."""
    lines = [
        "| point | engine | grade | throughput, % | TTFT, % | TPOT, % |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        if row.skipped:
            continue
        cells = [f"{row.errors[name]:+.1f}" if name in row.errors else "" for name in METRICS]
        engine = f"{row.point.engine} {row.point.version or '?'}"
        lines.append(f"| {row.point.name} | {engine} | {row.point.grade} | {' | '.join(cells)} |")
    lines += ["", *summary_lines([row for row in rows if row.point.grade in "AB"]), ""]
    lines += [f"- {row.point.name}: skipped, {row.skipped}" for row in rows if row.skipped]
    return "\n".join(lines)


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
