"""The timed waits of all threads of a client, in a table that its processes share.

A thread writes until when it waits, and sleeps in the kernel without a time-out
(llmsim/native/client_waits). When its time has come, it gets a signal.
"""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from signal import SIGRTMAX
from typing import Any

import numpy as np

PLACES = 4096
"""Threads of a client that may wait at one time, and the place that none of them takes."""
_WAKE = SIGRTMAX - 3
_PLACE = np.dtype(
    [
        ("process", "<i4"),
        ("thread", "<i4"),
        ("until_ps", "<i8"),
        ("state", "<i4"),
        ("end", "<i4"),
    ]
)
_IDLE, _WAITS, _DUE = 0, 1, 2
Thread = tuple[int, int]
"""A process, and the kernel's number of its thread."""


class ThreadWaits:
    """Reads the table. What it says holds while all threads sleep."""

    def __init__(self, path: Path) -> None:
        """Makes the table."""
        self.path = path
        path.write_bytes(bytes(PLACES * _PLACE.itemsize))
        self._places = np.memmap(path, _PLACE, mode="r+")
        self._libc = ctypes.CDLL(None, use_errno=True)

    @property
    def is_full(self) -> bool:
        """A thread has found no place."""
        return bool(self._places["state"][0])

    @property
    def next_ps(self) -> int | None:
        """The least time that a thread waits for."""
        taken = self._taken
        waits = taken["state"] == _WAITS
        return int(taken["until_ps"][waits].min()) if waits.any() else None

    def keep(self, threads: Iterable[Thread]) -> None:
        """Forgets those that have ended without a word; these have not."""
        alive = set(threads)
        for place in self._taken:
            process, thread = int(place["process"]), int(place["thread"])
            known = not thread or (process, thread) in alive
            if not known and not os.path.exists(f"/proc/{process}/task/{thread}"):
                place["state"], place["thread"] = _IDLE, 0

    def wake(self, now_ps: int) -> set[Thread]:
        """Those whose time has come go on; they are the result."""
        woken = set()
        for place in self._taken:
            if place["state"] == _WAITS and place["until_ps"] <= now_ps:
                place["state"] = _DUE
                woken.add((int(place["process"]), int(place["thread"])))
        for process, thread in woken:
            self._libc.tgkill(process, thread, _WAKE)
        return woken

    @property
    def _taken(self) -> np.ndarray[Any, Any]:
        """Places that some thread has had."""
        return self._places[1 : int(self._places["end"][0])]
