"""Runs points of a space as processes of their own, remembers what they gave, and says of each why it is no answer."""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import llmsim
from llmsim.config.errors import InputError
from llmsim.search.apply import Base, Run, run_of
from llmsim.search.figures import DEVICES, figure, names, shortfall
from llmsim.search.space import Point

INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)
"""Codes of a run that somebody stopped, which says nothing about its point."""
State = Literal["feasible", "short", "infeasible"]


@dataclass(frozen=True)
class Trial:
    """A point and what became of it: it meets all requirements, misses one, or cannot run."""

    point: Point
    state: State
    reason: str
    """Why it is not feasible, in one sentence; empty where it is."""
    values: Mapping[str, float]
    """Figures that are searched or required; without a run those that are known, which may be none."""
    folder: str
    """Where its cluster file is; empty where there is none."""


class Trials:
    """The points of one search; a folder keeps them, so that the same search goes on where it stopped."""

    def __init__(self, base: Base, folder: Path, processes: int, tell: Callable[[Trial], None]) -> None:
        self._base, self._folder, self._tell = base, folder, tell
        self._processes = processes
        self._known: dict[str, Trial] = {}
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._journal = folder / "trials.jsonl"
        self._resume()

    def of(self, points: Sequence[Point]) -> list[Trial]:
        """The trials of points, in their order; those that are not known are run, some at a time."""
        wanted = {_key(point): point for point in points if _key(point) not in self._known}
        pool = ThreadPoolExecutor(self._processes)
        try:
            for trial in pool.map(self._run, wanted.values()):
                self._known[_key(trial.point)] = trial
                self._tell(trial)
        except BaseException:
            self._stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return [self._as_asked(point) for point in points]

    def _as_asked(self, point: Point) -> Trial:
        """What is known of a point, in the order of this search's file, which may be another than when it was run."""
        trial = self._known[_key(point)]
        ordered = {name: trial.values[name] for name in names(self._base.space) if name in trial.values}
        return replace(trial, point=point, values=ordered)

    @property
    def known(self) -> int:
        """How many points have been run, before or now."""
        return len(self._known)

    def _run(self, point: Point) -> Trial:
        try:
            run = run_of(self._base, point)
        except InputError as error:
            return self._kept(Trial(point, "infeasible", str(error), {}, ""))
        folder = self._folder / hashlib.sha256(_key(point).encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cluster.json").write_text(run.cluster, encoding="utf-8")
        return self._kept(self._judged(point, run, folder))

    def _judged(self, point: Point, run: Run, folder: Path) -> Trial:
        words = ["run", f"--cluster-config={folder / 'cluster.json'}", *run.words, "--json"]
        code, output, errors = self._process([sys.executable, "-m", "llmsim", *words])
        known = {DEVICES: float(run.devices)}
        if code != 0:
            said = errors.strip().splitlines() or [f"the run ended with code {code}"]
            reason = said[-1].removeprefix("llmsim: error: ").removeprefix(f"{folder / 'cluster.json'}: ")
            wanted = {name: value for name, value in known.items() if name in names(self._base.space)}
            return Trial(point, "infeasible", reason, wanted, folder.name)
        summary = json.loads(output)
        values = {name: figure(summary, known, name, self._base.space) for name in names(self._base.space)}
        missing = [name for name, value in values.items() if value is None]
        found = {name: value for name, value in values.items() if value is not None}
        if missing:
            return Trial(point, "infeasible", f"the run has no {missing[0]} (docs/metrics.md)", found, folder.name)
        reason = shortfall(self._base.space, found)
        return Trial(point, "short" if reason else "feasible", reason, found, folder.name)

    def _process(self, command: Sequence[str]) -> tuple[int, str, str]:
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self._running.add(process)
        try:
            output, errors = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode in INTERRUPTED:
            raise KeyboardInterrupt
        if process.returncode < 0:
            errors += f"\nthe run was ended by signal {-process.returncode}"
        return process.returncode, output, errors

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def _kept(self, trial: Trial) -> Trial:
        with self._lock, self._journal.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(trial)) + "\n")
        return trial

    def _resume(self) -> None:
        """Reads what an earlier call of the same search left; InputError where the folder is another search's."""
        self._folder.mkdir(parents=True, exist_ok=True)
        head = {"search": _fingerprint(self._base)}
        if not self._journal.exists():
            self._journal.write_text(json.dumps(head) + "\n", encoding="utf-8")
            return
        first, *lines = self._journal.read_text(encoding="utf-8").splitlines() or [""]
        if first != json.dumps(head):
            raise InputError(
                f"{self._journal} is of another search (another file, cluster, trace or version of llmsim); name "
                "another --output, or remove it"
            )
        for line in lines:
            try:
                trial = Trial(**json.loads(line))
            except (ValueError, TypeError):  # the last line of a search that was killed
                continue
            self._known[_key(trial.point)] = trial
        whole = [json.dumps(head), *(json.dumps(asdict(one)) for one in self._known.values())]
        self._journal.write_text("\n".join(whole) + "\n", encoding="utf-8")


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


def _fingerprint(base: Base) -> str:
    """Of all that a trial's values depend on but its point; an answer does not depend on which figures are asked."""
    file = base.space.file
    parts: list[Any] = [llmsim.__version__, base.document, file.options, file.dataset, file.devices_per_node]
    parts += [sorted(names(base.space)), repr(sorted(file.require.items()))]
    for name in (base.space.path.parent / file.dataset, Path(file.dataset)):
        if "\0" not in str(name) and len(str(name)) < 1024 and name.is_file():
            with name.open("rb") as stream:
                parts.append(hashlib.file_digest(stream, "sha256").hexdigest())
            break
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
