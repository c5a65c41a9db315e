"""A data-parallel rank of the installed vLLM behind our loop."""

from collections.abc import Sequence
from typing import Any

from llmsim import _native
from llmsim.scheduling.base import ScheduledItem
from llmsim.scheduling.conformance.vllm.ranks.loop import RankLoop
from llmsim.scheduling.conformance.vllm.request import LiveRequest
from llmsim.scheduling.conformance.vllm.scheduler import VllmScheduler


class VllmRank(VllmScheduler):
    """An engine core of vLLM as `llmsim.scheduling.base.Scheduler` and `.base.RankEngine`."""

    def __init__(
        self,
        requests: Sequence[LiveRequest],
        core: Any,
        loop: RankLoop,
        failures: "_native.LoadFailuresConfig | None" = None,
    ) -> None:
        """`core` is a `SimulatedRank`, and `loop` runs it."""
        super().__init__(requests, core, loop, failures)
        self._rank = loop

    def build(self, now_ps: int) -> tuple[list[ScheduledItem], list[int]]:
        self._rank.now_ps = now_ps
        call = self._rank.next_call()
        return ([], []) if call is None else (call.items, call.preempted)

    @property
    def turn(self) -> "_native.EngineTurn":
        """Where the engine's loop stands."""
        return self._rank.turn

    @property
    def taken_from_ps(self) -> int:
        """When the call was made whose output the engine takes."""
        return self._rank.taken_from_ps

    def has_work(self) -> bool:
        """Whether a loop that looks runs a step."""
        return self._rank.has_work()

    def go_on(self) -> None:
        """A dummy runs, the rank was told of what has moved, or all have asked for work left."""
        self._rank.go_on()
