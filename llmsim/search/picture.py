"""The front of a search as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsim.api.pictures.front import Figure, Point, draw_front
from llmsim.config.errors import InputError
from llmsim.search.journal import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_trials(
    trials: "Sequence[Trial]", objectives: Sequence[tuple[str, bool]], ax: "Axes | None" = None
) -> "Axes":
    """The feasible trials of a search over its first two objectives (a name, and whether more is
    better).

    Raises InputError where it has one objective alone.
    """
    if len(objectives) < 2:
        raise InputError(
            f"the search has one objective, {objectives[0][0]}; a picture of a front needs two, "
            "so name another one under minimise or maximise, or leave --plot out",
            field="--plot",
        )
    x, y = (Figure(*objective) for objective in objectives[:2])
    points = [
        Point(
            ", ".join(
                value if isinstance(value, str) else f"{name.removeprefix('--')} {value}"
                for name, value in one.point.items()
            ),
            one.values[x.name],
            one.values[y.name],
        )
        for one in trials
        if one.state == "feasible" and {x.name, y.name} <= one.values.keys()
    ]
    return draw_front(points, x, y, ax)
