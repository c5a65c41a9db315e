"""The clock of a replay: wall time, or the processor time of this process where other programs
share the processor.

Processor time stands still while nothing runs; a wait then skips to the next arrival, as a wall
clock would pass it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

POLL_S = 0.05
SHORTEST_S = 0.001


class ReplayClock:
    """Seconds that never go back; shared by the thread that submits and the one that serves."""

    def __init__(self, kind: Literal["wall", "cpu"]) -> None:
        self._wall = kind == "wall"
        self._skipped = 0.0

    def now(self) -> float:
        """The time."""
        return time.perf_counter() if self._wall else time.process_time() + self._skipped

    def wait_until(self, due: float, idle: Callable[[], bool]) -> None:
        """Returns at `due`; on the processor's clock an idle engine (two looks in a row) jumps
        there.
        """
        looks = 0
        while (left := due - self.now()) > 0:
            if self._wall:
                time.sleep(min(left, 0.5))
                continue
            looks = looks + 1 if idle() else 0
            if looks >= 2:
                self._skipped += due - self.now()
                return
            # Processor time is no faster than the wall's, so this is not too long; and each look
            # takes time of its own.
            time.sleep(max(SHORTEST_S, min(left, POLL_S)))
