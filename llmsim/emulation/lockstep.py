"""The simulated devices of data-parallel ranks in lock-step: a round is a batch of each rank."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmsim import _native
from llmsim.emulation.devices import Batch, Begun, HostLoads, Model, Schedule, answered
from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.step_counts import Encodes
from llmsim.lowering import LoweredGroup

NOT_KNOWN_PS = -1
"""The end of a step whose transfers have not landed."""


@dataclass(frozen=True)
class Meeting:
    """Where transfers of steps meet others."""

    contention: "_native.ContentionSpec"
    """What of the steps moves there."""
    network: "_native.OutsideNetwork"


@dataclass
class _Offered:
    """A batch that waits for those of the other ranks."""

    formed_ps: int
    batch: Batch
    ready_ps: int
    """When it may begin."""


@dataclass
class _Member:
    """What is known of one rank."""

    offered: deque[_Offered] = field(default_factory=deque)
    begun: deque[int | None] = field(default_factory=deque)
    """Steps whose ends are not known, by their places in the schedule; None: dummies."""
    ends_ps: list[int] = field(default_factory=list)
    """Of its steps and dummies, as far as they are known."""
    schedule: Schedule = field(default_factory=Schedule)


class Rounds:
    """Begins a round as soon as every rank has offered a batch for it, a dummy if it has none."""

    def __init__(
        self,
        groups: Sequence[LoweredGroup],
        expanded: "_native.ExpandedConfig | None" = None,
        meeting: Meeting | None = None,
    ) -> None:
        """`meeting`: where transfers of a round meet others; its end is known when these have
        landed.
        """
        configs, programs = [one.native for one in groups], [one.program for one in groups]
        contention = None if meeting is None else meeting.contention
        network = None if meeting is None else meeting.network
        self._runner = _native.RoundRunner(configs, programs, expanded, contention, network)
        self._members = [_Member() for _ in groups]

    def offer(
        self,
        member: int,
        batch: Batch,
        now_ps: int,
        ready_ps: int = 0,
    ) -> int:
        """The number of the rank's step, of which `end_ps` tells; an empty batch is a dummy. All
        ranks wait until it may begin, `ready_ps`.
        """
        one = self._members[member]
        one.offered.append(_Offered(now_ps, batch, ready_ps))
        number = len(one.ends_ps) + len(one.begun) + len(one.offered) - 1
        while all(each.offered for each in self._members):
            self._begin(now_ps)
        return number

    def end_ps(self, member: int, number: int) -> int | None:
        """When that step of the rank ends; None: its round has not begun, or nobody knows yet when
        its transfers land.
        """
        self._hear()
        ends_ps = self._members[member].ends_ps
        return ends_ps[number] if number < len(ends_ps) else None

    def schedule(self, member: int) -> Schedule:
        """The batches of the rank, without dummies."""
        self._hear()
        return self._members[member].schedule

    def _begin(self, now_ps: int) -> None:
        offered = [one.offered.popleft() for one in self._members]
        items = [[(tokens, before) for _, tokens, before in one.batch] for one in offered]
        self._runner.run(items, now_ps, max(one.ready_ps for one in offered))
        for member, one in zip(self._members, offered, strict=True):
            place = len(member.schedule.end_ps) if one.batch else None
            member.begun.append(place)
            if place is not None:
                member.schedule.add(one.formed_ps, NOT_KNOWN_PS, one.batch)
        self._hear()

    def _hear(self) -> None:
        """Of steps whose ends are known meanwhile."""
        for number, _, end_ps in self._runner.take_timed():
            member = self._members[number]
            place = member.begun.popleft()
            member.ends_ps.append(end_ps)
            if place is not None:
                member.schedule.end_ps[place] = end_ps


class RankDevices:
    """The devices of one rank."""

    def __init__(self, group: LoweredGroup, model: Model, rounds: Rounds, member: int) -> None:
        self._depth, self._host_loads = group.native.depth, HostLoads(group)
        self._model, self._rounds, self._member = model, rounds, member

    @property
    def schedule(self) -> Schedule:
        """The rank's batches."""
        return self._rounds.schedule(self._member)

    def posts_reads(self, posts_ps: int, now_ps: int) -> None:
        """Ranks in lock-step read no KV of others."""

    def step(
        self,
        items: list[list[Any]],
        now_ps: int,
        waits: list[int] | None = None,
        encodes: Encodes | None = None,
    ) -> Begun:
        """The next step (`Channel.step`), which waits for copies as `Devices.step`; ranks in
        lock-step encode nothing.
        """
        batch, tokens = answered(self._model, items)
        sizes = [(tokens, before, 0) for _, tokens, before in batch]
        ready_ps = self._host_loads.ready_ps(sizes, waits)
        number = self._rounds.offer(self._member, batch, now_ps, ready_ps)
        return Begun(number, tokens, now_ps)

    def forms(self, now_ps: int) -> None:
        """Ranks in lock-step offer a batch when it is formed."""

    def drops(self, held: dict[str, int]) -> None:
        """What steps in flight give these requests, which hold so many tokens, is dropped."""
        for name, tokens in held.items():
            self._model.forgets(row_of(name), tokens)

    def drafts(self) -> list[int]:
        """Ranks in lock-step propose none."""
        return []

    def dummy(self, now_ps: int) -> int:
        """Joins a round without work; the number of the dummy (`goes_on_ps`)."""
        return self._rounds.offer(self._member, [], now_ps)

    def goes_on_ps(self, number: int) -> int | None:
        """When the rank goes on behind that dummy: all ranks have joined its round, and it is no
        further ahead of its devices than it may be with batches. None: some have still to join; 0:
        at once.
        """
        if self.end_ps(number) is None:
            return None
        before = number - self._depth + 1
        return 0 if before < 0 else self.end_ps(before)

    def end_ps(self, number: int) -> int | None:
        """When that step ends; None: other ranks have still to join its round."""
        return self._rounds.end_ps(self._member, number)

    def first_tokens(self, prompts: list[tuple[str, int]], now_ps: int) -> None:
        """First tokens of these requests, with prompts of so many tokens, have come with their KV:
        a step that takes no time.
        """
        self.schedule.add(now_ps, now_ps, [(row_of(name), 0, tokens) for name, tokens in prompts])

    def empty_step(self) -> None:
        """The engine has called its workers without a batch; the devices do not hear of it."""
