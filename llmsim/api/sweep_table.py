"""The table of `llmsim.sweep`: a DataFrame whose `plot` also draws its front."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from llmsim.api.pictures.front import Figure, Point, draw_front
from llmsim.config.errors import InputError, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VARIED = "varied"
"""The attribute of the table that holds the names that vary."""


class SweepTable(pd.DataFrame):
    """A row for each combination; rows and columns can be chosen as of any DataFrame."""

    @property
    def _constructor(self) -> "type[SweepTable]":
        return SweepTable

    @property
    def plot(self) -> "SweepPlots":
        """The pictures of a DataFrame, and `plot.pareto()`."""
        return SweepPlots(self)


class SweepPlots(pd.plotting.PlotAccessor):
    """What `DataFrame.plot` draws, and the front of a sweep."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(table)
        self._table = table

    def pareto(
        self,
        *,
        minimise: str | Sequence[str] = "mean_tpot_ms",
        maximise: str | Sequence[str] = "output_throughput",
        ax: "Axes | None" = None,
    ) -> "Axes":
        """All rows over two figures, and those that no other beats as a line with names.

        `minimise` and `maximise` are columns, two in all; the first is the horizontal axis. Rows
        without a value are left out. Raises InputError for other columns.
        """
        table = self._table
        figures = [
            *(Figure(name, False) for name in _listed(minimise)),
            *(Figure(name, True) for name in _listed(maximise)),
        ]
        if len(figures) != 2:
            raise InputError(
                f"minimise and maximise name {len(figures)} columns; a picture has two axes, so "
                "give two in all",
                field="minimise",
            )
        for figure in figures:
            if figure.name not in table.columns:
                raise InputError(
                    f'no column is "{figure.name}"{nearest(figure.name, table.columns)}; give '
                    "figures of the summary, such as p99_ttft_ms",
                    field="minimise" if not figure.more_is_better else "maximise",
                    value=figure.name,
                )
        names = [figure.name for figure in figures]
        rows = table[table[names].notna().all(axis=1)]
        varied = [name for name in table.attrs.get(VARIED, ()) if name in table.columns]
        points = [
            Point(_label(row, varied), float(row[names[0]]), float(row[names[1]]))
            for _, row in rows.iterrows()
        ]
        return draw_front(points, figures[0], figures[1], ax)


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _label(row: Any, varied: Sequence[str]) -> str:
    """The values of what varies; one that varies alone needs no name."""
    if len(varied) == 1:
        return str(row[varied[0]])
    return ", ".join(f"{name}={row[name]}" for name in varied)
