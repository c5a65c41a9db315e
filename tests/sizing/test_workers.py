"""Workers whose processes fail in every way leave no other thread waiting."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmsim.lowering import LoweringOptions
from llmsim.sizing.workers import forks
from llmsim.sizing.workers.workers import WorkerDied, Workers


class _Failing:
    """A worker process whose answer is an exception."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def ask(self, function: str, task: object) -> tuple[str, object]:
        raise self._error

    def end(self) -> int:
        return 7


def _refuses(options: LoweringOptions) -> _Failing:
    raise OSError("no more processes")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (_refuses, OSError),
        (lambda options: _Failing(EOFError()), WorkerDied),
        (lambda options: _Failing(ValueError("damaged answer")), ValueError),
    ],
    ids=["cannot start", "died", "damaged answer"],
)
def test_every_waiting_thread_hears_of_a_failure(
    start: Callable[[LoweringOptions], _Failing], expected: type[Exception]
) -> None:
    workers = Workers(1, apart=True, start=start)
    pool = ThreadPoolExecutor(4)
    asked = [pool.submit(workers.ask, "module:function", task) for task in range(4)]
    try:
        for each in asked:
            with pytest.raises(expected):
                each.result(timeout=10)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


HERE = "tests.sizing.test_workers"
seen: list[object] = []


def place(bench: object, task: str) -> tuple[str, str | None, int]:
    """A task: where its process works, and which it is."""
    return os.getcwd(), os.environ.get(task), os.getpid()


def remembered(bench: object, task: object) -> int:
    """A task: how many of them its process has had."""
    seen.append(task)
    return len(seen)


def left(bench: object, task: int) -> None:
    """A task that ends its process: by a signal where it is below 0."""
    if task < 0:
        os.kill(os.getpid(), -task)
    sys.exit(task)


def test_a_worker_works_where_its_parent_does_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(1, apart=True) as before:
        folder, value, number = before.ask(f"{HERE}:place", "A_NAME")
        assert (folder, value) == (os.getcwd(), None) and number != os.getpid()
        assert before.ask(f"{HERE}:place", "A_NAME")[2] == number
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("A_NAME", "there")
        with Workers(1, apart=True) as now:
            folder, value, other = now.ask(f"{HERE}:place", "A_NAME")
        assert (folder, value) == (str(tmp_path), "there") and other != number
        assert before.ask(f"{HERE}:place", "A_NAME") != (str(tmp_path), "there", number)


@pytest.mark.parametrize(("fresh", "expected"), [(True, [1, 1, 1]), (False, [1, 2, 3])])
def test_a_fresh_process_knows_nothing_of_earlier_tasks(fresh: bool, expected: list[int]) -> None:
    with Workers(1, apart=True, fresh=fresh) as workers:
        assert list(workers.map(f"{HERE}:remembered", ["a", "b", "c"])) == expected


@pytest.mark.parametrize("code", [0, 3, -signal.SIGKILL, -signal.SIGSEGV])
def test_how_a_process_ended_is_known(code: int) -> None:
    with Workers(1, apart=True) as workers:
        with pytest.raises(WorkerDied) as died:
            workers.ask(f"{HERE}:left", code)
        assert died.value.code == code
        assert workers.ask(f"{HERE}:remembered", "again") == 1


def test_workers_start_again_where_the_process_that_forks_was_killed() -> None:
    with Workers(1, apart=True) as workers:
        assert workers.ask(f"{HERE}:remembered", "a") == 1
        assert forks._seed is not None
        forks._seed._process.kill()
        forks._seed._process.wait()
        assert workers.ask(f"{HERE}:remembered", "b") == 2  # the worker lives on
        with Workers(1, apart=True) as others:
            assert others.ask(f"{HERE}:remembered", "c") == 1


def test_a_worker_that_has_ended_is_not_killed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another process's by then."""
    worker = forks.fork_worker()
    assert worker.end() == -signal.SIGKILL
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("killed a process that has ended"))
    assert worker.end() == -signal.SIGKILL


ASKS = f"Workers(1, apart=True).ask('{HERE}:remembered', 1)"
KILLED = {
    "a worker has answered": ASKS,
    "it has not imported what it needs": f"threading.Timer(0.05, kill).start(); {ASKS}",
}


@pytest.mark.parametrize("before", KILLED)
def test_the_processes_end_in_silence_with_a_parent_that_is_killed(before: str) -> None:
    code = (
        "import os, signal, threading; from llmsim.sizing.workers.workers import Workers; "
        "kill = lambda: os.kill(os.getpid(), signal.SIGKILL); "
        f"{KILLED[before]}; kill()"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(  # its pipes are closed when the last of its processes has ended
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root
    )
    assert done.returncode == -signal.SIGKILL and done.stdout == done.stderr == ""
