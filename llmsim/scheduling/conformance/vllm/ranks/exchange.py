"""What lies between the engine cores of data-parallel ranks that run in lock-step.

In vLLM these are a process group, in which the ranks agree whether a wave has ended; the
coordinator, which wakes the others when a rank begins a wave; and the front-end, which before vLLM
0.33 tells the coordinator of the first request. All of them take no time.
"""

from typing import Any, NamedTuple, Protocol


class Member(Protocol):
    """The loop of a rank."""

    def wake(self, wave: int, begun_by: int) -> None:
        """The coordinator says that a wave begins, to the rank that began it, too."""


class RankGroup:
    """The ranks of one lock-step group."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.wave = 0
        """The wave that runs, or runs next."""
        self._runs = False
        self._members: list[Member] = []
        self._said: list[tuple[bool, bool]] = []
        self._agreed = (False, False)

    def rank(self, number: int) -> "Rank":
        """One of the ranks, from 0."""
        return Rank(self, number)

    def joins(self, member: Member) -> None:
        """A rank is there."""
        self._members.append(member)

    def say(self, *, has_unfinished: bool, pending_pause: bool) -> None:
        """A rank asks whether any rank has work, as in vLLM's `ParallelConfig.sync_dp_state`."""
        self._said.append((has_unfinished, pending_pause))
        if len(self._said) < self.size:
            return
        pausing = sum(pauses for _, pauses in self._said)
        work = any(unfinished for unfinished, _ in self._said)
        self._agreed = (work or 0 < pausing < self.size, pausing == self.size)
        self._said.clear()

    @property
    def agreed(self) -> tuple[bool, bool]:
        """What the ranks agreed on when all had asked: whether work is left, and whether all pause
        (some that pause count as work).
        """
        return self._agreed

    def hear(self, rank: int, outputs: Any) -> None:
        """A rank tells the coordinator that it begins a wave, or that one has ended (vLLM's
        `EngineCoreOutputs`, as `DPCoordinatorProc` takes them).
        """
        ended, begun = outputs.wave_complete, outputs.start_wave
        if ended is not None and self.wave <= ended:
            self.wave, self._runs = ended + 1, False
        if begun is not None and (begun > self.wave or (begun == self.wave and not self._runs)):
            self._begin(begun, rank)

    def first_request(self, rank: int) -> None:
        """A rank has a request. Unless its engine has begun a wave, the front-end has it begun."""
        if not self._runs:
            self._begin(self.wave, rank)

    def _begin(self, wave: int, rank: int) -> None:
        self.wave, self._runs = wave, True
        for member in self._members:
            member.wake(wave, rank)


class Rank(NamedTuple):
    """A rank of a lock-step group."""

    group: RankGroup
    number: int
