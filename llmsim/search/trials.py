"""Runs points of a space in worker processes, and says of each why it is no answer."""

import hashlib
import math
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path

from llmsim.config.errors import InputError, PluginRefused
from llmsim.config.files.code_identity import code_hash
from llmsim.search.apply import Base, Run, run_of, shown
from llmsim.search.figures import (
    DEVICES,
    PRICE,
    asked_at,
    capacity_figures,
    excluded_by_devices,
    figure,
    names,
    shortfall,
)
from llmsim.search.journal import Answer, Journal, Trial, key_of, run_key
from llmsim.search.point import (
    CAPACITY_FUNCTION,
    FUNCTION,
    LEAST_STEP,
    LEAST_STEP_FUNCTION,
    STOPPED,
    Asked,
    AskedCapacity,
    Ended,
    died,
)
from llmsim.search.rates import RATE
from llmsim.search.space import REQUESTS, Point, bounds_of
from llmsim.search.successive_halving.bounds import Bounds
from llmsim.search.successive_halving.ceilings import Ceilings
from llmsim.sizing.workers.watch import NOBODY, Watch
from llmsim.sizing.workers.workers import WorkerDied, Workers

INTERRUPTED = (-signal.SIGINT, -signal.SIGTERM)
"""Codes of a worker that somebody stopped, which says nothing about its point."""


class Trials:
    """The points of one search; a folder keeps them, so that the same search goes on where it
    stopped.
    """

    def __init__(
        self,
        base: Base,
        folder: Path,
        workers: Workers,
        watch: Watch = NOBODY,
        *,
        allow_plugins: bool = False,
    ) -> None:
        self._base, self._folder, self._watch = base, folder, watch
        self._workers, self._allow_plugins = workers, allow_plugins
        self._found: dict[str, Trial] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(folder / "trials.jsonl", base)

    def of(self, points: Sequence[Point], ceilings: Sequence[Ceilings] = ()) -> list[Trial]:
        """The trials of points, in their order; those that are not known are run, some at a time,
        and may stop above the ceilings of each.

        Neighbours that differ in the rate and the number of requests alone are run one after the
        other by one thread, so that their cluster is compiled in one process. A run that failed is
        run once more, alone: what lacked memory beside others may have enough of it then.
        """
        all_ceilings = ceilings or [{}] * len(points)
        wanted = {
            key_of(point): (point, most)
            for point, most in zip(points, all_ceilings, strict=True)
            if not self._is_found(point, most)
        }
        neighbours = groupby(wanted.values(), lambda one: _compiled_alike(one[0]))
        alike = [list(found) for _, found in neighbours]
        pool = ThreadPoolExecutor(self._workers.jobs)
        failed: list[Point] = []
        self._watch.begin("points", len(wanted))
        try:
            for trial in chain.from_iterable(pool.map(self._trials, alike)):
                if trial.state == "failed":
                    failed.append(trial.point)
                else:
                    self._keep(trial)
            for point in failed:
                self._keep(self._trial(*wanted[key_of(point)]))
        except BaseException:
            self._workers.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return [self._as_asked(point) for point in points]

    def _keep(self, trial: Trial) -> None:
        self._found[key_of(trial.point)] = trial
        self._watch.done(f"{shown(trial.point)}: {trial.reason or 'meets all requirements'}")

    def _as_asked(self, point: Point) -> Trial:
        """What is known of a point, in the order of this search's file, which may be another than
        when it was run.
        """
        trial = self._found[key_of(point)]
        ordered = {
            name: trial.values[name] for name in names(self._base.space) if name in trial.values
        }
        return replace(trial, point=point, values=ordered)

    @property
    def known(self) -> int:
        """How many points have an answer of this call or of an earlier one."""
        return sum(trial.state != "failed" for trial in self._found.values())

    def _is_found(self, point: Point, ceilings: Ceilings) -> bool:
        found = self._found.get(key_of(point))
        return found is not None and _counts(found, ceilings)

    def _trials(self, wanted: Sequence[tuple[Point, Ceilings]]) -> list[Trial]:
        return [self._trial(point, ceilings) for point, ceilings in wanted]

    def _trial(self, point: Point, ceilings: Ceilings) -> Trial:
        """The journal's answer, or a run's."""
        try:
            run = run_of(self._base, point)
        except InputError as error:
            return Trial(point, "infeasible", str(error), {}, "")
        excluded = excluded_by_devices(self._base.space, run.devices)
        if excluded:
            return Trial(point, "infeasible", excluded, {DEVICES: float(run.devices)}, "")
        known = self.journal.answer(point, run)
        if known is not None and _counts(known, ceilings):
            return known
        return self._run(point, run, ceilings)

    def _run(self, point: Point, run: Run, ceilings: Ceilings) -> Trial:
        folder = _folder_of(point)
        if self._base.space.halves:
            folder = ""  # those of the best points are written at the end
        else:
            self._write(folder, run)
        try:
            ended = self._ended(run, ceilings)
        except WorkerDied as error:
            if error.code in INTERRUPTED:
                raise KeyboardInterrupt from None
            return Trial(point, "failed", died(error.code), self._known(run), folder)
        if ended.how == "plugin_refused":
            raise PluginRefused(f"{self._base.space.path}: {ended.said}")
        trial = self._judged(point, run, folder, ended)
        if trial.state != "failed":
            code = ended.code_sha256 or code_hash()
            self.journal.add(Answer(trial, run_key(run), code, ended.files))
        return trial

    def bounds(self) -> Bounds:
        """What is known of points before they run."""
        return Bounds(self._base, self._least_steps)

    def _least_steps(self, runs: Sequence[Run]) -> list[int]:
        """The least time between two tokens of each run, ps, from the journal or compiled now; none
        is known of what a user's own code says.
        """
        if self._allow_plugins:
            return [0] * len(runs)
        name = str(self._folder / "cluster.json")
        known = {run_key(run): self._journalled_step(run) for run in runs}
        new = [run for run in runs if known[run_key(run)] is None]
        asked = [Asked(run.cluster, name, run.words, ()) for run in new]
        for run, ended in zip(new, self._workers.map(LEAST_STEP_FUNCTION, asked), strict=True):
            known[run_key(run)] = self._note_step(run, ended)
        return [known[run_key(run)] or 0 for run in runs]

    def _journalled_step(self, run: Run) -> int | None:
        """The least step of a run that the journal has; None: it has none."""
        trial = self.journal.answer({LEAST_STEP: run_key(run)}, run)
        return None if trial is None else int(trial.values[LEAST_STEP])

    def _note_step(self, run: Run, ended: Ended) -> int:
        """The least step that was compiled, 0 where the cluster cannot be; what is certain enters
        the journal.
        """
        least = ended.summary or {LEAST_STEP: 0}
        if ended.summary is not None or ended.verdict:
            trial = Trial({LEAST_STEP: run_key(run)}, "feasible", "", dict(least), "")
            code = ended.code_sha256 or code_hash()
            self.journal.add(Answer(trial, run_key(run), code, ended.files))
        return int(least[LEAST_STEP])

    def _write(self, folder: str, run: Run) -> None:
        path = self._folder / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "cluster.json").write_text(run.cluster, encoding="utf-8")

    def with_cluster_file(self, trial: Trial) -> Trial:
        """The trial, whose cluster file is written if it was not."""
        if trial.folder:
            return trial
        folder = _folder_of(trial.point)
        self._write(folder, run_of(self._base, trial.point))
        return replace(trial, folder=folder)

    def _ended(self, run: Run, ceilings: Ceilings) -> Ended:
        space = self._base.space
        name = str(self._folder / "cluster.json")
        load, wanted = space.file.load, names(space)
        if load is None:
            figures = tuple(wanted)
            asked = Asked(run.cluster, name, run.words, figures, self._allow_plugins, ceilings)
            ended: Ended = self._workers.ask(FUNCTION, asked)
            return ended
        bounds = bounds_of(load)
        figures = (*wanted, *bounds, PRICE)
        asked = Asked(run.cluster, name, run.words, figures, self._allow_plugins)
        low, high = float(load.rate.first), float(load.rate.last)
        whole = AskedCapacity(asked, low, high, load.precision, bounds, f"{space.path}: load.until")
        ended = self._workers.ask(CAPACITY_FUNCTION, whole)
        return ended

    def _known(self, run: Run) -> dict[str, float]:
        """The figures that are known without a run."""
        wanted = names(self._base.space)
        return {DEVICES: float(run.devices)} if DEVICES in wanted else {}

    def _judged(self, point: Point, run: Run, folder: str, ended: Ended) -> Trial:
        space, wanted = self._base.space, self._known(run)
        if ended.verdict:
            reason = ended.said.removeprefix(f"{self._folder / 'cluster.json'}: ")
            return Trial(point, "infeasible", reason, wanted, folder)
        if ended.summary is None:
            return Trial(point, "failed", ended.failure, wanted, folder)
        if ended.how == STOPPED:
            ((name, ceiling),) = ended.summary.items()
            return Trial(
                point, "stopped", f"{name} is above {ceiling:.6g}", {name: ceiling}, folder
            )
        known, where = {DEVICES: float(run.devices)}, str(space.path)
        if ended.capacity_rps is not None:
            known |= capacity_figures(ended.summary, ended.capacity_rps, run.devices, where)
        values = {
            name: figure(ended.summary, known, name, asked_at(space, name)) for name in names(space)
        }
        missing = [name for name, value in values.items() if value is None]
        found = {name: value for name, value in values.items() if value is not None}
        if missing:
            reason = f"the run has no {missing[0]} (docs/reference/metrics.md)"
            return Trial(point, "infeasible", reason, found, folder)
        reason = ended.said if ended.capacity_rps == 0 else shortfall(space.file.require, found)
        return Trial(point, "short" if reason else "feasible", reason, found, folder)


def _counts(trial: Trial, ceilings: Ceilings) -> bool:
    """Whether a trial says what is asked: a run that was stopped does not where a figure may be
    higher than it then was.
    """
    if trial.state != "stopped":
        return True
    return any(ceilings.get(name, math.inf) <= least for name, least in trial.values.items())


def _compiled_alike(point: Point) -> str:
    """Equal for points whose clusters are compiled alike."""
    return key_of({name: value for name, value in point.items() if name not in (RATE, REQUESTS)})


def _folder_of(point: Point) -> str:
    return hashlib.sha256(key_of(point).encode()).hexdigest()[:12]
