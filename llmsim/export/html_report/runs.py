"""The runs of a report: their folders read, named and checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.columns import LatencyCauses
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_MS, PS_PER_S
from llmsim.export.benchmark_formats.tables import RunTables, read_columns

MOST_RUNS = 8
"""Runs side by side: the page has as many colours."""
PARTS = tuple(one.name.removesuffix("_ps") for one in LatencyCauses.COLUMNS)
Floats = NDArray[np.float64]
Explained = Mapping[str, Any] | None
"""What `llmsim why --json` prints of a run, if anything."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the report; `number` chooses its colour."""

    name: str
    number: int
    folder: Path
    tables: RunTables
    why: Explained = None
    """What `llmsim why --json` prints of the run; None: nothing was tested."""

    @property
    def summary(self) -> Any:
        """The run's summary."""
        return self.tables.summary

    @property
    def config(self) -> Any:
        """The resolved configuration of the manifest; empty in older folders."""
        return self.tables.manifest.get("config", {})

    @cached_property
    def start_s(self) -> float:
        """The first arrival."""
        return self.tables.start_ps / PS_PER_S

    def latency_ms(self, metric: str) -> Floats:
        """The sorted latencies of the finished requests."""
        if metric == "tpot":
            values = self.tables.tpot_ps / PS_PER_MS
        else:
            values = self.tables.ps(f"{metric}_ps") / PS_PER_MS
        return np.sort(values[~np.isnan(values)])

    def parts_ms(self, slowest: bool) -> list[float]:
        """Mean ms of each part of the latency, of all or of the slowest hundredth by E2E."""
        total = self.tables.ps("e2el_ps")
        if not len(total):
            return [0.0] * len(PARTS)
        rows = np.arange(len(total))
        if slowest:
            rows = np.flatnonzero(total >= np.percentile(total, 99))
        has = set(self.tables.requests.column_names)
        none = np.zeros(len(total), np.int64)
        parts = {
            part: self.tables.ps(f"{part}_ps") if f"{part}_ps" in has else none for part in PARTS
        }
        if "frontend_ps" in has:  # the API server, too
            parts["api"] = parts["api"] + self.tables.ps("frontend_ps")
        return [float(part[rows].clip(0).mean()) / PS_PER_MS for part in parts.values()]

    @cached_property
    def steps(self) -> dict[str, NDArray[Any]]:
        """Start, end and sizes of every step; empty where the folder has none."""
        names = ("group", "start_ps", "end_ps", "tokens", "sequences")
        return read_columns(self.folder / "steps.parquet", names)

    @cached_property
    def power(self) -> dict[str, NDArray[Any]]:
        """The power series; empty where nothing says what it draws.

        Raises InputError where the summary has an energy and the folder no such series.
        """
        path = self.folder / "power.parquet"
        columns = read_columns(path, None)
        if self.summary["energy"] is not None and not columns:
            raise InputError(
                f"{path} is missing, though the summary states an energy; write the run folder "
                "again with `llmsim run --run-dir`",
                file=str(path),
            )
        return columns


def read_runs(
    folders: Sequence[Path], explain: "Callable[[Path], Explained] | None" = None
) -> list[Run]:
    """The runs, named by their folders, with what `explain` says of each; raises InputError for too
    many or for one that is none.
    """
    if len(folders) > MOST_RUNS:
        raise InputError(
            f"a report shows at most {MOST_RUNS} runs side by side, and {len(folders)} are given; "
            "choose some of them"
        )
    return [
        Run(name, number, folder, RunTables.of_folder(folder), explain(folder) if explain else None)
        for number, (name, folder) in enumerate(zip(_names(folders), folders, strict=True))
    ]


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell them apart; numbers where none do."""
    paths = [Path(one).absolute() for one in folders]
    for count in range(1, 5):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(paths, 1)]
