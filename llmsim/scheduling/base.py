"""What a whole scheduler written in Python has to offer to run behind the loop."""

from collections.abc import Sequence
from typing import Protocol

ScheduledItem = tuple[int, int, int, int, bool]
"""(request, tokens scheduled, tokens computed before, speculative tokens among them, whether a token is sampled)."""

Emitted = tuple[int, int, bool]
"""(request, tokens received, whether the request is finished)."""


class Scheduler(Protocol):
    """Decides what each step of one group runs; called once per arrival and per step, never per block or token.

    Requests are rows of the workload. Batches complete in the order of their building. An exception ends the run.
    """

    def add(self, request: int) -> None:
        """The engine sees the request from now on."""

    def build(self, now_ps: int) -> tuple[Sequence[ScheduledItem], Sequence[int]]:
        """The next step in execution order (empty: nothing can be scheduled now), and whom it preempted, in order."""

    def abort(self, request: int) -> None:
        """The client of a request that was added and is unfinished has gone; `complete` reports nothing of it."""

    def complete(self) -> Sequence[Emitted]:
        """The model's output for the oldest batch has arrived; says what each request received."""

    def gauges(self) -> tuple[int, int, int]:
        """(requests running, requests waiting, free KV blocks) after the last call."""
