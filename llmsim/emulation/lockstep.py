"""The simulated devices of data-parallel ranks in lock-step: a round is a batch of each rank."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmsim import _native
from llmsim.emulation.devices import (
    Batch,
    Begun,
    DraftsAfter,
    HostLoads,
    Model,
    Proposer,
    Schedule,
    answered,
    drafts_by_sequences,
    sizes_of,
)
from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.step_counts import Encodes
from llmsim.lowering import LoweredGroup
from llmsim.lowering.network.contended.collectives import ContendedDomain

NOT_KNOWN_PS = -1
"""The end of a step whose transfers have not landed."""


@dataclass(frozen=True)
class Offered:
    """A batch that waits for those of the other ranks; an empty one is a dummy."""

    formed_ps: int
    batch: Batch = field(default_factory=list)
    sizes: Sequence[tuple[int, int, int]] = ()
    """(tokens, computed before, drafts) of each request."""
    ready_ps: int = 0
    """When it may begin, for which all ranks wait."""
    posting_ps: int = 0
    """How long the rank's hosts post reads of KV before they launch it."""
    drafts_after: int = 0
    """Proposed for each sequence at its end."""


@dataclass
class _Member:
    """What is known of one rank."""

    offered: deque[Offered] = field(default_factory=deque)
    begun: deque[int | None] = field(default_factory=deque)
    """Steps whose ends are not known, by their places in the schedule; None: dummies."""
    ends_ps: list[int] = field(default_factory=list)
    """Of its steps and dummies, as far as they are known."""
    looks_ps: list[int] = field(default_factory=list)
    """When the rank's workers look for KV that has moved: behind the launch of each of them."""
    schedule: Schedule = field(default_factory=Schedule)


class Rounds:
    """Begins a round as soon as every rank has offered a batch for it, a dummy if it has none."""

    def __init__(
        self,
        groups: Sequence[LoweredGroup],
        expanded: "_native.ExpandedConfig | None" = None,
        contended: ContendedDomain | None = None,
        network: "_native.OutsideNetwork | None" = None,
    ) -> None:
        """`contended`: what rounds move on the `network`, where they meet others."""
        configs, programs = [one.native for one in groups], [one.program for one in groups]
        contention = None if contended is None else contended.native()
        self._runner = _native.RoundRunner(configs, programs, expanded, contention, network)
        self._members = [_Member() for _ in groups]

    def offer(self, member: int, offered: Offered) -> int:
        """The number of the rank's step, of which `end_ps` tells."""
        one = self._members[member]
        one.offered.append(offered)
        number = len(one.looks_ps) + len(one.offered) - 1
        while all(each.offered for each in self._members):
            self._begin(offered.formed_ps)
        return number

    def end_ps(self, member: int, number: int) -> int | None:
        """When that step of the rank ends; None: its round has not begun, or what it moves has not
        landed.
        """
        self._note_ends()
        ends_ps = self._members[member].ends_ps
        return ends_ps[number] if number < len(ends_ps) else None

    def looks_ps(self, member: int, number: int) -> int | None:
        """When the rank's workers look for KV that has moved, as `end_ps`."""
        looks_ps = self._members[member].looks_ps
        return looks_ps[number] if number < len(looks_ps) else None

    def schedule(self, member: int) -> Schedule:
        """The batches of the rank, without dummies."""
        self._note_ends()
        return self._members[member].schedule

    def _begin(self, now_ps: int) -> None:
        offered = [one.offered.popleft() for one in self._members]
        self._runner.begin(
            [list(one.sizes) for one in offered],
            now_ps,
            max(one.ready_ps for one in offered),
            [one.posting_ps for one in offered],
            [one.drafts_after for one in offered],
        )
        for member, one in zip(self._members, offered, strict=True):
            place = len(member.schedule.end_ps) if one.batch else None
            member.begun.append(place)
            member.looks_ps.append(now_ps + one.posting_ps)
            if place is not None:
                member.schedule.add(one.formed_ps, NOT_KNOWN_PS, one.batch)

    def _note_ends(self) -> None:
        for number, _, end_ps in self._runner.take_timed():
            member = self._members[number]
            place = member.begun.popleft()
            member.ends_ps.append(end_ps)
            if place is not None:
                member.schedule.end_ps[place] = end_ps


class RankDevices:
    """The devices of one rank."""

    def __init__(
        self,
        group: LoweredGroup,
        model: Model,
        rounds: Rounds,
        member: int,
        drafts_after: DraftsAfter = drafts_by_sequences,
    ) -> None:
        assert group.scheduler is not None, "engine_stages looked"
        self._depth, self._host_loads = group.native.depth, HostLoads(group)
        self._model, self._rounds, self._member = model, rounds, member
        self._proposer = Proposer(group.scheduler.speculation, model, drafts_after)
        self._posted_reads = _native.PostedReads()

    @property
    def schedule(self) -> Schedule:
        """The rank's batches."""
        return self._rounds.schedule(self._member)

    def posts_reads(self, posts_ps: int, now_ps: int) -> None:
        """The rank's hosts post reads of KV for so long, before they launch its next batch."""
        self._posted_reads.add(posts_ps, now_ps)

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
        sizes = sizes_of(batch, items)
        offered = Offered(
            now_ps,
            batch,
            sizes,
            self._host_loads.ready_ps(sizes, waits),
            self._posted_reads.take(now_ps),
            self._proposer.begin_step(items),
        )
        return Begun(self._rounds.offer(self._member, offered), tokens, now_ps)

    def forms(self, now_ps: int) -> None:
        """Ranks in lock-step offer a batch when it is formed."""

    def drops(self, held: dict[str, int]) -> None:
        """What steps in flight give these requests, which hold so many tokens, is dropped."""
        for name, tokens in held.items():
            self._model.forgets(row_of(name), tokens)

    def drafts(self) -> list[int]:
        """How many drafts each request of the last step gets at its end."""
        return self._proposer.drafts()

    def dummy(self, now_ps: int) -> int:
        """Joins a round without work; the number of the dummy (`goes_on_ps`)."""
        return self._rounds.offer(self._member, Offered(now_ps))

    def goes_on_ps(self, number: int) -> int | None:
        """When the rank goes on behind that dummy: all ranks have joined its round, and it is no
        further ahead of its devices than it may be with batches. None: some have still to join; 0:
        at once.
        """
        if self.looks_ps(number) is None:
            return None
        before = number - self._depth + 1
        return 0 if before < 0 else self.end_ps(before)

    def end_ps(self, number: int) -> int | None:
        """When that step ends; None: other ranks have still to join its round."""
        return self._rounds.end_ps(self._member, number)

    def looks_ps(self, number: int) -> int | None:
        """When the rank's workers look for KV that has moved, in that step, as `end_ps`."""
        return self._rounds.looks_ps(self._member, number)

    def first_tokens(self, prompts: list[tuple[str, int]], now_ps: int) -> None:
        """First tokens of these requests, with prompts of so many tokens, have come with their KV:
        a step that takes no time.
        """
        self.schedule.add(now_ps, now_ps, [(row_of(name), 0, tokens) for name, tokens in prompts])

    def empty_step(self) -> None:
        """The engine has called its workers without a batch; the devices do not hear of it."""
