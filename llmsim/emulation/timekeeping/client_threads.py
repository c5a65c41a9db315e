"""The threads of a client, as far as its main threads do not say what they wait for."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from llmsim.emulation.timekeeping.asleep import Ran, Sleepers, first_of, title_of
from llmsim.emulation.timekeeping.thread_waits import Thread, ThreadWaits
from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper, Turn

SEVERAL = (
    "the client has several processes, whose messages to each other are not counted: time moves "
    "when all of them sleep"
)
WAKE_OTHERS = (
    "a thread of the client, beside its main thread, wakes others when its time has come: time "
    "moves when all of them sleep"
)
"""Why two emulations of a client may differ."""
_LOOK_S = 0.001
_ROUNDS = 12
"""Of the event loop, in which a new connection and its first message are heard."""


class ClientThreads:
    """An actor of the clock for all threads that wait by locks, semaphores, polls and sleeps.

    A client of one process whose other threads never meet its main thread needs no look: the main
    thread says what it waits for. Where threads act together, time moves when all of them sleep.
    """

    def __init__(self, time: Timekeeper, table: Path, changed: Callable[[], None]) -> None:
        """`changed` is called when they have fallen asleep."""
        self.waits = ThreadWaits(table)
        self._time, self._changed = time, changed
        self._sleepers: Sleepers | None = None
        self._actor: Actor | None = None
        self._looking: asyncio.Task[None] | None = None
        self._main_waits = False
        self._is_due = False
        """The time of some threads has come, and they are woken when the main thread sleeps."""
        self._woken: set[Thread] = set()
        self._before: Ran = {}
        """How all had run when some of them were woken."""
        self.act_together = False
        """Nobody but the kernel knows whether all of them wait."""
        self.all_sleep = False
        """They do, and nothing has come for them since."""
        self.reasons: list[str] = []

    def join(self, process: int) -> None:
        """A process of the client is there."""
        self.may_wake()
        if self._sleepers is None:
            self._sleepers = Sleepers(first_of(process))
            self._actor = self._time.join("threads of the client", Turn.THREADS)
            self._time.waits(self._actor, None)
            self._looking = asyncio.create_task(self._look())

    def joins_others(self, why: str) -> None:
        """From now on, several threads act together."""
        self.act_together = True
        self.notes([why])

    def notes(self, reasons: list[str]) -> None:
        """Why two emulations may differ."""
        self.reasons += [why for why in reasons if why not in self.reasons]

    def find_others(self) -> None:
        """A process that the first one has just started has said nothing yet."""
        if self._sleepers is not None and not self.act_together and self._sleepers.has_children:
            self.joins_others(SEVERAL)

    def may_wake(self) -> None:
        """Something has come for the client."""
        self.all_sleep = False
        if self._sleepers is not None:
            self._sleepers.forget()

    def main_threads(self, *, wait: bool) -> None:
        """Whether all main threads have said that they wait."""
        self._main_waits = wait

    @property
    def need_a_look(self) -> bool:
        """Whether the kernel has to say that all of them wait."""
        return self.act_together or self._are_woken or not self._main_waits

    def offer(self, *, is_quiet: bool) -> None:
        """Brings what they wait for to the clock."""
        if self._actor is None:
            return
        if is_quiet:
            self._time.waits(self._actor, self.waits.next_ps)
        else:
            self._time.works(self._actor)

    def is_actor(self, actor: Actor) -> bool:
        """Whether it is that of the threads."""
        return actor is self._actor

    def wake(self) -> None:
        """The time of some of them has come. A main thread that has just said that it waits may
        still compute.
        """
        if self.act_together and self._sleepers is not None:
            self._call(self._sleepers)
        else:
            self._is_due = True
            self.may_wake()

    def _call(self, sleepers: Sleepers) -> None:
        """All sleep, and those whose time has come go on."""
        self._is_due = False
        self._before = sleepers.before or {}
        self._woken = self.waits.wake(self._time.now_ps)
        self.may_wake()

    def close(self) -> None:
        """The emulation is over."""
        if self._looking is not None:
            self._looking.cancel()
        if self._sleepers is not None:
            self._sleepers.close()

    def awake(self) -> str:
        """Who does not sleep, for an error."""
        if self._sleepers is None or self._sleepers.awake is None or self.all_sleep:
            return ""
        return title_of(self._sleepers.awake)

    async def _look(self) -> None:
        assert self._sleepers is not None, "they have joined"
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self.need_a_look:
                self._hear_of_waits()
            elif self.all_sleep:
                self._changed()  # what was on its way to them may be there
            elif self._is_worth_a_look and self._sleepers.all_sleep():
                await self._hear_everything()
                if self._sleepers.before is not None:
                    self._sleep(self._sleepers)

    async def _hear_everything(self) -> None:
        """What they have said before they fell asleep may be in a socket, or between tasks."""
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)

    def _hear_of_waits(self) -> None:
        """A thread may wait for an earlier time, whatever the main thread does."""
        assert self._actor is not None, "they have joined"
        next_ps, known_ps = self.waits.next_ps, self._actor.until_ps
        if next_ps is not None and (known_ps is None or next_ps < known_ps):
            self._changed()

    @property
    def _are_woken(self) -> bool:
        return self._is_due or bool(self._woken)

    @property
    def _is_worth_a_look(self) -> bool:
        """A main thread that has not said that it waits may do so, for a time or another thread."""
        silent = not self._main_waits and self.waits.next_ps is not None
        return self.act_together or self._are_woken or silent

    def _sleep(self, sleepers: Sleepers) -> None:
        """All of them do."""
        self.waits.keep(sleepers.threads)
        if self._woken and not self.act_together:
            self._compare(sleepers)
        self._woken = set()
        if self._is_due:
            self._call(sleepers)
        else:
            self.all_sleep = True
            self._changed()

    def _compare(self, sleepers: Sleepers) -> None:
        """A thread that goes to sleep again without waking anybody has changed nothing for them."""
        now = sleepers.before or {}
        others = self._before.keys() - self._woken
        if any(now.get(thread) != self._before[thread] for thread in others):
            self.joins_others(WAKE_OTHERS)
