"""Which simulated time it is, and how far the simulation may go."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from llmsim.core import PS_PER_S

PS_PER_NS = 1_000
NEVER_PS = 1 << 62
"""Later than any simulated time."""


class Clock(Protocol):
    """Simulated time since the server's start."""

    def now_ps(self) -> int:
        """The present time."""
        ...

    def may_reach_ps(self, next_event_ps: int) -> int:
        """The time up to which events may happen now."""
        ...

    def wait_s(self, next_event_ps: int) -> float | None:
        """Seconds on the wall until the next event may happen; None: somebody has to act first."""
        ...

    def answered(self, client: str) -> None:
        """A client has the last token of one of its answers."""
        ...


class RealClock:
    """Simulated seconds pass as those of the wall, or `speed` times as fast."""

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed
        self._start_ns = time.monotonic_ns()

    def now_ps(self) -> int:
        """Wall time since the start times the speed, to the nanosecond."""
        passed_ns = time.monotonic_ns() - self._start_ns
        return int(passed_ns * self._speed) * PS_PER_NS

    def may_reach_ps(self, next_event_ps: int) -> int:
        """What has passed on the wall may happen."""
        return self.now_ps()

    def wait_s(self, next_event_ps: int) -> float | None:
        """Until the wall has come there; None where nothing will happen."""
        if next_event_ps >= NEVER_PS:
            return None
        return max(next_event_ps - self.now_ps(), 0) / PS_PER_S / self._speed

    def answered(self, client: str) -> None:
        """Nobody waits for anybody."""


class WarpClock:
    """Time jumps to the next event, or to the first moment until which a client sleeps.

    Clients that take part are awake or asleep. While one of them is awake, time stands still. A
    client wakes up when its time has come, and when it has the last token of one of its answers.
    """

    def __init__(self) -> None:
        self._now_ps = 0
        self._asleep: dict[str, tuple[int, asyncio.Future[int]] | None] = {}
        self._sent: dict[str, int] = {}
        self._expected: dict[str, int] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when time may go on."""

    def now_ps(self) -> int:
        """The time of the last jump."""
        return self._now_ps

    @property
    def clients(self) -> int:
        """How many clients take part."""
        return len(self._asleep)

    def join(self, client: str) -> None:
        """The client takes part from now on, and is awake."""
        self._asleep.setdefault(client, None)
        self._sent.setdefault(client, 0)

    def leave(self, client: str) -> None:
        """The client takes part no longer."""
        sleeping = self._asleep.pop(client, None)
        self._sent.pop(client, None)
        self._expected.pop(client, None)
        if sleeping is not None and not sleeping[1].done():
            sleeping[1].set_result(self._now_ps)
        self.changed()

    def has(self, client: str) -> bool:
        """Whether the client takes part."""
        return client in self._asleep

    def received(self, client: str) -> None:
        """A request of the client has come in."""
        if client in self._sent:
            self._sent[client] += 1
            self.changed()

    async def sleep(self, client: str, until_ps: int, sent: int) -> int:
        """Until the time has come or an answer has ended; returns the time then.

        The client has sent that many requests so far: it is not asleep before they have come in.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._expected[client] = sent
        self._asleep[client] = (until_ps, future)
        self.changed()
        try:
            return await future
        finally:
            if not future.done():
                self._asleep[client] = None

    def may_reach_ps(self, next_event_ps: int) -> int:
        """The next event, or the first moment until which a client sleeps, unless one is awake."""
        until_ps = next_event_ps
        for client, sleeping in self._asleep.items():
            if sleeping is None or self._sent[client] < self._expected.get(client, 0):
                return self._now_ps
            until_ps = min(until_ps, sleeping[0])
        if until_ps < NEVER_PS:
            self._now_ps = max(self._now_ps, until_ps)
        return self._now_ps

    def wake_those_due(self) -> None:
        """Clients whose time has come wake up."""
        for client, sleeping in self._asleep.items():
            if sleeping is not None and sleeping[0] <= self._now_ps:
                self._wake(client, sleeping[1])

    def answered(self, client: str) -> None:
        """The client wakes up, if it takes part."""
        sleeping = self._asleep.get(client)
        if sleeping is not None:
            self._wake(client, sleeping[1])

    def _wake(self, client: str, future: "asyncio.Future[int]") -> None:
        self._asleep[client] = None
        if not future.done():
            future.set_result(self._now_ps)

    def wait_s(self, next_event_ps: int) -> float | None:
        """No time, unless a client is awake or nothing will happen."""
        targets = [next_event_ps]
        for client, sleeping in self._asleep.items():
            if sleeping is None or self._sent[client] < self._expected.get(client, 0):
                return None
            targets.append(sleeping[0])
        return None if min(targets) >= NEVER_PS else 0.0
