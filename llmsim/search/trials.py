"""Runs points of a space as processes of their own, and says of each why it is no answer."""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from llmsim.config.code_identity import code_hash
from llmsim.config.errors import InputError, PluginRefused
from llmsim.config.input_files import InputFile
from llmsim.search.apply import Base, Run, run_of
from llmsim.search.figures import DEVICES, excluded_by_devices, figure, names, shortfall
from llmsim.search.journal import Answer, Journal, Trial, key_of, run_key
from llmsim.search.space import Point

INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)
"""Codes of a run that somebody stopped, which says nothing about its point."""
VERDICTS = ("bad_input", "does_not_fit")
"""How a run ends that says of its point that it cannot run."""
USAGE = "--help"
"""In the sentence of a command line that cannot be read, for which a run reports nothing."""


class _Report(msgspec.Struct):
    """What a run wrote of itself (`llmsim run --input-files`)."""

    ended: str
    code_sha256: str
    files: list[InputFile]


@dataclass(frozen=True)
class _Ended:
    """A process that has ended: its exit code, what it printed, and its report, if it
    came so far.
    """

    code: int
    output: str
    errors: str
    report: _Report | None

    @property
    def verdict(self) -> bool:
        """Whether the point cannot run; everything else but an answer may go well another time."""
        if self.report is None:
            return self.code == 2 and USAGE in self.said
        return self.code in (2, 3) and self.report.ended in VERDICTS

    @property
    def answered(self) -> bool:
        return self.code == 0 and self.report is not None and self.report.ended == "answered"

    @property
    def said(self) -> str:
        """The last line of its errors, without the program's name."""
        lines = self.errors.strip().splitlines() or [f"the run ended with code {self.code}"]
        return lines[-1].removeprefix("llmsim: error: ")

    @property
    def failure(self) -> str:
        """Why it is neither an answer nor a verdict."""
        if self.code == -signal.SIGKILL:
            return "its run was killed (signal 9), as a machine does that is out of memory"
        if self.code < 0:
            return f"its run was ended by signal {-self.code}"
        if self.code == 0:
            return "its run ended without a complete answer"
        return f"its run ended with code {self.code}: {self.said}"


class Trials:
    """The points of one search; a folder keeps them, so that the same search goes on where it
    stopped.
    """

    def __init__(
        self,
        base: Base,
        folder: Path,
        processes: int,
        tell: Callable[[Trial], None],
        *,
        allow_plugins: bool = False,
    ) -> None:
        self._base, self._folder, self._tell = base, folder, tell
        self._processes, self._allow_plugins = processes, allow_plugins
        self._found: dict[str, Trial] = {}
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(folder / "trials.jsonl", base)

    def of(self, points: Sequence[Point]) -> list[Trial]:
        """The trials of points, in their order; those that are not known are run, some at a time.

        A run that failed is run once more, alone: what lacked memory beside others may have enough
        of it then.
        """
        wanted = {key_of(point): point for point in points if key_of(point) not in self._found}
        pool = ThreadPoolExecutor(self._processes)
        failed: list[Point] = []
        try:
            for trial in pool.map(self._trial, wanted.values()):
                if trial.state == "failed":
                    failed.append(trial.point)
                else:
                    self._keep(trial)
            for point in failed:
                self._keep(self._trial(point))
        except BaseException:
            self._stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return [self._as_asked(point) for point in points]

    def _keep(self, trial: Trial) -> None:
        self._found[key_of(trial.point)] = trial
        self._tell(trial)

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

    def _trial(self, point: Point) -> Trial:
        """The journal's answer, or a run's."""
        try:
            run = run_of(self._base, point)
        except InputError as error:
            return Trial(point, "infeasible", str(error), {}, "")
        excluded = excluded_by_devices(self._base.space, run.devices)
        if excluded:
            return Trial(point, "infeasible", excluded, {DEVICES: float(run.devices)}, "")
        known = self.journal.answer(point, run)
        return known if known is not None else self._run(point, run)

    def _run(self, point: Point, run: Run) -> Trial:
        folder = self._folder / hashlib.sha256(key_of(point).encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cluster.json").write_text(run.cluster, encoding="utf-8")
        ended = self._ended(run, folder)
        if ended.report is not None and ended.report.ended == "plugin_refused":
            raise PluginRefused(f"{self._base.space.path}: {ended.said}")
        trial = self._judged(point, run, folder, ended)
        if trial.state != "failed":
            report = ended.report or _Report("bad_input", code_hash(), [])
            files = tuple(
                one for one in report.files if not Path(one.path).is_relative_to(folder.resolve())
            )
            self.journal.add(Answer(trial, run_key(run), report.code_sha256, files))
        return trial

    def _ended(self, run: Run, folder: Path) -> _Ended:
        path = folder / "input_files.json"
        path.unlink(missing_ok=True)
        words = [
            "run",
            f"--cluster-config={folder / 'cluster.json'}",
            *run.words,
            "--json",
            f"--input-files={path}",
        ]
        words += ["--allow-plugins" if self._allow_plugins else "--no-allow-plugins"]
        code, output, errors = self._process([sys.executable, "-m", "llmsim", *words])
        try:
            report = msgspec.json.decode(path.read_bytes(), type=_Report)
        except (OSError, msgspec.DecodeError):
            report = None
        return _Ended(code, output, errors, report)

    def _judged(self, point: Point, run: Run, folder: Path, ended: _Ended) -> Trial:
        known = {DEVICES: float(run.devices)}
        wanted = {name: value for name, value in known.items() if name in names(self._base.space)}
        if ended.verdict:
            reason = ended.said.removeprefix(f"{folder / 'cluster.json'}: ")
            return Trial(point, "infeasible", reason, wanted, folder.name)
        try:
            summary = json.loads(ended.output) if ended.answered else None
        except ValueError:
            summary = None
        if not isinstance(summary, dict):
            return Trial(point, "failed", ended.failure, wanted, folder.name)
        values = {
            name: figure(summary, known, name, self._base.space) for name in names(self._base.space)
        }
        missing = [name for name, value in values.items() if value is None]
        found = {name: value for name, value in values.items() if value is not None}
        if missing:
            return Trial(
                point,
                "infeasible",
                f"the run has no {missing[0]} (docs/reference/metrics.md)",
                found,
                folder.name,
            )
        reason = shortfall(self._base.space, found)
        return Trial(point, "short" if reason else "feasible", reason, found, folder.name)

    def _process(self, command: Sequence[str]) -> tuple[int, str, str]:
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self._running.add(process)
        try:
            output, errors = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode in INTERRUPTED:
            raise KeyboardInterrupt
        return process.returncode, output, errors

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()
