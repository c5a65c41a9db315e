"""Runs `main.py` for a figure and keeps what it says: logs/, results/ and parsed/ beside the
figure.
"""

import csv
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsim.sizing.workers.watch import NOBODY, Watch

ROOT = Path(__file__).resolve().parents[2]
FAILED = ": not run ("
"""What the remark of a run that failed holds (`Outcome.remark`)."""


@dataclass(frozen=True)
class Run:
    """One simulation: a cluster file or its content, a trace, and further options."""

    name: str
    title: str
    cluster: Path | Mapping[str, Any]
    dataset: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a run gave; `failure` says in one sentence why there is nothing else."""

    run: Run
    summary: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, list[int]] = field(default_factory=dict)
    """The series: a row per simulated second and group."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    failure: str = ""

    @property
    def remark(self) -> str:
        """The sentence of a report about a run that failed."""
        return f"{self.run.title}{FAILED}{self.failure})"


@dataclass(frozen=True)
class Workspace:
    """Where one figure lives: its folder with logs/, results/ and parsed/, and the artifact's copy,
    if there is one.
    """

    folder: Path
    artifact: Path | None = None
    watch: Watch = NOBODY

    def of_artifact(self, part: str) -> Path | None:
        """A file or folder of the artifact; None where it is absent.

        A whole copy keeps figures under evaluation/ and evaluation/artifacts/, and profiles under
        llm_profile/; what its simulator gave, here `peer`, is called `parsed` there.
        """
        if self.artifact is None:
            return None
        stored = part.replace("/peer/", "/parsed/")
        places = (
            part,
            f"evaluation/{part}",
            f"evaluation/artifacts/{part}",
            f"evaluation/artifacts/{stored}",
            f"llm_profile/{part}",
        )
        return next((path for place in places if (path := self.artifact / place).exists()), None)

    def execute(self, run: Run) -> Outcome:
        """Runs it as users do, in a process of its own; a failure is an outcome, not
        an exception.
        """
        for part in ("logs", "results", "parsed"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        cluster = run.cluster
        if not isinstance(cluster, Path):
            cluster = self.folder / "results" / f"{run.name}_cluster.json"
            cluster.write_text(json.dumps(run.cluster, indent=1) + "\n")
        results = self.folder / "results" / run.name
        command = [
            sys.executable,
            str(ROOT / "main.py"),
            "--cluster-config",
            str(cluster),
            "--dataset",
            run.dataset,
            "--output",
            f"{results}.csv",
            "--run-dir",
            str(results),
            "--json",
            *run.options,
        ]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.watch.done(run.name)
        log = self.folder / "logs" / f"{run.name}.log"
        log.write_text(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
        if done.returncode:
            sentence = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return Outcome(
                run, wall_s=wall, cpu_s=cpu, failure=f"exit code {done.returncode}: {sentence}"
            )
        return Outcome(
            run, json.loads(done.stdout), read_columns(results / "series.parquet"), wall, cpu
        )

    def write_table(
        self, name: str, header: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> Path:
        """parsed/NAME.tsv, as the artifact has them."""
        path = self.folder / "parsed" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)
        return path


def read_columns(path: Path) -> dict[str, list[Any]]:
    """A Parquet table of the run folder by column."""
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    return columns


def per_second(outcome: Outcome, column: str) -> list[float]:
    """Sum of a series column over the groups, entry t for the second that ends at t
    (entry 0 is 0).
    """
    totals: dict[int, float] = {}
    for at, value in zip(outcome.columns["time_ps"], outcome.columns[column], strict=True):
        second = -(-at // 10**12)
        totals[second] = totals.get(second, 0.0) + value
    return [totals.get(second, 0.0) for second in range(max(totals, default=0) + 1)]
