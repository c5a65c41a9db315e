"""Several processes that measure plans; the answers do not depend on how many there are."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self

from llmsim.config.errors import FailedRuns
from llmsim.lowering import LoweringOptions
from llmsim.sizing.measure import Bench
from llmsim.sizing.workers import forks
from llmsim.sizing.workers.watch import NOBODY, Watch
from llmsim.sizing.workers.worker import function_of, receive, send

TRIES = 2
"""A task whose process died is tried once more; then it has no answer."""


class Worker(Protocol):
    """One process, wherever it runs, that answers one task after the other."""

    def ask(self, function: str, task: Any) -> tuple[str, Any]:
        """("answer", value) or ("error", exception); EOFError or OSError where the process is
        gone.
        """
        ...

    def end(self) -> int:
        """Ends it; returns its exit code."""
        ...


class WorkerDied(Exception):
    """A worker process ended while it worked on a task; `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"a worker process ended with code {code}")
        self.code = code


class Workers:
    """Processes that are started when first needed and keep what they compiled.

    `function` is named as `module:name`; it takes a `Bench` and a task, both of which can be
    pickled. With one job everything runs in this process, unless `apart` is set. `fresh` processes
    answer one task each, for tasks that run a user's code. `start` starts a process; `watch` is
    told how many tasks of a map are done.
    """

    def __init__(
        self,
        jobs: int = 0,
        options: LoweringOptions | None = None,
        *,
        apart: bool = False,
        fresh: bool = False,
        start: "Callable[[LoweringOptions], Worker] | None" = None,
        watch: Watch = NOBODY,
    ) -> None:
        self.jobs = jobs or os.cpu_count() or 1
        self._options = options or LoweringOptions()
        self._apart, self._fresh = apart or fresh, fresh
        self._start: Callable[[LoweringOptions], Worker] = start or _Process
        self._bench = Bench(self._options)
        self._watch = watch
        self._closed = False
        self._idle: SimpleQueue[Worker | None] = SimpleQueue()
        self._all: list[Worker] = []
        self._lock = threading.Lock()
        for _ in range(self.jobs):
            self._idle.put(None)

    def map(self, function: str, tasks: Sequence[Any]) -> Iterator[Any]:
        """The answers in the order of the tasks, as they come; raises what a task raised, and
        FailedRuns where a process died twice.
        """
        self._watch.begin("deployments", len(tasks))
        for answer in self._mapped(function, tasks):
            self._watch.done()
            yield answer

    def _mapped(self, function: str, tasks: Sequence[Any]) -> Iterator[Any]:
        if not self._apart and (self.jobs == 1 or len(tasks) <= 1):
            act: Callable[[Bench, Any], Any] = function_of(function)
            for task in tasks:
                yield act(self._bench, task)
            return
        pool = ThreadPoolExecutor(self.jobs)
        try:
            yield from pool.map(lambda task: self._answer(function, task), tasks)
        except BaseException:
            self.close()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def ask(self, function: str, task: Any) -> Any:
        """The answer to one task, as soon as a process is idle; threads may ask at once.

        Raises what the task raised, and WorkerDied where its process ended.
        """
        process = self._idle.get()
        next_idle: Worker | None = None
        try:
            if process is None:
                process = self._started()
            kind, value = process.ask(function, task)
            if self._fresh:
                process.end()
            else:
                next_idle = process
        except (EOFError, OSError):
            if process is None:  # it could not be started
                raise
            raise WorkerDied(process.end()) from None
        finally:
            self._idle.put(next_idle)  # whatever happened: other threads wait for this one's place
        if kind == "error":
            raise value
        return value

    def _answer(self, function: str, task: Any) -> Any:
        for attempt in range(TRIES):
            try:
                return self.ask(function, task)
            except WorkerDied as died:
                if attempt + 1 == TRIES:
                    raise FailedRuns(
                        f"a process of the search ended with code {died.code}, twice, at {task}"
                    ) from None
        raise AssertionError("the loop returns or raises")

    def _started(self) -> Worker:
        with self._lock:
            if self._closed:
                raise KeyboardInterrupt
            process = self._start(self._options)
            self._all.append(process)
        return process

    def close(self) -> None:
        """Ends all processes."""
        with self._lock:
            self._closed = True
            ended, self._all = self._all, []
        for process in ended:
            process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Process:
    """One worker on this machine and the streams to it."""

    def __init__(self, options: LoweringOptions) -> None:
        self._process = forks.fork_worker()
        self._first: list[Any] = [options]

    def ask(self, function: str, task: Any) -> tuple[str, Any]:
        """The answer to one task; EOFError or OSError where the process is gone."""
        for message in (*self._first, (function, task)):
            send(self._process.tasks, message)
        self._first = []
        kind, value = receive(self._process.answers)
        return kind, value

    def end(self) -> int:
        """Ends it; returns its exit code."""
        return self._process.end()
