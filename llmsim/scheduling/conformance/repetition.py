"""Finds where a scheduler repeats the same steps for ever.

With a KV connector, vLLM 0.24 can start a prompt, preempt it for want of blocks, and start it
again: nobody gives blocks back meanwhile.
"""

from collections.abc import Hashable


class Repetition:
    """Hears of a scheduler's steps; only their scheduler's owner changes it.

    A round is what happens between two times at which nothing runs and nothing is in flight. Where
    nobody told the scheduler anything in two equal rounds, the second repeats the first, and so
    does every later one until somebody tells it something. New requests may come in a round: it
    ends as it would have ended without them if it is equal to the one before.
    """

    def __init__(self) -> None:
        self._begun_ps: int | None = None  # of the round that goes on; None: it cannot be compared
        self._steps: list[Hashable] = []
        self._last: tuple[int, list[Hashable]] | None = None
        self.goes_on = False
        """Whether the last two rounds were equal and ran somebody, and nobody has told the
        scheduler anything since: the next round will be equal, too.
        """

    def told(self) -> None:
        """The scheduler hears of a transfer, a client that left or a token: what follows may
        differ.
        """
        self._begun_ps = self._last = None
        self.goes_on = False

    def added(self) -> None:
        """A request has come, which the next round may start."""
        self.goes_on = False

    def rests(self, now_ps: int) -> list[int]:
        """A round ends and the next begins; returns when equal rounds began, if the one that ends
        repeats the one before it.
        """
        repeated: list[int] = []
        if self._begun_ps is not None:
            ended = (self._begun_ps, self._steps)
            if self._last is not None and self._last[1] == self._steps:
                repeated = [self._last[0], self._begun_ps, now_ps]
                self.goes_on = any(self._steps)  # who runs nobody may only wait for its turn
            self._last = ended
        self._begun_ps, self._steps = now_ps, []
        return repeated

    def stepped(self, step: Hashable) -> None:
        """What the scheduler made run, and whom it preempted; false: nobody."""
        if self._begun_ps is not None:
            self._steps.append(step)
