"""Two threads of which one runs at a time: a program that blocks waits for a simulated time."""

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
        """`program` begins with the first `resume`, and returns only if it has ended."""
        self._program = program
        self._callers_turn, self._programs_turn = threading.Lock(), threading.Lock()
        self._callers_turn.acquire()
        self._programs_turn.acquire()
        self._thread: threading.Thread | None = None
        self._runs = self._ends = False
        self._error: BaseException | None = None

    def resume(self) -> None:
        """Returns when the program pauses, and raises what ends it."""
        self._runs = True
        if self._thread is None:
            run = partial(contextvars.copy_context().run, self._run)
            self._thread = threading.Thread(target=run, name="vLLM", daemon=True)
            self._thread.start()
        else:
            self._programs_turn.release()
        self._await_pause()
        if self._error is not None:
            raise self._error

    def pause(self) -> None:
        """Called by the program: its caller goes on, and it does with the next `resume`."""
        self._runs = False
        if not self._ends:
            self._callers_turn.release()
        self._programs_turn.acquire()
        if self._ends:
            raise EndedError

    def end(self) -> None:
        """Ends the program where it pauses."""
        has_begun = self._thread is not None and self._thread.is_alive()
        if not has_begun or self._ends:
            return
        self._ends = True
        self._programs_turn.release()
        assert self._thread is not None, "it has begun"
        self._thread.join()

    def _await_pause(self) -> None:
        """An interrupt is raised when the program pauses: until then it changes what both read."""
        interrupt: KeyboardInterrupt | None = None
        while self._runs:
            try:
                self._callers_turn.acquire()
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _run(self) -> None:
        try:
            self._program()
        except EndedError:
            return
        except BaseException as error:
            self._error = error
        self._runs = False
        self._callers_turn.release()
