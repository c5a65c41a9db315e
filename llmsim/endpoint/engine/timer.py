"""A timer of an event loop that is not late by up to a millisecond, as the loop's own are.

Loops wait in whole milliseconds (`epoll_wait`); a timer that is a file (timerfd) wakes them to the
microsecond. Where the system has none, the loop's own timer stands in.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Times(ctypes.Structure):
    """`struct itimerspec`: seconds and ns between times, and to the first."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


class Timer:
    """Calls back once after each `set`, unless it is set again or cancelled before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._handle: asyncio.TimerHandle | None = None
        self._file = _timer_file()
        if self._file is not None:
            loop.add_reader(self._file, self._fires)

    def set(self, wait_s: float) -> None:
        """The callback comes in so many seconds."""
        if self._file is None:
            self.cancel()
            self._handle = self._loop.call_later(wait_s, self._callback)
            return
        wait_ns = max(1, int(wait_s * 1e9))
        self._write(_Times(0, 0, wait_ns // 10**9, wait_ns % 10**9))

    def cancel(self) -> None:
        """The callback does not come."""
        if self._file is not None:
            self._write(_Times())
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _write(self, times: _Times) -> None:
        if _libc.timerfd_settime(self._file, 0, ctypes.byref(times), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _fires(self) -> None:
        assert self._file is not None
        with contextlib.suppress(BlockingIOError):  # it was set again in between
            os.read(self._file, 8)
            self._callback()


_libc = ctypes.CDLL(None, use_errno=True)


def _timer_file() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    file: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
    return file if file >= 0 else None
