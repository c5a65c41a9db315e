"""KV that moves between engine cores, and the cores that rest until something is there."""

from collections.abc import Callable
from typing import Any, Protocol

from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper


class KvLinks(Protocol):
    """Who moves KV between engine cores (`llmsim.emulation.servers.links.Links`)."""

    @property
    def next_ps(self) -> int | None:
        """When something may land; None: nothing moves."""
        ...

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        """A decode core has blocks for a prompt, of which it has `cached` tokens; how long its
        workers post the reads of the others, in ps.
        """
        ...

    def sent(self, core: int, row: int, metadata: str) -> None:
        """A prefill core pushes the KV of a prompt, with what goes along with it."""
        ...

    def landed(self, now_ps: int) -> list[tuple[int, Any]]:
        """What has happened by now: the number of an engine core, and what it is to hear."""
        ...


class KvMoves:
    """Answers what engine cores with a KV connector say; the links are an actor of the clock."""

    KINDS = ("reserved", "sent", "moved", "rest")

    def __init__(
        self,
        time: Timekeeper,
        links: KvLinks | None,
        answer: Callable[[Actor, Any], None],
        posts_reads: Callable[[Actor, int], None],
    ) -> None:
        """`posts_reads` is called with an engine core, and how long its workers post reads."""
        self._time, self._links, self._answer = time, links, answer
        self._posts_reads = posts_reads
        self._moved: dict[int, list[tuple[int, Any]]] = {}
        """When something has happened, and what, by the engine core that has still to hear of it.
        """
        self._numbers: dict[Actor, int] = {}
        """Of the engine cores."""
        self._unseen: set[Actor] = set()
        """Engine cores with requests that came after they had settled."""
        self._resting: set[Actor] = set()
        self.actor: Actor | None = None
        """Waits for what lands next; None: nothing ever moves."""
        if links is not None:
            self.actor = time.join("the links")
            time.waits(self.actor, None)

    def joins(self, core: Actor, number: int) -> None:
        """An engine core is there."""
        self._numbers[core] = number

    def leaves(self, core: Actor) -> None:
        """It has ended."""
        self._numbers.pop(core, None)
        self._resting.discard(core)

    def hear(self, core: Actor, kind: str, rest: list[Any]) -> None:
        """What an engine core says of its connector, one of `KINDS`."""
        if kind == "moved":
            self._answer(core, self._moved_until(rest[0], self._numbers[core]))
        elif kind == "rest":
            self._resting.add(core)
            self._time.waits(core, None)
            self._stir(core)
        elif self._links is not None and kind == "sent":
            self._links.sent(self._numbers[core], *rest)
            self._expect(self._links)
        elif self._links is not None:
            row, cached = rest
            posts_ps = self._links.reserved(self._numbers[core], row, cached, self._time.now_ps)
            self._posts_reads(core, posts_ps)
            self._expect(self._links)

    def settled(self, core: Actor) -> None:
        """It sees all requests that it has received."""
        self._unseen.discard(core)

    def received(self, core: Actor) -> None:
        """It has received a request."""
        self._unseen.add(core)
        self._stir(core)

    def unparks(self, core: Actor) -> None:
        """It has something to do."""
        if core in self._resting:
            self._resting.discard(core)
            self._answer(core, None)

    def land(self) -> None:
        """The time of the links' actor has come: both ends hear of what is there."""
        if self._links is None:
            return
        for number, heard in self._links.landed(self._time.now_ps):
            self._moved.setdefault(number, []).append((self._time.now_ps, heard))
        for core in self._numbers:
            self._stir(core)
        self._expect(self._links)

    def _moved_until(self, until_ps: int | None, number: int) -> list[Any]:
        """Takes what has moved by then, or, without a time, by now."""
        moved = self._moved.pop(number, [])
        later = [one for one in moved if until_ps is not None and one[0] > until_ps]
        if later:
            self._moved[number] = later
        return [heard for _, heard in moved[: len(moved) - len(later)]]

    def _expect(self, links: KvLinks) -> None:
        assert self.actor is not None, "there are links"
        self._time.waits(self.actor, links.next_ps)

    def _stir(self, core: Actor) -> None:
        """An engine core that rests goes on where there is something for it."""
        is_there = core in self._unseen or self._moved.get(self._numbers[core])
        if core in self._resting and is_there:
            self._resting.discard(core)
            self._time.works(core)
            self._answer(core, None)
