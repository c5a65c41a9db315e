"""The journal of a search: every answer with the files and the code that it rests on.

An answer counts again only while its run is the same, each of its files has the same content, and
the code is the same.
"""

import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from llmsim.config.errors import InputError
from llmsim.config.files.code_identity import code_hash
from llmsim.config.files.input_files import InputFile, fingerprint
from llmsim.export.files import atomic_writer
from llmsim.search.apply import Base, Run
from llmsim.search.figures import names
from llmsim.search.space import Point

FORMAT = 2
State = Literal["feasible", "short", "stopped", "infeasible", "failed"]


@dataclass(frozen=True)
class Trial:
    """A point and what became of it: it meets all requirements, misses one, was stopped, cannot
    run, or its run failed.

    A run is stopped when a figure is certain to be above what an answer may have; `values` then has
    that ceiling alone. A failed run (killed, out of memory, a defect) says nothing about its point;
    it is not journalled.
    """

    point: Point
    state: State
    reason: str
    """Why it is not feasible, in one sentence; empty where it is."""
    values: dict[str, float]
    """Figures that are searched or required; without a run those that are known, which may be none.
    """
    folder: str
    """Where its cluster file is; empty where there is none."""


@dataclass(frozen=True)
class Answer:
    """A trial and what it rests on: the run's text, its files, and the code."""

    trial: Trial
    run: str
    code: str
    files: tuple[InputFile, ...]


class _Files(msgspec.Struct, forbid_unknown_fields=True, tag_field="line", tag="files"):
    """A line with a list of files, which the lines of answers name."""

    id: str
    files: list[InputFile]


class _Answered(msgspec.Struct, forbid_unknown_fields=True, tag_field="line", tag="answer"):
    """A line with an answer."""

    trial: Trial
    run: str
    code: str
    files_id: str


class Journal:
    """The answers of one search in a file; threads may add to it."""

    def __init__(self, path: Path, base: Base) -> None:
        """Reads what an earlier call of the same search left; InputError where the file is another
        search's.
        """
        self._path = path
        self._lock = threading.Lock()
        self._head = json.dumps({"search": _fingerprint(base), "format": FORMAT})
        self._known: dict[str, Answer] = {}
        self._written: set[str] = set()
        self.stale = 0
        """How many answers of earlier calls do not count any more."""
        self.why_stale = ""
        """Why the first of them does not."""
        self._resume()

    def answer(self, point: Point, run: Run) -> Trial | None:
        """What is known of a point; None where its run has never ended or was another one."""
        found = self._known.get(key_of(point))
        return found.trial if found is not None and found.run == run_key(run) else None

    def add(self, answer: Answer) -> None:
        """Keeps an answer, on disk when this returns."""
        with self._lock, self._path.open("a", encoding="utf-8") as stream:
            self._known[key_of(answer.trial.point)] = answer
            stream.write("".join(f"{line}\n" for line in self._lines(answer)))

    def changed_since(self) -> str:
        """The first file that changed while the search ran, so that its answers are of two
        contents; or nothing.
        """
        now = _Now()
        for answer in self._known.values():
            files = [
                one for one in answer.files if one.kind != "special"
            ]  # a pipe is read once, and forgotten
            if (changed := now.changed(files)) is not None:
                return changed
        return ""

    def _lines(self, answer: Answer) -> list[str]:
        text = json.dumps([asdict(one) for one in answer.files])
        identity = hashlib.sha256(text.encode()).hexdigest()[:16]
        fields = {
            "trial": dataclasses.asdict(answer.trial),
            "run": answer.run,
            "code": answer.code,
            "files_id": identity,
        }
        line = json.dumps({"line": "answer", **fields})
        if identity in self._written:
            return [line]
        self._written.add(identity)
        return [f'{{"line": "files", "id": "{identity}", "files": {text}}}', line]

    def _resume(self) -> None:
        if self._path.exists():
            first, *lines = self._path.read_bytes().decode("utf-8", "replace").splitlines() or [""]
            if first != self._head:
                raise InputError(
                    f"{self._path} is of another search (another file, trace or version of "
                    "llmsim); name another --output, or remove it",
                    file=str(self._path),
                )
            self._read(lines)
        whole = [
            self._head,
            *(line for answer in self._known.values() for line in self._lines(answer)),
        ]
        with atomic_writer(self._path) as stream:  # a search that is killed here loses nothing
            stream.write("\n".join(whole) + "\n")

    def _read(self, lines: Sequence[str]) -> None:
        """Takes the answers that still count; a line that is damaged (its search was killed) is no
        answer.
        """
        files: dict[str, tuple[InputFile, ...]] = {}
        now = _Now()
        for line in lines:
            try:
                found = msgspec.json.decode(line, type=_Files | _Answered)
            except (msgspec.DecodeError, RecursionError):
                continue
            if isinstance(found, _Files):
                files[found.id] = tuple(found.files)
            elif found.files_id in files:
                self._take(Answer(found.trial, found.run, found.code, files[found.files_id]), now)

    def _take(self, answer: Answer, now: "_Now") -> None:
        changed = now.changed(answer.files)
        if answer.code != code_hash():
            changed = "the code of llmsim or of a library"
        if changed is None:
            self._known[key_of(answer.trial.point)] = answer
            return
        self._known.pop(key_of(answer.trial.point), None)
        self.stale += 1
        self.why_stale = self.why_stale or changed


class _Now:
    """What files are at this moment; each is hashed once."""

    def __init__(self) -> None:
        self._seen: dict[str, InputFile] = {}

    def changed(self, files: Sequence[InputFile]) -> str | None:
        """The first path that is not as it was, or that nobody can tell of; None where all are as
        they were.
        """
        for one in files:
            if one.path not in self._seen:
                self._seen[one.path] = fingerprint(one.path)
            unknown = one.kind != "absent" and one.sha256 is None
            if unknown or self._seen[one.path] != one:
                return one.path
        return None


def key_of(point: Point) -> str:
    """Equal for equal points."""
    return json.dumps(point, sort_keys=True)


def run_key(run: Run) -> str:
    """A hash of what a run is asked: its cluster file, its options, and the folder that relative
    paths start from.
    """
    parts: list[Any] = [run.cluster, run.words, os.getcwd()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _fingerprint(base: Base) -> str:
    """Of what the search asks of every point; what a point's run depends on is in its answer."""
    file = base.space.file
    parts: list[Any] = [file.options, file.dataset, file.devices_per_node]
    parts += [sorted(names(base.space)), repr(sorted(file.require.items()))]
    parts += [repr(file.load)] if file.load is not None else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
