"""Pictures of which deployments nothing beats in two figures."""

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from llmsim.api.pictures.plots import INK, PALETTE, add_legend, new_axes, new_figure
from llmsim.results.pareto import pareto_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes

USER, DEVICE = "tokens per second for a user", "output tokens per second and device"
"""The two figures that deployments of different sizes are compared by; more is better in both."""


NAME_WIDTH, NUMBER_WIDTH, NAME_HEIGHT = 0.45, 0.03, 0.06
"""Shares of a picture that a name and a number take."""
CHARACTER = 0.6
"""Width of a character, as a share of the size of its font."""
POINTS_PER_INCH = 72
NAME_SIZE, LIST_SIZE = 8, 10
"""Points of the font of names in a picture, and below it."""
INSIDE = 0.85
"""Share of a figure's width that its axes and the names below them take."""
LEAST_WIDTH = 20
"""Characters of a line below a picture, however narrow that is."""
MOST_NAMES = 12
"""Names below a picture; the points beyond them have their numbers alone."""


class Figure(NamedTuple):
    """What one axis shows, and whether more of it is better."""

    name: str
    more_is_better: bool


class Point(NamedTuple):
    """One run: its name and both figures."""

    name: str
    x: float
    y: float


def draw_front(points: Sequence[Point], x: Figure, y: Figure, ax: "Axes | None" = None) -> "Axes":
    """All points, and those that no other beats as a line with names.

    Raises InputError without matplotlib.
    """
    ax = new_axes(ax, x.name, y.name)
    costs = [(_cost(one.x, x), _cost(one.y, y)) for one in points]
    front = sorted((points[i] for i in pareto_front(costs)), key=lambda one: (one.x, one.y))
    ax.plot(
        [one.x for one in points], [one.y for one in points],
        "o", color=INK, alpha=0.35, markersize=4, label="beaten by another",
    )  # fmt: skip
    ax.plot(
        [one.x for one in front], [one.y for one in front],
        "o-", color=PALETTE[0], linewidth=1.6, label="beaten by none",
    )  # fmt: skip
    if len(front) < len(points):
        add_legend(ax)
    if front:
        _name_points(ax, front, points)
    return ax


def _cost(value: float, figure: Figure) -> float:
    """Less is better."""
    return -value if figure.more_is_better else value


def _name_points(ax: "Axes", front: Sequence[Point], points: Sequence[Point]) -> None:
    """Names beside the points of the front; where two would lie over each other, or one would leave
    the picture, numbers, and the names below the picture.
    """
    left, wide = _span([one.x for one in points])
    low, high = _span([one.y for one in points])
    places = [((one.x - left) / wide, (one.y - low) / high) for one in front]
    if _names_collide(ax, front, places):
        shown = _numbers(places)
        ax.set_xlabel("\n".join((ax.get_xlabel(), "", *_listed(front, _characters(ax, LIST_SIZE)))))
    else:
        shown = {at: one.name for at, one in enumerate(front)}
    falls = front[0].y > front[-1].y
    for at, name in shown.items():
        is_right = places[at][0] > 0.5 and len(front) > 1  # a name there would leave the picture
        _name_point(ax, front[at], name, to_the_left=is_right, below=is_right and falls)


def _name_point(ax: "Axes", point: Point, name: str, *, to_the_left: bool, below: bool) -> None:
    ax.annotate(
        name,
        (point.x, point.y),
        textcoords="offset points",
        xytext=(-6 if to_the_left else 4, -9 if below else 4),
        ha="right" if to_the_left else "left",
        fontsize=NAME_SIZE,
    )


def _names_collide(
    ax: "Axes", front: Sequence[Point], places: Sequence[tuple[float, float]]
) -> bool:
    """Whether names at `places` (shares of the axes) lie over each other, or leave the picture."""
    per_line = _characters(ax, NAME_SIZE)
    widths = [len(one.name) / per_line for one in front]
    rooms = [max(across, 1 - across) for across, _ in places]
    one_leaves = any(width > room for width, room in zip(widths, rooms, strict=True))
    return one_leaves or any(_overlap(*pair, NAME_WIDTH) for pair in combinations(places, 2))


def _characters(ax: "Axes", size: int) -> int:
    """How many characters of a font fit the width of the axes."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    inches = ax.get_position().width * figure.get_figwidth()
    if figure.get_layout_engine() is not None:  # the axes are laid out when they are drawn
        inches = INSIDE * figure.get_figwidth() / _columns(ax)
    return int(inches * POINTS_PER_INCH / (CHARACTER * size))


def _columns(ax: "Axes") -> int:
    """Pictures beside each other in the figure of the axes."""
    spec = ax.get_subplotspec()
    return 1 if spec is None else spec.get_gridspec().ncols


def _listed(front: Sequence[Point], width: int) -> list[str]:
    """Numbers and names of the first points, and how many there are besides; names are wrapped."""
    lines = []
    for number, one in enumerate(front[:MOST_NAMES], 1):
        lines += wrap(f"{number}  {one.name}", max(width, LEAST_WIDTH))
    more = len(front) - MOST_NAMES
    return [*lines, f"and {more} more"] if more > 0 else lines


def _overlap(one: tuple[float, float], other: tuple[float, float], wide: float) -> bool:
    """Whether texts of this width would lie over each other."""
    return abs(one[0] - other[0]) < wide and abs(one[1] - other[1]) < NAME_HEIGHT


def _numbers(places: Sequence[tuple[float, float]]) -> dict[int, str]:
    """Numbers from 1 by place; those that would lie over each other are one range."""
    firsts = [0]
    for at, place in enumerate(places):
        if not _overlap(place, places[firsts[-1]], NUMBER_WIDTH):
            firsts.append(at)
    lasts = [*(first - 1 for first in firsts[1:]), len(places) - 1]
    return {
        last: str(last + 1) if first == last else f"{first + 1} to {last + 1}"
        for first, last in zip(firsts, lasts, strict=True)
    }


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The least value, and how far the largest is above it; 1 where they are equal."""
    return min(values), max(values) - min(values) or 1.0


def write_picture(path: Path, title: str, draw: "Callable[[Axes], object]") -> None:
    """A picture as a file of the kind that its name ends in; raises InputError for another kind,
    and without matplotlib.
    """
    from llmsim.api.pictures.files import check_picture, write_figure

    check_picture(path)
    figure = new_figure((7, 4.5))
    axes = figure.add_subplot()
    draw(axes)
    axes.set_title(title)
    write_figure(path, figure)
