"""A study as a table in text and as a picture."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmsim.study.hetero import Row, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_HEIGHT = 0.18
"""Inches of a line of the legend."""
NEAR, GAP, LETTER, HALF_LINE = 0.011, 0.012, 0.015, 0.02
"""Shares of the picture: within which points lie on each other, between a point and its number, of
a digit, and of half a line.
"""
SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1))
"""Where a number may stand, right and above first."""
Box = tuple[float, float, float, float]

COLUMNS = (
    "allocation",
    "USD/h",
    "SR",
    "CE",
    "classes",
    "p95 TTFT ms",
    "p95 TPOT ms",
    "verdict",
)


def text(study: Study) -> str:
    """A Markdown table, the baseline first."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(_cells(row)) for row in study.rows]
    return "".join(f"| {line} |\n" for line in lines)


def _cells(row: Row) -> list[str]:
    verdict = row.why if row.gate_failed is None else f"rejected at {row.gate_failed}: {row.why}"
    return [
        row.label,
        f"{row.usd_per_hour:.2f}",
        f"{row.spend_ratio:.3f}",
        "-" if row.cost_efficiency is None else f"{row.cost_efficiency:.3f}",
        ", ".join(f"{role} {bound}" for role, bound in row.classes.items()) or "-",
        _ms(row.outcome.p95_ttft_ms),
        _ms(row.outcome.p95_tpot_ms),
        verdict,
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def plot(study: Study, path: Path) -> None:
    """Writes CE over SR as a picture, accepted allocations filled; raises InputError without
    matplotlib.
    """
    from llmsim.api.pictures.files import check_picture, write_figure
    from llmsim.api.pictures.plots import new_figure

    check_picture(path)
    lines = sum(row.cost_efficiency is not None for row in study.rows) + 2
    figure = new_figure((10, max(4.5, LINE_HEIGHT * lines)))
    _scatter(study, figure.subplots())
    write_figure(path, figure)


def _scatter(study: Study, axes: "Axes") -> None:
    """Numbered points, whose names stand in the legend: allocations may lie close together."""
    rows = [row for row in study.rows if row.cost_efficiency is not None]
    for number, row in enumerate(rows, 1):
        failed = f" (rejected at {row.gate_failed})" if row.gate_failed else ""
        at = row.spend_ratio, row.cost_efficiency or 0.0
        axes.scatter(
            *at,
            facecolors="none" if row.gate_failed else "tab:blue",
            edgecolors="tab:blue",
            label=f"{number}  {row.label}{failed}",
        )
    least = study.question.file.min_ce
    axes.axhline(least, color="grey", linestyle="--", linewidth=1, label=f"least CE, {least:g}")
    axes.margins(0.1)
    _number(axes, [(row.spend_ratio, row.cost_efficiency or 0.0) for row in rows])
    axes.set_xlabel("spend ratio SR")
    axes.set_ylabel("cost efficiency CE")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)


def _number(axes: "Axes", points: Sequence[tuple[float, float]]) -> None:
    """Numbers beside points, on the first side where nothing else is; points that lie on each other
    have one text.
    """
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    places = [((x - left) / (right - left), (y - low) / (high - low)) for x, y in points]
    together: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        first = next((one for one in together if math.dist(places[one], place) < NEAR), number)
        together.setdefault(first, []).append(number + 1)
    taken: list[Box] = [
        (x - NEAR, x + NEAR, y - NEAR, y + NEAR) for x, y in (places[first] for first in together)
    ]
    for first, numbers in together.items():
        name = ", ".join(map(str, numbers))
        side = next(
            (side for side in SIDES if _is_free(_box(places[first], len(name), side), taken)),
            SIDES[0],
        )
        taken.append(_box(places[first], len(name), side))
        axes.annotate(
            name,
            points[first],
            (6 * side[0], 6 * side[1]),
            textcoords="offset points",
            ha="left" if side[0] > 0 else "right",
            va="center",
            fontsize=9,
        )


def _is_free(box: Box, taken: Sequence[Box]) -> bool:
    """Whether a text in this box lies inside of the picture and on no other one."""
    return box[0] >= 0 and box[1] <= 1 and not any(_meet(box, one) for one in taken)


def _box(place: tuple[float, float], letters: int, side: tuple[int, int]) -> Box:
    """What a text beside a place takes of the picture: left, right, bottom, top."""
    near, far = sorted((place[0] + GAP * side[0], place[0] + side[0] * (GAP + LETTER * letters)))
    middle = place[1] + 1.5 * GAP * side[1]
    return near, far, middle - HALF_LINE, middle + HALF_LINE


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
