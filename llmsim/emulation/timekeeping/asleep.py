"""Whether the processes of a client all sleep, as the kernel tells it."""

import os
from collections.abc import Iterable
from pathlib import Path

from llmsim.emulation.processes import descendants

ENOUGH = 5
"""Looks in which all sleep, where some of them have run in between."""
_Looks = dict[tuple[int, int], tuple[str, str]]
"""By process and thread, how long it has computed and how often it has begun to."""


class Sleepers:
    """Looks at a process and those that it has started.

    Who wakes another thread, by a pipe, a socket or a lock, makes it runnable at once. So nothing
    is under way between them when all sleep in two looks, and none has run in between. Threads that
    look for something again and again are in the way of that; then several looks have to do.
    """

    def __init__(self, root: int) -> None:
        """`root`: the process that was started first."""
        self._root = root
        self._before: _Looks | None = None
        self._times = 0
        """How often all have slept, one look after the other."""

    def all_sleep(self) -> bool:
        """Whether all have slept since this was asked last, or in enough looks."""
        now = _looks([self._root, *descendants(self._root)])
        before, self._before = self._before, now
        self._times = 0 if now is None else self._times + 1
        return now is not None and (now == before or self._times >= ENOUGH)

    def forget(self) -> None:
        """Something may have woken them: the next two looks decide."""
        self._before, self._times = None, 0


def _looks(pids: Iterable[int]) -> _Looks | None:
    """None: somebody computes, or wants to."""
    found: _Looks = {}
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            folder = Path(f"/proc/{pid}/task/{thread}")
            try:
                state = (folder / "stat").read_text(encoding="utf-8").rpartition(") ")[2][:1]
                computed, _, begun = (folder / "schedstat").read_text(encoding="utf-8").split()
            except (OSError, ValueError):
                continue
            if state in "ZX":
                continue
            if state != "S":
                return None
            found[pid, int(thread)] = computed, begun
    return found
