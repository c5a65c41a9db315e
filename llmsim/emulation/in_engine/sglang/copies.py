"""Copies between the device and host memory (HiCache) in virtual time."""

from collections.abc import Mapping
from typing import Any

from llmsim.emulation.in_engine.clock import ClockPage
from llmsim.scheduling.conformance.sglang.host_copies import Copies, use_stand_in


class Schedule:
    """What copies need to know of the scheduler that begins them; times in ps."""

    def __init__(self, page: ClockPage) -> None:
        self._page = page
        self.busy_ps = 0
        """When the steps end that were launched so far."""
        self.blocked_ps = 0
        """Until when the scheduler waits for a copy."""

    @property
    def now_ps(self) -> int:
        """The virtual time."""
        return self._page.now_ps()


class HostCopies:
    """The copies of one scheduler."""

    def __init__(self, given: Mapping[str, int], page: ClockPage) -> None:
        """`given`: what a copy takes, and each token of it."""
        self._schedule = Schedule(page)
        self._copies = Copies(given["write_ps"], given["load_ps"], given["latency_ps"])
        self._copies.clock = self._schedule
        use_stand_in(self._copies)

    def waits_of(self, batch: Any) -> list[int]:
        """When the step of a batch may begin, and when what its layers wait for begins and ends; 0:
        they wait for nothing.
        """
        copies = self._copies
        loads = batch.hicache_consumer_index >= 0
        load = [copies.load_began_ps, copies.loaded_ps] if loads else [0, 0]
        return [self._schedule.blocked_ps, *load]

    def launched(self, end_ps: int) -> None:
        """A step has been launched, behind whose end copies begin."""
        self._schedule.busy_ps = end_ps

    def next_end_ps(self) -> int | None:
        """When the next copy under way ends; None: there is none."""
        return self._copies.next_end_ps()
