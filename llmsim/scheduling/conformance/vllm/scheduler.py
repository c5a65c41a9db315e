"""The installed vLLM's engine core behind our loop, as `llmsim.scheduling.base.Scheduler`."""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmsim import _native
from llmsim.scheduling.base import Emitted, ScheduledItem
from llmsim.scheduling.conformance.repetition import Repetition
from llmsim.scheduling.conformance.vllm.request import LiveRequest, engine_request

if TYPE_CHECKING:
    from llmsim.scheduling.conformance.vllm.engine_core import EngineLoop
    from llmsim.scheduling.conformance.vllm.ranks.loop import RankLoop


class VllmScheduler:
    """An engine core of vLLM as `llmsim.scheduling.base.Scheduler`; `requests` by row.

    With a connector it also has the methods of `llmsim.scheduling.base.Connector`.
    """

    queues_empty_batches = True

    def __init__(
        self,
        requests: Sequence[LiveRequest],
        core: Any,
        loop: "EngineLoop | RankLoop",
        failures: "_native.LoadFailuresConfig | None" = None,
    ) -> None:
        """`core` is a `SimulatedCore`, and `loop` calls its steps."""
        self._requests = requests
        self._row = {request.name: row for row, request in enumerate(requests)}
        self._core, self._scheduler, self._loop = core, core.scheduler, loop
        weakref.finalize(self, loop.end)
        self.stood_still_ps: set[int] = set()
        """When nothing but a new request, or a client that gives up, could let it go on: it
        schedules nothing, or begins again what it has just done in vain.
        """
        self._repetition = Repetition()
        self._failures = failures or _native.LoadFailuresConfig()
        self._connector: Any = getattr(self._scheduler, "connector", None)
        if self._connector is not None:
            self._connector.rows = self._row
            self._connector.failures = _native.LoadFailures(self._failures)
            self._connector.loses_all = self._failures.loses_all

    @property
    def depth(self) -> int:
        """Batches that vLLM keeps in flight."""
        return int(self._core.batch_queue_size)

    def add(self, request: int) -> None:
        self._repetition.added()
        one, longest = self._requests[request], self._scheduler.max_model_len
        self._loop.add(engine_request(one, longest, self._core.request_block_hasher))

    def build(self, now_ps: int) -> tuple[list[ScheduledItem], list[int]]:
        if not self._repetition.goes_on:
            self._note_repetition(now_ps)
        # vLLM would go round for ever; the simulation ends where nobody comes any more.
        if self._repetition.goes_on:
            return [], []
        call = self._loop.next_call()
        if call is None:
            return [], []
        if not call.items and self._stands_still():
            self.stood_still_ps.add(now_ps)
        self._repetition.stepped((*call.items, *call.preempted))
        return call.items, call.preempted

    def _note_repetition(self, now_ps: int) -> None:
        """Requests that neither run nor wait for a step hold blocks with a connector alone."""
        if self._connector is None or self._loop.in_flight or self._scheduler.running:
            return
        if self._awaits_blocks():
            self._repetition.told()
        self.stood_still_ps.update(self._repetition.rests(now_ps))

    def _stands_still(self) -> bool:
        """Whether requests wait although nothing runs and no block will ever be given back."""
        vllm = self._scheduler
        if self._connector is None or self._loop.in_flight or vllm.running:
            return False
        return bool(vllm.requests) and not self._awaits_blocks()

    def _awaits_blocks(self) -> bool:
        """Whether blocks come back that neither a running request nor a step in flight holds."""
        from vllm.v1.request import RequestStatus

        if getattr(self._connector, "copies", None) is not None and self.pending():
            return True
        arrived = self._scheduler.finished_recving_kv_req_ids
        for request in self._scheduler.requests.values():
            loads = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            if loads and request.request_id not in arrived:
                return True  # then it runs, and ends
            if request.is_finished():
                return True  # when another group has read it
        return False

    @property
    def connects(self) -> bool:
        """Whether vLLM's scheduler has a KV connector."""
        return self._connector is not None

    @property
    def keeps_finished(self) -> bool:
        """Whether another group reads what ended here."""
        return bool(self._connector is not None and self._connector.keeps_finished)

    def take_reserved(self) -> list[tuple[int, int]]:
        """Requests that the last `build` parked until their KV has come from another group, and
        tokens of each that were here.
        """
        reserved, self._connector.reserved = self._connector.reserved, []
        return reserved  # type: ignore[no-any-return]

    def transferred(self, request: int) -> bool:
        """The KV of a parked request is there, or that of one that ended has been read; true: it
        could not be loaded, and the request has ended with an error.
        """
        self._repetition.told()
        told = self._connector.moved(self._requests[request].name, self._blocks)
        return bool(self._loop.hear_of_moved(told))

    def _blocks(self, name: str) -> Any:
        return self._scheduler.kv_cache_manager.get_block_ids(name)[0]

    def use_tiers(self, below: Any) -> None:
        """Pools of KV below the group (`_native.PoolsBelow`)."""
        self._connector.below = below

    def use_copies(self, copies: Any) -> None:
        """What carries out the copies of vLLM's own offloading (`_native.CopiesBelow`)."""
        self._connector.copies = copies

    def pending(self) -> bool:
        """Whether vLLM's engine forms another step, although nobody runs or waits."""
        if self._repetition.goes_on:
            return False
        ended = bool(self._scheduler.finished_req_ids)
        return ended or bool(self._connector.has_pending_push_work())

    def asks_again(self) -> bool:
        """Whether vLLM's engine, with nothing in flight, would come to schedule something by asking
        once more.
        """
        vllm = self._scheduler
        if not (vllm.use_pp and vllm.use_v2_model_runner):
            return False
        return any(
            vllm.current_step < request.next_decode_eligible_step for request in vllm.running
        )

    def abort(self, request: int) -> None:
        self._repetition.told()
        self._loop.abort(self._requests[request].name)

    def complete(self) -> list[Emitted]:
        emitted = [
            (self._row[one.request_id], len(one.new_token_ids), one.finish_reason is not None)
            for one in self._loop.next_outputs()
        ]
        if any(count > 0 for _, count, _ in emitted):
            self._repetition.told()
        return emitted

    def gauges(self) -> tuple[int, int, int]:
        running, waiting = (
            self._scheduler.get_request_counts()
        )  # their queues differ between releases
        return running, waiting, self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
