"""KV that moves between engine cores, and the cores that rest until something is there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from llmsim.emulation.timekeeping.resting import Resting
from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper


class Waited(Protocol):
    """Steps that wait for KV, or whose hosts do (`llmsim.emulation.timekeeping.keeper.Steps`)."""

    def posts_reads(self, posts_ps: int, now_ps: int) -> None:
        """The workers post reads of KV for so long, before they launch the next step."""
        ...

    def forms(self, now_ps: int) -> None:
        """The next batch is formed, and may wait for what it needs."""
        ...


class KvMover(Protocol):
    """Who moves KV."""

    @property
    def next_ps(self) -> int | None:
        """When something may land; None: nothing moves."""
        ...

    def landed(self, now_ps: int) -> Sequence[tuple[int, Any]]:
        """What has happened by now: the number of an engine core, and what it is to hear."""
        ...


class KvLinks(KvMover, Protocol):
    """Who moves KV between engine cores (`llmsim.emulation.servers.links.Links`)."""

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        """A decode core has blocks for a prompt, of which it has `cached` tokens; how long its
        workers post the reads of the others, in ps.
        """
        ...

    def sent(self, core: int, row: int, tokens: int, metadata: str) -> None:
        """A prefill core pushes the KV of so many more tokens of a prompt; with the last ones goes
        something along.
        """
        ...

    def withdrawn(self, core: int, row: int, now_ps: int) -> None:
        """A decode core no longer wants the KV of a prompt."""
        ...

    def forgets(self, row: int) -> None:
        """No decode core will have the request, whose prompt has been computed."""
        ...


class KvCopies(KvMover, Protocol):
    """Who copies KV to host memory and back (`llmsim.emulation.servers.copies.HostCopies`)."""

    def asked(self, core: int, asked: dict[str, list[Any]], now_ps: int, *, runs: bool) -> None:
        """The workers of an engine core are called, with requests or without, and copy this."""
        ...

    def launched(self, core: int, end_ps: int) -> None:
        """They have launched a step, which ends then."""
        ...

    def is_open(self, core: int) -> bool:
        """Whether what their next step waits for is there."""
        ...


class KvMoves:
    """Answers what engine cores with a KV connector say; who moves KV is an actor of the clock."""

    KINDS = ("reserved", "sent", "withdrawn", "copies", "moved")

    def __init__(
        self,
        time: Timekeeper,
        links: KvLinks | None,
        answer: Callable[[Actor, Any], None],
        resting: Resting,
        steps_of: Mapping[Actor, Waited],
        copies: KvCopies | None = None,
    ) -> None:
        """Engine cores have `links` between them, or `copies` below them; `steps_of` says who times
        their steps. Those of `resting` go on where there is something for them.
        """
        self._time, self._links, self._answer = time, links, answer
        self._resting = resting
        self._copies = copies
        self._mover: KvMover | None = links if links is not None else copies
        self._steps_of = steps_of
        self._moved: dict[int, list[tuple[int, Any]]] = {}
        """When something has happened, and what, by the engine core that has still to hear of it.
        """
        self._numbers: dict[Actor, int] = {}
        """Of the engine cores."""
        self._unseen: set[Actor] = set()
        """Engine cores with messages that came after they had settled."""
        self._gated: list[Actor] = []
        """Engine cores whose steps wait for copies."""
        self.actor: Actor | None = None
        """Waits for what lands next; None: nothing ever moves."""
        if self._mover is not None:
            self.actor = time.join("the links")
            time.waits(self.actor, None)

    def joins(self, core: Actor, number: int) -> None:
        """An engine core is there."""
        self._numbers[core] = number

    def leaves(self, core: Actor) -> None:
        """It has ended."""
        self._numbers.pop(core, None)
        if core in self._gated:
            self._gated.remove(core)

    def hear(self, core: Actor, kind: str, rest: list[Any]) -> None:
        """What an engine core says of its connector, one of `KINDS`."""
        if kind == "moved":
            self._answer(core, self._moved_between(self._numbers[core], *rest))
        elif kind == "copies":
            self._copy(core, *rest)
        elif self._links is not None and kind in ("sent", "withdrawn"):
            if kind == "sent":
                self._links.sent(self._numbers[core], *rest)
            else:
                (row,) = rest
                self._links.withdrawn(self._numbers[core], row, self._time.now_ps)
            self._expect()
        elif self._links is not None:
            row, cached = rest
            posts_ps = self._links.reserved(self._numbers[core], row, cached, self._time.now_ps)
            self._steps_of[core].posts_reads(posts_ps, self._time.now_ps)
            self._expect()

    def _copy(self, core: Actor, asked: dict[str, list[Any]], runs: bool, waits: bool) -> None:
        """`waits`: the engine core goes on when its step may begin."""
        assert self._copies is not None, "its connector copies"
        self._copies.asked(self._numbers[core], asked, self._time.now_ps, runs=runs)
        if runs:
            self._steps_of[core].forms(self._time.now_ps)
        if waits:
            self._time.waits(core, None)
            self._gated.append(core)
        self.land()

    def launched(self, core: Actor, end_ps: int) -> None:
        """An engine core has launched a step."""
        if self._copies is not None:
            self._copies.launched(self._numbers[core], end_ps)
        if self._mover is not None:
            self._expect()

    def settled(self, core: Actor) -> None:
        """It sees all requests that it has received."""
        self._unseen.discard(core)

    def forgets(self, row: int) -> None:
        """Nobody will read the KV of a prompt that has been computed."""
        assert self._links is not None, "it moves between engine cores"
        self._links.forgets(row)
        self._expect()

    def received(self, core: Actor) -> None:
        """It has received a request, or that a wave begins, or that a client has left."""
        self._unseen.add(core)
        self._stir(core)

    def rests(self, core: Actor) -> None:
        """It has nothing to do, unless something has come or moved."""
        self._stir(core)

    def land(self) -> None:
        """All that has landed by now is told to the engine cores."""
        if self._mover is None:
            return
        for number, heard in self._mover.landed(self._time.now_ps):
            self._moved.setdefault(number, []).append((self._time.now_ps, heard))
        self._open()
        for core in self._numbers:
            self._stir(core)
        self._expect()

    def _open(self) -> None:
        """Steps begin that have what they wait for."""
        for core in list(self._gated):
            assert self._copies is not None, "they wait for copies"
            if self._copies.is_open(self._numbers[core]):
                self._gated.remove(core)
                self._time.works(core)
                self._answer(core, None)

    def _moved_between(self, number: int, until_ps: int | None, after_ps: int) -> list[Any]:
        """Takes what has moved later than `after_ps`, and by the other time or, without one, by
        now.
        """
        moved = self._moved.pop(number, [])
        until_ps = self._time.now_ps if until_ps is None else until_ps
        left = [one for one in moved if not after_ps < one[0] <= until_ps]
        if left:
            self._moved[number] = left
        return [heard for at_ps, heard in moved if after_ps < at_ps <= until_ps]

    def round_begins(self) -> None:
        """Ranks in lock-step may have begun to move something, too."""
        if self._mover is not None:
            self._expect()

    def _expect(self) -> None:
        assert self._mover is not None and self.actor is not None, "something moves"
        self._time.waits(self.actor, self._mover.next_ps)

    def _stir(self, core: Actor) -> None:
        """An engine core that rests goes on where there is something for it."""
        if core in self._unseen or self._moved.get(self._numbers[core]):
            self._resting.wake([core])
