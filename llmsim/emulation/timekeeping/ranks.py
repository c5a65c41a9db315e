"""Data-parallel ranks in lock-step, before the clock: their rounds, and what they agree on."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from llmsim.emulation.timekeeping.resting import Resting
from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper


class Rank(Protocol):
    """Who times the steps of a rank (`llmsim.emulation.lockstep.RankDevices`)."""

    def dummy(self, now_ps: int) -> int:
        """Joins a round without work; the number of the dummy."""
        ...

    def goes_on_ps(self, number: int) -> int | None:
        """When the rank goes on behind that dummy, as `end_ps`."""
        ...

    def end_ps(self, number: int) -> int | None:
        """When that step ends; None: other ranks have still to join its round."""
        ...

    def looks_ps(self, number: int) -> int | None:
        """When its workers look for KV that has moved in that step, as `end_ps`."""
        ...


class Ranks:
    """Answers the engine cores of a lock-step group."""

    KINDS = ("dummy", "ends", "end of", "looks of", "agree", "meet")

    def __init__(
        self, time: Timekeeper, size: int, answer: Callable[[Actor, Any], None], resting: Resting
    ) -> None:
        """`size`: how many ranks there are; those of `resting` go on when one of them does."""
        self._time, self._size, self._answer = time, size, answer
        self._resting = resting
        self._ranks: dict[Actor, Rank] = {}
        self._awaits: dict[Actor, Callable[[], int | None]] = {}
        """When a rank goes on that waits for others to join a round; None: not known yet."""
        self._asks: dict[Actor, int] = {}
        """Ranks that wait until the end of a step is known, and its number."""
        self._said: dict[Actor, tuple[bool, bool]] = {}
        """Of ranks that wait for an agreement: whether work is left, and whether they pause."""
        self._met: set[Actor] = set()
        """Ranks that wait for the others, behind which all go on."""

    def joins(self, actor: Actor, rank: Rank) -> None:
        """A rank is there."""
        self._ranks[actor] = rank

    def leaves(self, actor: Actor) -> None:
        """It has ended."""
        for known in (self._ranks, self._awaits, self._asks, self._said):
            known.pop(actor, None)
        self._met.discard(actor)

    def hear(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        """What a rank says, one of `KINDS`; it waits from then on, unless it asks what is known."""
        rank = self._ranks[actor]
        if kind == "looks of":
            self._answer(actor, rank.looks_ps(rest[0]))
            return
        self._time.waits(actor, None)
        if kind == "agree":
            self._said[actor] = bool(rest[0]), bool(rest[1])
            self._agree()
            return
        if kind == "meet":
            self._met.add(actor)
            self._gather()
            return
        if kind == "end of":
            self._asks[actor] = rest[0]
        elif kind == "dummy":
            self._awaits[actor] = partial(rank.goes_on_ps, rank.dummy(self._time.now_ps))
        else:
            self._awaits[actor] = partial(rank.end_ps, rest[0])
        self.offered()

    def rests(self) -> None:
        """A rank has nothing to do, unless another one has."""
        self._gather()

    def offered(self) -> None:
        """A round may have begun, whose end is known from now on."""
        for actor, number in list(self._asks.items()):
            end_ps = self._ranks[actor].end_ps(number)
            if end_ps is not None:
                del self._asks[actor]
                self._time.works(actor)
                self._answer(actor, end_ps)
        for actor, goes_on_ps in list(self._awaits.items()):
            until_ps = goes_on_ps()
            if until_ps is not None:
                del self._awaits[actor]
                self._time.waits(actor, until_ps)

    def _gather(self) -> None:
        """Who meets waits for all, and nobody rests meanwhile."""
        if self._met:
            self._resting.wake(self._ranks)
        if len(self._met) < self._size:
            return
        for actor in sorted(self._met, key=lambda one: one.name):
            self._time.works(actor)
            self._answer(actor, None)
        self._met.clear()

    def _agree(self) -> None:
        """When all ranks have come, as vLLM's `sync_dp_state`: (whether work is left, or some pause
        and others do not, whether all pause).
        """
        if len(self._said) < self._size:
            return
        pausing = sum(pauses for _, pauses in self._said.values())
        work = any(unfinished for unfinished, _ in self._said.values())
        agreed = [work or 0 < pausing < self._size, pausing == self._size]
        for actor in list(self._said):
            self._time.works(actor)
            self._answer(actor, agreed)
        self._said.clear()
