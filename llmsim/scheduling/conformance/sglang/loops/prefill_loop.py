"""SGLang's loops of a prefill server (`event_loop_normal_disagg_prefill` and its overlapped form),
with transfers that take given times.

Needs SGLang's Python packages. Bootstrapping takes no time, as with SGLang's fake backend.
"""

from typing import Any

from llmsim.scheduling.conformance.cases import Case, by_arrival
from llmsim.scheduling.conformance.sglang.host_copies import Copies
from llmsim.scheduling.conformance.sglang.loops.role_loop import FIRST_ROOM, RoleLoop


def use_stand_in() -> None:
    """From now on SGLang's prefill servers start with its fake backend, whatever they are told."""
    from sglang.srt.disaggregation import prefill
    from sglang.srt.disaggregation.utils import TransferBackend, get_kv_class

    prefill.get_kv_class = lambda _, kind: get_kv_class(TransferBackend.FAKE, kind)


class PrefillLoop(RoleLoop):
    """One run of a prefill server; a prompt's KV has been sent `transfer_ps` after its step, or, in
    front of a decode server, when our simulation says.
    """

    def __init__(self, scheduler: Any, case: Case, copies: Copies | None = None) -> None:
        super().__init__(scheduler, case, copies)
        from sglang.srt.disaggregation.fake.conn import FakeKVSender

        self._transfer_ps = case["config"]["transfer_ps"]
        self._landed_ps: list[int] | None = case.get("landed_ps")
        self._idle = False
        """What ends at the very end of a step is heard of later, unless nothing runs."""
        self._landings: dict[int, int] = {}
        """When the KV of a request has been sent, by the request's row."""
        scheduler.maybe_send_cached_prefix_chunk = lambda *_, **__: None  # copies alone
        FakeKVSender.poll = lambda sender: self._poll_of(sender)

    def _arrivals_of(self, case: Case) -> list[tuple[int, ...]]:
        """In front of a decode server, when that has reserved memory, in its order."""
        if "told_ps" not in case:
            return super()._arrivals_of(case)
        config, rows = case["config"], by_arrival(case)
        sign = 1 if config["schedule_low_priority_values_first"] else -1
        ordered = config["enable_priority_scheduling"]
        ranks = [sign * case["requests"][i].get("priority", 0) if ordered else 0 for i in rows]
        return [(told, ranks[row], row) for row, told in enumerate(case["told_ps"])]

    def _plan(self) -> Any:
        scheduler = self._scheduler
        bootstrapped = scheduler.disagg_prefill_bootstrap_queue.pop_bootstrapped()
        scheduler.waiting_queue.extend(bootstrapped)
        return scheduler.get_next_disagg_prefill_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )

    def _without_result(self, batch: Any) -> None:
        if not self._some(self._hears(batch)):
            return self._pass_time()
        self._idle = not batch
        self._scheduler.process_disagg_prefill_inflight_queue()
        self._idle = False

    def _hears(self, batch: Any) -> bool:
        """Whether a server that has nothing in flight hears of transfers, or has begun a step."""
        queue = self._scheduler.disagg_prefill_inflight_queue
        landed = any(self._landed(self._index[request.rid]) for request in queue)
        return landed or bool(batch)

    def _ended(self) -> bool:
        scheduler = self._scheduler
        return (
            super()._ended()
            and not scheduler.disagg_prefill_bootstrap_queue.queue
            and not scheduler.disagg_prefill_inflight_queue
        )

    def _times_ahead(self) -> list[int]:
        queue = self._scheduler.disagg_prefill_inflight_queue
        landings = [self._landings[self._index[request.rid]] for request in queue]
        return super()._times_ahead() + landings

    def _complete(self) -> None:
        scheduler = self._scheduler
        step = self._flights[0][2]
        before = {request.rid for request in scheduler.disagg_prefill_inflight_queue}
        super()._complete()
        sent = [
            request.rid
            for request in scheduler.disagg_prefill_inflight_queue
            if request.rid not in before
        ]
        for place, rid in enumerate(sent, start=1):  # one behind the other, on one link
            alone = self.now_ps + self._transfer_ps + place
            self._landings[self._index[rid]] = self._landing_of(self._index[rid], alone)
        self._release()
        step |= {"finished": sorted(sent), "free_blocks_after": self._free()}
        step |= self._states.free("free_states_after")

    def _release(self) -> None:
        """Whose KV has been sent makes room."""
        self._scheduler.process_disagg_prefill_inflight_queue()

    def _landing_of(self, index: int, alone: int) -> int:
        """When the KV has been sent: `alone`, or in a pair when our simulation says."""
        return alone if self._landed_ps is None else self._landed_ps[self._order[index]]

    def _waiting(self) -> int:
        queue = self._scheduler.disagg_prefill_bootstrap_queue.queue
        return super()._waiting() + len(queue)

    def _landed(self, index: int) -> bool:
        return index in self._landings and self._landings[index] <= self.now_ps

    def _poll_of(self, sender: Any) -> Any:
        """As of a sender whose room is the request's row."""
        from sglang.srt.disaggregation.base.conn import KVPoll

        index = sender.bootstrap_room - FIRST_ROOM
        if self._landed(index) and (self._idle or self._landings[index] < self.now_ps):
            return KVPoll.Success
        return KVPoll.Transferring if sender.has_sent else KVPoll.WaitingForInput
