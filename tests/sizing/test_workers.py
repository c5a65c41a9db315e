"""Workers whose processes fail in every way leave no other thread waiting."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmsim.lowering import LoweringOptions
from llmsim.sizing.workers import WorkerDied, Workers


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
