"""Pipeline stages of SGLang in one scheduler's process: its loop is that of the first stage, and
the other stages are in the simulated times of its steps.
"""

from collections import deque
from typing import Any


class _Staged:
    """What SGLang knows of its layout, with so many stages."""

    def __init__(self, layout: Any, stages: int) -> None:
        self._layout, self.pp_size = layout, stages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layout, name)


def hook_stages(stages: int) -> None:
    """From now on the scheduler runs micro-batches in turn, and hears of each one's result from
    nobody but its own process.
    """
    from sglang.srt.disaggregation import decode
    from sglang.srt.managers import scheduler, scheduler_pp_mixin

    layout = scheduler.get_parallel
    for module in (scheduler, scheduler_pp_mixin, decode):
        module.get_parallel = lambda: _Staged(layout(), stages)
    _hook_results(scheduler_pp_mixin.SchedulerPPMixin)
    _hook_agreements(scheduler_pp_mixin.SchedulerPPMixin)


def _hook_results(loop: Any) -> None:
    """A result goes from the launch of a micro-batch to its next turn."""

    def launch(self: Any, number: int, batch: Any, *_: Any) -> Any:
        if not hasattr(self, "_llmsim_results"):
            self._llmsim_results = {}
        result = self._llmsim_results[number] = self.run_batch(batch)
        return result, None

    def results_of(self: Any, _: int, number: int) -> Any:
        has_batch = self.mbs[number] is not None
        result = self._llmsim_results.pop(number) if has_batch else None
        return None, result, _Ended()

    loop._pp_launch_batch = launch
    loop._pp_commit_send_output_work_and_preprocess_output_tensors = results_of


def _hook_agreements(loop: Any) -> None:
    """What stages agree on of KV goes from the last one, which is this one, to the first one."""
    sent: deque[Any] = deque()

    def send(self: Any, data: Any, async_send: bool = False) -> list[Any]:
        sent.append(data)
        return []

    loop._pp_send_pyobj_to_next_stage = send
    loop._pp_recv_pyobj_from_prev_stage = lambda _: sent.popleft()


class _Ended:
    """The copy of a result to the host: who processes the result waits for the step."""

    def synchronize(self) -> None:
        """As of SGLang's events."""
