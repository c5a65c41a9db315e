"""Data-parallel ranks in lock-step, before the clock: their rounds, and what they agree on."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper


class Rank(Protocol):
    """Who times the steps of a rank (`llmsim.emulation.lockstep.RankDevices`)."""

    def dummy(self, now_ps: int) -> int:
        """Joins a round without work; the number of the dummy."""
        ...

    def forms(self, now_ps: int) -> None:
        """It forms its next batch, which may still wait for other ranks."""
        ...

    def goes_on_ps(self, number: int) -> int | None:
        """When the rank goes on behind that dummy, as `end_ps`."""
        ...

    def end_ps(self, number: int) -> int | None:
        """When that step ends; None: other ranks have still to join its round."""
        ...


class Ranks:
    """Answers the engine cores of a lock-step group."""

    KINDS = ("dummy", "ends", "agree", "meet", "idle")

    def __init__(self, time: Timekeeper, size: int, answer: Callable[[Actor, Any], None]) -> None:
        """`size`: how many ranks there are."""
        self._time, self._size, self._answer = time, size, answer
        self._ranks: dict[Actor, Rank] = {}
        self._awaits: dict[Actor, Callable[[], int | None]] = {}
        """When a rank goes on that waits for others to join a round; None: not known yet."""
        self._said: dict[Actor, tuple[bool, bool]] = {}
        """Of ranks that wait for an agreement: whether work is left, and whether they pause."""
        self._met: set[Actor] = set()
        """Ranks that wait for the others, behind which all go on."""
        self._idle: set[Actor] = set()
        """Ranks that have nothing to do until one of them has."""

    def joins(self, actor: Actor, rank: Rank) -> None:
        """A rank is there."""
        self._ranks[actor] = rank

    def leaves(self, actor: Actor) -> None:
        """It has ended."""
        for known in (self._ranks, self._awaits, self._said):
            known.pop(actor, None)
        self._met.discard(actor)
        self._idle.discard(actor)

    def hear(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        """What a rank says, one of `KINDS`; it waits from now on."""
        rank = self._ranks[actor]
        self._time.waits(actor, None)
        if kind == "agree":
            self._said[actor] = bool(rest[0]), bool(rest[1])
            self._agree()
            return
        if kind in ("meet", "idle"):
            (self._met if kind == "meet" else self._idle).add(actor)
            if kind == "meet" and rest[0]:
                rank.forms(self._time.now_ps)
            self._gather()
            return
        if kind == "dummy":
            self._awaits[actor] = partial(rank.goes_on_ps, rank.dummy(self._time.now_ps))
        else:
            self._awaits[actor] = partial(rank.end_ps, rest[0])
        self.offered()

    def stirs(self, actor: Actor) -> None:
        """A rank has something to do."""
        self._go_on(self._idle & {actor})

    def offered(self) -> None:
        """A round may have begun, whose end is known from now on."""
        for actor, goes_on_ps in list(self._awaits.items()):
            until_ps = goes_on_ps()
            if until_ps is not None:
                del self._awaits[actor]
                self._time.waits(actor, until_ps)

    def _gather(self) -> None:
        """Who meets waits for all, and nobody stays idle meanwhile."""
        if self._met:
            self._go_on(set(self._idle))
        if len(self._met) == self._size:
            self._go_on(set(self._met))

    def _go_on(self, ranks: set[Actor]) -> None:
        for actor in sorted(ranks, key=lambda one: one.name):
            self._met.discard(actor)
            self._idle.discard(actor)
            self._time.works(actor)
            self._answer(actor, None)

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
