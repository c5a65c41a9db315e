"""SGLang's loops with data-parallel attention: each rank is a process with its own scheduler, and
what SGLang agrees on there goes through its own collectives.

Needs SGLang's Python packages.
"""

from collections.abc import Iterator
from typing import Any

from llmsim.scheduling.conformance.cases import STEP_PS, TOKEN_PS, Case
from llmsim.scheduling.conformance.sglang.host_copies import Copies
from llmsim.scheduling.conformance.sglang.live import Loop
from llmsim.scheduling.conformance.sglang.loops.decode_loop import DecodeLoop
from llmsim.scheduling.conformance.sglang.loops.dp_ranks import Exchange
from llmsim.scheduling.conformance.sglang.loops.prefill_loop import PrefillLoop


def _is_of_a_collective(error: RuntimeError) -> bool:
    """Whether torch's collectives have lost another rank."""
    return "gloo" in str(error)


class DpLoop(Loop):
    """One rank: it runs every round that any rank has work for."""

    def __init__(self, scheduler: Any, case: Case, copies: Copies | None = None) -> None:
        ranks, rank = case["config"]["dp_size"], case["rank"]
        self._exchange: Exchange = case["exchange"]
        self._has_refreshed = False
        super().__init__(scheduler, case, copies)
        mine = [i for i, row in enumerate(self._order) if row % ranks == rank]
        self._order = [self._order[i] for i in mine]
        self._requests = [self._requests[i] for i in mine]
        self._arrival_ps = [self._arrival_ps[i] for i in mine]
        self._index = {request["id"]: i for i, request in enumerate(self._requests)}

    def steps(self) -> Iterator[Case]:
        """As of one server; they end where another rank does, which tells why: it stands still, or
        has failed.
        """
        try:
            yield from super().steps()
        except (EOFError, ConnectionError):
            yield {"aborted": []}
        except RuntimeError as error:
            if not _is_of_a_collective(error):
                raise
            yield {"aborted": []}

    def _agreed(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        return self._exchange.agreed(value)

    def _ended(self) -> bool:
        return all(self._agreed(super()._ended()))

    def _step_ps(self, batch: Any) -> int:
        """Every rank waits for the slowest; one without a batch computes one token of nobody's."""
        idle = batch.forward_mode.is_idle()
        own = STEP_PS + TOKEN_PS if idle else super()._step_ps(batch)
        slowest: int = max(self._agreed(own))
        return slowest

    def _start_ps(self, batch: Any) -> int:
        """Every rank waits for what any of them copies."""
        latest: int = max(self._agreed(super()._start_ps(batch)))
        return latest

    def _launch(self, batch: Any) -> Iterator[Case]:
        self._has_refreshed = False
        retracted = list(self._retracted)
        steps = list(super()._launch(batch))
        if batch.forward_mode.is_idle():
            self._retracted = retracted  # which the next batch of requests tells
        else:
            yield from steps

    def _some(self, value: bool) -> bool:
        return any(self._agreed(value))

    def _finds_more(self) -> bool:
        """Ranks count their passes apart: each refreshes once while nothing runs at one time."""
        self._has_refreshed |= not self._passes.refreshes_later()
        finds_new = self._passes.find_new(len(self._retracted))
        return any(self._agreed(finds_new or not self._has_refreshed))

    def _pass_time(self) -> None:
        before_ps = self.now_ps
        super()._pass_time()
        self._has_refreshed &= self.now_ps == before_ps

    def _times_ahead(self) -> list[int]:
        return [time for times in self._agreed(super()._times_ahead()) for time in times]


class DpPrefillLoop(DpLoop, PrefillLoop):
    """One rank of a prefill server."""


class DpDecodeLoop(DpLoop, DecodeLoop):
    """One rank of a decode server."""
