"""Pictures of which deployments nothing beats in two figures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmsim.api.plots import INK, PALETTE, new_axes, new_figure
from llmsim.config.errors import InputError
from llmsim.results.pareto import pareto_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes

USER, DEVICE = "tokens per second for a user", "output tokens per second and device"
"""The two figures that deployments of different sizes are compared by; more is better in both."""


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
    costs = [
        (-one.x if x.more_is_better else one.x, -one.y if y.more_is_better else one.y)
        for one in points
    ]
    front = sorted((points[i] for i in pareto_front(costs)), key=lambda one: (one.x, one.y))
    ax.plot(
        [one.x for one in points], [one.y for one in points],
        "o", color=INK, alpha=0.35, markersize=4, label="beaten by another",
    )  # fmt: skip
    ax.plot(
        [one.x for one in front], [one.y for one in front],
        "o-", color=PALETTE[0], linewidth=1.6, label="beaten by none",
    )  # fmt: skip
    for one in front:
        ax.annotate(one.name, (one.x, one.y), textcoords="offset points", xytext=(4, 4), fontsize=7)
    if len(front) < len(points):
        ax.legend(frameon=False)
    return ax


def write_picture(path: Path, title: str, draw: "Callable[[Axes], object]") -> None:
    """A picture as a file of the kind that its name ends in; raises InputError for another kind,
    and without matplotlib.
    """
    from llmsim.export.files import atomic_writer, check_writable

    check_writable(path)
    figure = new_figure((7, 4.5))
    axes = figure.add_subplot()
    draw(axes)
    axes.set_title(title)
    with atomic_writer(path, "wb") as stream:
        try:
            figure.savefig(stream, format=path.suffix.lstrip(".").lower() or "png", dpi=150)
        except ValueError as error:
            raise InputError(f"--plot {path}: {error}", field="--plot") from None
