"""Two threads of which one runs at a time: a program that blocks waits for a simulated time."""

import contextlib
import contextvars
import threading
from collections.abc import Callable
from functools import partial


class EndedError(BaseException):
    """Unwinds a program whose end nobody waits for; no handler of errors catches it."""


class Turns:
    """Runs a program on a thread of its own, which `resume` lets go on until it calls `pause`.

    Nothing runs beside anything else, so that what both threads read and write needs no lock.
    """

    def __init__(self, program: Callable[[], None]) -> None:
        """`program` begins with the first `resume`."""
        self._program = program
        self._wakes_caller, self._wakes_program = threading.Lock(), threading.Lock()
        self._wakes_caller.acquire()
        self._wakes_program.acquire()
        self._thread: threading.Thread | None = None
        self._runs = self._ends = False
        self._error: BaseException | None = None

    def resume(self) -> None:
        """Returns when the program pauses, and raises what ends it.

        An interrupt is raised then, too: until it pauses, the program changes what both read.
        """
        if self._thread is None:
            run = partial(contextvars.copy_context().run, self._run)
            self._thread = threading.Thread(target=run, name="vLLM", daemon=True)
            self._thread.start()
        interrupt: KeyboardInterrupt | None = None
        self._runs = True
        while self._runs:
            try:
                _wake(self._wakes_program)
                self._wakes_caller.acquire()
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        if self._error is not None:
            raise self._error

    def pause(self) -> None:
        """Called by the program: its caller goes on, and it does with the next `resume`."""
        self._runs = False
        _wake(self._wakes_caller)
        self._await_turn()

    def end(self) -> None:
        """Ends the program where it pauses; one that has not begun still can."""
        if self._thread is None:
            return
        self._ends = True
        if self._thread.is_alive():
            _wake(self._wakes_program)
            self._thread.join()

    def _await_turn(self) -> None:
        while not (self._runs or self._ends):
            self._wakes_program.acquire()
        if self._ends:
            raise EndedError

    def _run(self) -> None:
        try:
            with contextlib.suppress(EndedError):
                self._await_turn()
                self._program()
        except BaseException as error:
            self._error = error
        self._runs = False
        _wake(self._wakes_caller)


def _wake(lock: threading.Lock) -> None:
    """Lets one who waits for the lock look again at whose turn it is; nobody else is disturbed."""
    with contextlib.suppress(RuntimeError):  # it has been woken before, and has not looked since
        lock.release()
