"""Engine cores that have nothing to do until something happens."""

from collections.abc import Callable, Iterable
from typing import Any

from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper


class Resting:
    """Wakes them, whoever knows that there is something for them."""

    def __init__(self, time: Timekeeper, answer: Callable[[Actor, Any], None]) -> None:
        """`answer` sends an engine core something."""
        self._time, self._answer = time, answer
        self._cores: set[Actor] = set()

    def rests(self, core: Actor, until_ps: int | None = None) -> None:
        """It has nothing to do before that time; None: before something happens."""
        self._time.waits(core, until_ps)
        self._cores.add(core)

    def has(self, core: Actor) -> bool:
        """Whether it rests."""
        return core in self._cores

    def wake(self, cores: Iterable[Actor]) -> None:
        """There is something for those of them that rest."""
        for core in sorted(self._cores.intersection(cores), key=lambda one: one.name):
            self._cores.discard(core)
            self._time.works(core)
            self._answer(core, None)

    def forget(self, core: Actor) -> None:
        """It goes on by itself, or has ended."""
        self._cores.discard(core)
