"""Two threads of which one runs at a time."""

import gc
import os
import signal
import threading
import time
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from llmsim.scheduling.conformance.vllm.turns import Turns

INSIDE = ContextVar("inside", default=False)


class Program:
    """Notes what it does, and pauses behind each."""

    def __init__(self, last: int = 1 << 30) -> None:
        self.seen: list[Any] = []
        self.turns = Turns(self._run)
        self._last = last

    def _run(self) -> None:
        for number in range(self._last):
            self.seen.append((number, threading.current_thread().name, INSIDE.get()))
            self.turns.pause()
        raise ValueError("the last")


def test_a_program_goes_on_where_it_paused_in_the_context_of_its_caller() -> None:
    program = Program()
    assert program.seen == []
    INSIDE.set(True)
    for number in range(5):
        program.turns.resume()
        assert program.seen == [(one, "vLLM", True) for one in range(number + 1)]
    INSIDE.set(False)
    program.turns.end()


def test_an_error_reaches_the_caller() -> None:
    program = Program(last=2)
    for _ in range(2):
        program.turns.resume()
    with pytest.raises(ValueError, match="the last"):
        program.turns.resume()
    program.turns.end()


def threads() -> int:
    return sum(thread.name == "vLLM" for thread in threading.enumerate())


def test_its_thread_ends_with_it() -> None:
    before = threads()
    program = Program()
    program.turns.end()  # it has not begun
    program.turns.resume()
    assert threads() == before + 1
    program.turns.end()
    program.turns.end()
    assert threads() == before
    freed = weakref.ref(program)
    del program
    gc.collect()
    assert freed() is None


def test_an_interrupt_comes_when_the_program_has_paused() -> None:
    done = threading.Event()

    def slow() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        done.set()
        turns.pause()

    turns = Turns(slow)
    with pytest.raises(KeyboardInterrupt):
        turns.resume()
    assert done.is_set()
    turns.end()
