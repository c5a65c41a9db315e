"""SGLang's loop of a decode server with pipeline stages (`event_loop_pp_disagg_decode`), on its
first stage.

Needs SGLang's Python packages. The other stages see at once what this one has seen.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.live import PipelineLoop
from llmsim.scheduling.conformance.sglang.loops.decode_loop import TURNS, DecodeLoop


class StagedDecodeLoop(DecodeLoop, PipelineLoop):
    """One run; what a turn has seen of the queues happens in the turn before that micro-batch's
    next one, since all stages agree on it in between.
    """

    def __init__(self, scheduler: Any, case: Case, *_: Any) -> None:
        super().__init__(scheduler, case)
        scheduler.disagg_decode_prealloc_queue.pp_size = self._stages
        self._seen: list[tuple[Any, Any, Any] | None] = [None] * self._stages
        self._launched: Case | None = None
        """The step of this turn, whose figures are those of the turn's end."""

    def _plan_turn(self, turn: int, running: Any, last: Any) -> Any:
        scheduler = self._scheduler
        self._seen[turn] = (
            scheduler._pp_pd_get_retract_ids(turn),
            scheduler._pp_pd_get_prealloc_ids(),
            scheduler._pp_pd_get_decode_transferred_ids(),
        )
        return scheduler.get_next_disagg_decode_batch_to_run(running_batch=running)

    def _agree(self, after: int) -> None:
        seen, scheduler = self._seen[after], self._scheduler
        if seen is not None:
            scheduler.process_retract_queue(seen[0])
            scheduler.process_prealloc_queue(seen[1])
            scheduler.process_decode_transfer_queue(seen[2])
        if self._launched is not None:
            self._launched |= self._figures()
        self._launched = None

    def _launch(self, batch: Any) -> Iterator[Case]:
        for step in super()._launch(batch):
            self._launched = step
            yield step

    def _end_turn(self, after: int) -> None:
        self._scheduler.running_batch.batch_is_full = False

    def _rest(self) -> None:
        self._without_change += 1
        if not self._waiting():
            self._scheduler.on_idle()
        if self._without_change < TURNS:
            return
        before_ps = self.now_ps
        self._pass_time()
        if self.now_ps > before_ps:
            self._without_change = 1

    def _drained(self, batches: Sequence[Any]) -> bool:
        return super()._drained(batches) and not self._waiting()
