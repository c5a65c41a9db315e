"""Work in pools of threads: in order, and never later than the main thread's next look."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, thread

import pytest

from llmsim.emulation.in_client.pools import Helpers, count_pools


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Helpers]:
    """Of this process, until the test's end."""
    for owner, name in (
        (ThreadPoolExecutor, "submit"), (thread._WorkItem, "__init__"), (thread._WorkItem, "run"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    counted = Helpers()
    count_pools(counted)
    yield counted


def test_pieces_are_done_in_order_before_anybody_looks(helpers: Helpers) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        time.sleep(0.002 * (5 - number))  # the later, the shorter
        done.append(number)

    with ThreadPoolExecutor(5) as pool:
        for number in range(5):
            pool.submit(work, number)
        helpers.settle()
        assert done == [0, 1, 2, 3, 4]
        assert not helpers.are_out_of_order


def test_a_piece_that_computes_is_waited_for(helpers: Helpers) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: sum(number * number for number in range(1_000_000)))
        helpers.settle()
        assert future.done()
        assert not helpers.are_out_of_order


def test_a_piece_that_waits_for_another_holds_nobody(helpers: Helpers) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gate.wait)
        second = pool.submit(lambda: 7)
        helpers.settle()
        assert (first.done(), second.result()) == (False, 7)
        assert helpers.are_out_of_order
        gate.set()


def test_pieces_that_no_thread_is_free_for_hold_nobody(helpers: Helpers) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gate.wait)
        second = pool.submit(lambda: 7)
        helpers.settle()
        assert not second.done()
        gate.set()
        assert second.result() == 7
    helpers.settle()


def test_pieces_of_a_pool_that_ends_hold_nobody(helpers: Helpers) -> None:
    gate = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(gate.wait)
    second = pool.submit(lambda: 7)
    helpers.settle()
    pool.shutdown(wait=False, cancel_futures=True)
    assert second.cancelled()
    gate.set()
    helpers.settle()


def test_a_piece_does_not_wait_for_itself(helpers: Helpers) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(helpers.settle).result(5)
