"""The table of `llmsim.sweep`: a DataFrame whose `plot` also draws its front."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
        minimize: str | Sequence[str] | None = None,
        maximize: str | Sequence[str] | None = None,
        ax: "Axes | None" = None,
    ) -> "Axes":
        """All rows over two figures, and those that no other beats as a line with names.

        `minimise` and `maximise`, also spelt `minimize` and `maximize`, are columns, two in all;
        the first is the horizontal axis. Rows without a value are left out. Raises InputError for
        other columns.
        """
        table = self._table
        minimise = minimise if minimize is None else minimize
        maximise = maximise if maximize is None else maximize
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
            Point(label, float(row[names[0]]), float(row[names[1]]))
            for label, (_, row) in zip(_labels(rows, varied), rows.iterrows(), strict=True)
        ]
        return draw_front(points, figures[0], figures[1], ax)


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _labels(rows: pd.DataFrame, varied: Sequence[str]) -> list[str]:
    """The values of what differs; one that varies alone needs no name, and texts of which all begin
    or end alike have what differs.
    """
    columns = {name: apart([str(value) for value in rows[name]]) for name in varied}
    several = {name: texts for name, texts in columns.items() if len(set(texts)) > 1} or columns
    if len(varied) == 1:
        return columns[varied[0]]
    return [
        ", ".join(f"{name}={text}" for name, text in zip(several, texts, strict=True))
        for texts in zip(*several.values(), strict=True)
    ]


def apart(texts: Sequence[str]) -> list[str]:
    """Texts without the parts between commas that all of them begin or end with; those of which
    nothing would be left stay whole.
    """
    parts = [text.split(",") for text in texts]
    shortest = min(map(len, parts), default=0)
    first = _alike(parts, shortest)
    last = _alike([one[first:][::-1] for one in parts], shortest - first)
    left = [",".join(one[first : len(one) - last]).strip() for one in parts]
    return left if all(left) else list(texts)


def _alike(parts: Sequence[Sequence[str]], most: int) -> int:
    """How many entries all lists begin with."""
    return next((i for i in range(most) if len({one[i] for one in parts}) > 1), most)
