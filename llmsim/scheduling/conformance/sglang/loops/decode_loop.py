"""SGLang's loops of a decode server (`event_loop_normal_disagg_decode` and its overlapped form),
with KV that comes when our simulation says.

Needs SGLang's Python packages. Bootstrapping takes no time; KV of retracted requests is copied to
the host and back in none.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang import retractions
from llmsim.scheduling.conformance.sglang.live import output_token
from llmsim.scheduling.conformance.sglang.loops.role_loop import FIRST_ROOM, RoleLoop

TURNS = 3
"""An idle server that has looked so often without a change finds nothing more at this time."""


def use_stand_in(clip_max_new_tokens: int) -> None:
    """From now on SGLang's decode servers start with a fake backend, whatever they are told."""
    from sglang.srt.disaggregation import decode
    from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class

    def stand_in(_: Any, kind: Any) -> Any:
        fake = get_kv_class(TransferBackend.FAKE, kind)
        return _receiver(fake) if kind == KVClassType.RECEIVER else fake

    decode.get_kv_class = stand_in
    decode.CLIP_MAX_NEW_TOKEN = clip_max_new_tokens
    decode.DecodePreallocQueue._resolve_prefill_dp_rank = lambda *_: 0
    retractions.use_stand_in()


class _Arrivals:
    """Says of receivers whether their KV is there."""

    has_come: Callable[[Any], bool]


def _receiver(base: Any) -> Any:
    """SGLang's fake receiver, which waits for its KV."""

    class Receiver(base):  # type: ignore[misc]
        """Of one request, whose room says which."""

        def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int) -> None:
            super().__init__(mgr, bootstrap_addr, bootstrap_room)
            self.room, self.slot = bootstrap_room, -1

        def send_metadata(self, pages: Any, aux_index: int, *_: Any, **__: Any) -> None:
            """Its pages are known to the prefill server."""
            super().send_metadata(pages, aux_index)
            self.slot = aux_index

        def poll(self) -> Any:
            """As of SGLang's."""
            from sglang.srt.disaggregation.base import KVPoll

            if self.has_sent_metadata and not _Arrivals.has_come(self):
                return KVPoll.Transferring
            return super().poll()

        def clear(self) -> None:
            """Nothing is held."""

    return Receiver


class DecodeLoop(RoleLoop):
    """One run of a decode server."""

    def __init__(self, scheduler: Any, case: Case, *_: Any) -> None:
        super().__init__(scheduler, case)
        self._landed_ps: list[int] = case["landed_ps"]
        self._without_change = 0
        self._steps_of_none: list[Case] = []
        _Arrivals.has_come = self._has_come
        processor = type(scheduler.batch_result_processor)
        self._process_prebuilt = processor.process_batch_result_prebuilt
        processor.process_batch_result_prebuilt = lambda _, batch: self._note_prebuilt(batch)

    def _has_come(self, receiver: Any) -> bool:
        """With the KV comes the first token. What comes at the very end of a step is heard of
        later, unless nothing runs.
        """
        index = receiver.room - FIRST_ROOM
        heard_ps = self.now_ps if self._without_change else self.now_ps - 1
        if self._landed_ps[self._order[index]] > heard_ps:
            return False
        buffers = self._scheduler.disagg_metadata_buffers
        buffers.output_ids[receiver.slot][0] = output_token(index, 0)
        buffers.bootstrap_room[receiver.slot, 0] = receiver.room
        self._sampled[index] = 1
        return True

    def _plan(self) -> Any:
        scheduler = self._scheduler
        scheduler.process_decode_queue()
        return scheduler.get_next_disagg_decode_batch_to_run(running_batch=scheduler.running_batch)

    def _note_prebuilt(self, batch: Any) -> None:
        """First tokens are a step that takes no time; who comes back has its own already."""
        new = [request for request in batch.reqs if not request.retracted_stain]
        step: Case = {
            "schedule_ps": self.now_ps,
            "end_ps": self.now_ps,
            "scheduled": [(one.rid, 0, len(one.origin_input_ids)) for one in new],
            "running": self._running(),
            "waiting": self._waiting(),
            "free_blocks": self._free(),
            "preempted": [],
            **self._states.free("free_states"),
        }
        self._process_prebuilt(self._scheduler.batch_result_processor, batch)
        step["finished"] = sorted(one.rid for one in new if self._has_ended(one))
        step["free_blocks_after"] = self._free()
        step |= self._states.free("free_states_after")
        if new:
            self._steps_of_none.append(step)

    def _brought(self) -> Iterable[Case]:
        steps, self._steps_of_none = self._steps_of_none, []
        if self._some(bool(steps)):
            self._without_change = 0
        return steps

    def _launch(self, batch: Any) -> Iterator[Case]:
        self._without_change = 0
        yield from super()._launch(batch)

    def _without_result(self, batch: Any) -> None:
        self._without_change = 0 if batch else self._without_change + 1
        if self._without_change >= TURNS:
            super()._without_result(batch)

    def _standing_still(self) -> Case:
        """Whom SGLang has retracted and finds no reserve for keeps all others waiting, for ever."""
        queue = self._scheduler.disagg_decode_prealloc_queue.retracted_queue
        if not queue:
            return super()._standing_still()
        return {"aborted": [request.rid for request in queue]}

    def _times_ahead(self) -> list[int]:
        queue = self._scheduler.disagg_decode_transfer_queue.queue
        coming = [self._landed_ps[self._order[self._index[one.req.rid]]] for one in queue]
        return super()._times_ahead() + [time for time in coming if time > self.now_ps]

    def _ended(self) -> bool:
        scheduler = self._scheduler
        queues = scheduler.disagg_decode_prealloc_queue
        return (
            super()._ended()
            and not queues.queue
            and not queues.retracted_queue
            and not scheduler.disagg_decode_transfer_queue.queue
        )

    def _waiting(self) -> int:
        scheduler = self._scheduler
        queues = scheduler.disagg_decode_prealloc_queue
        moving = len(scheduler.disagg_decode_transfer_queue.queue)
        return super()._waiting() + len(queues.queue) + len(queues.retracted_queue) + moving

    def _running(self) -> int:
        """Requests that hold a row, and whose KV is there."""
        pool = self._scheduler.req_to_token_pool
        rows = pool.size + pool.pre_alloc_size - pool.available_size()
        return int(rows - len(self._scheduler.disagg_decode_transfer_queue.queue))
