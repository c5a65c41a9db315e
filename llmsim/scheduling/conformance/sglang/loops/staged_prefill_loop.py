"""SGLang's loop of a prefill server with pipeline stages (`event_loop_pp_disagg_prefill`), on its
first stage.

Needs SGLang's Python packages. The other stages see at once what this one has seen.
"""

from collections.abc import Sequence
from typing import Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.host_copies import Copies
from llmsim.scheduling.conformance.sglang.live import PipelineLoop
from llmsim.scheduling.conformance.sglang.loops.prefill_loop import PrefillLoop


class StagedPrefillLoop(PrefillLoop, PipelineLoop):
    """One run; whose KV a turn has seen to be sent makes room in front of that micro-batch's next
    turn, since all stages agree on it in between.
    """

    def __init__(self, scheduler: Any, case: Case, copies: Copies | None = None) -> None:
        super().__init__(scheduler, case, copies)
        self._seen: list[list[str] | None] = [None] * self._stages
        self._makes_room = False
        """Some have made room in this round of turns."""

    def _plan_turn(self, turn: int, running: Any, last: Any) -> Any:
        from sglang.srt.disaggregation.base.conn import KVPoll

        scheduler = self._scheduler
        scheduler.process_bootstrapped_queue()
        self._idle = not self._flights
        self._seen[turn] = scheduler.get_rids(
            scheduler.disagg_prefill_inflight_queue, True, [KVPoll.Success, KVPoll.Failed]
        )
        scheduler.process_prefill_chunk(last_batch=last, running_batch=running)
        scheduler._process_hicache_events()
        return scheduler.get_new_batch_prefill(running)

    def _release(self) -> None:
        """Not before `_end_turn`."""

    def _end_turn(self, after: int) -> None:
        if self._seen[after] is not None:
            self._idle = True  # they have been seen
            done = self._scheduler.process_disagg_prefill_inflight_queue(self._seen[after])
            self._makes_room |= bool(done)
        self._scheduler.running_batch.batch_is_full = False

    def _rest(self) -> None:
        if not self._scheduler.disagg_prefill_inflight_queue:
            self._scheduler.on_idle()
        if not self._makes_room:
            self._pass_time()
        self._makes_room = False

    def _drained(self, batches: Sequence[Any]) -> bool:
        scheduler = self._scheduler
        queues = scheduler.disagg_prefill_bootstrap_queue.queue
        return (
            super()._drained(batches) and not queues and not scheduler.disagg_prefill_inflight_queue
        )
