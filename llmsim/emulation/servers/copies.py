"""Copies of KV between the devices of engine cores and host memory."""

from typing import Any

from llmsim import _native
from llmsim.lowering import LoweredDeployment


class HostCopies:
    """Moves KV to host memory and back, as in `llmsim run`; groups are the engine cores."""

    def __init__(self, lowered: LoweredDeployment) -> None:
        assert lowered.network is not None, "copies move on it"
        self._copies = _native.OutsideCopies(list(lowered.kv_offloading), lowered.network.config)

    @property
    def next_ps(self) -> int | None:
        """When a copy or a step may end; None: nothing is under way."""
        return self._copies.next_event_ps()

    def asked(self, core: int, asked: dict[str, list[Any]], now_ps: int, *, runs: bool) -> None:
        """Workers are called, with requests (`runs`) or without, and submit copies: [job, tokens]
        by the method of `OutsideCopies` that begins them, [job] of stores that the step waits for.
        """
        for kind, copies in asked.items():
            begin = getattr(self._copies, kind)
            for copy in copies:
                begin(core, *copy)
        self._copies.formed(core, runs, now_ps)

    def launched(self, core: int, end_ps: int) -> None:
        """A step was launched, and ends then."""
        self._copies.launched(core, end_ps)

    def is_open(self, core: int) -> bool:
        """Whether all that the step waits for is there."""
        return self._copies.is_open(core)

    def landed(self, now_ps: int) -> list[tuple[int, int]]:
        """The jobs that have ended by now, each behind the engine core that hears of it."""
        return [(core, job) for core, job in self._copies.advance(now_ps)]
