"""vLLM's engine core in this process, with an executor whose steps take simulated times.

`SimulatedCore` is vLLM's `EngineCore`. Its scheduler, its queue of batches in flight, its aborts
and its connectors are vLLM's, and its `step` or `step_with_batch_queue` runs as it is. Two parts of
a server are ours. `SteppedExecutor` answers a batch with tokens that are known. The simulator's
memory model says how many blocks of KV there are, so that vLLM profiles no memory.

**Who waits for what.** `EngineCore.step` blocks until the workers have answered its oldest batch,
while the simulator is a loop of events: both want to be the caller. So the core runs on a thread of
its own (`turns`), as it has a process of its own in vLLM's server. Of the two threads one runs at a
time: the core's pauses behind each step, and where it asks for the answer of a batch that has not
ended in simulated time. No result depends on how threads are scheduled.

- `EngineLoop.next_call` lets the core go on until it pauses, and returns what it has launched. A
  core that waits for its oldest batch launches nothing, however often it is asked. So vLLM decides
  how many batches are in flight, and calls without a batch take places as they do there.
- `EngineLoop.next_outputs` says that the oldest batch has ended in simulated time, and lets the
  core take its answer: vLLM handles aborts that came meanwhile, then the tokens.

A group may want no further batch although vLLM has a free place, such as one whose batch waits for
KV from a tier. Then `next_outputs` hides vLLM's requests from the core, which waits for the oldest
batch without scheduling another one.

Data-parallel ranks that share experts are `ranks.core.SimulatedRank`. KV that has been moved
reaches vLLM's scheduler in the form of a worker's answer, between two steps.
"""

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.core import DPEngineCoreProc, EngineCore
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

from llmsim.scheduling.conformance.vllm.core_loop import CoreLoop, InFlight
from llmsim.scheduling.conformance.vllm.known_model import Call, KnownModel
from llmsim.scheduling.conformance.vllm.no_workers import NoWorkers, done


class SteppedExecutor(NoWorkers):
    """Answers batches with the tokens of a model that is known, when they have ended."""

    model: KnownModel
    held: Any
    """Requests that vLLM's scheduler holds, by name."""

    def _init_executor(self) -> None:
        self.batches = InFlight()

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Launches a batch; its tokens come from `sample_tokens`."""
        call = self.batches.launched = self.model.launch(scheduler_output, self.held)
        places = {name: place for place, name in enumerate(call.names)}
        answer = ModelRunnerOutput(
            req_ids=call.names, req_id_to_index=places, sampled_token_ids=call.tokens
        )
        if call.names:
            self.batches.launch(answer)
            return done(None) if non_block else None
        return done(answer) if non_block else answer

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The tokens of the batch that was launched last, when it has ended."""
        newest = self.batches.newest
        return newest if non_block else newest.result()

    def take_draft_token_ids(self) -> Any:
        """Drafts that follow the batch that has ended last."""
        names = self.batches.ended.req_ids
        return DraftTokenIds(list(names), self.model.drafts_after(names))


class SimulatedCore(EngineCore):  # type: ignore[misc]
    """vLLM's engine core with so many blocks of KV in such tables (a `KVCacheConfig` of vLLM)."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        self._kv_cache_config = kv_cache_config
        super().__init__(vllm_config, SteppedExecutor, log_stats=False)
        interval = vllm_config.scheduler_config.prefill_schedule_interval
        # From 0.33 on the scheduler of an engine that is alone counts by itself.
        counts_itself = getattr(self.scheduler, "local_prefill_interval", 1) > 1
        self.prefill_schedule_interval = 1 if counts_itself else interval
        self.step_counter = 0
        """Steps of a busy time."""

    def _initialize_kv_caches(self, vllm_config: Any) -> Any:
        """The simulator's memory model has said how many blocks there are."""
        vllm_config.cache_config.num_gpu_blocks = self._kv_cache_config.num_blocks
        return self._kv_cache_config

    _should_throttle_prefills = DPEngineCoreProc._should_throttle_prefills

    def hear_of_moved(self, told: dict[str, Any]) -> list[Any]:
        """Workers have found that KV has been moved; what that gave requests."""
        return moved_outputs(self.scheduler, told)


def moved_outputs(scheduler: Any, told: dict[str, Any]) -> list[Any]:
    """What requests of vLLM's scheduler get when it hears that KV has been moved."""
    moved = KVConnectorOutput(**told)
    answer = ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=moved)
    outputs = scheduler.update_from_output(SchedulerOutput.make_empty(), answer)
    return [one for client in outputs.values() for one in client.outputs]


class EngineLoop(CoreLoop):
    """Calls the steps of an engine core that is alone."""

    def __init__(self, core: SimulatedCore, model: KnownModel) -> None:
        super().__init__(core, model, self._run)
        self._batches.pause = self._turns.pause
        self._hides_requests = False
        self._has_requests: Callable[[], bool] = core.scheduler.has_requests
        core.scheduler.has_requests = self._shows_requests

    def _run(self) -> None:
        core = self._core
        while True:
            outputs, executed = core.step_fn()
            core.post_step(executed)
            for client in (outputs or {}).values():
                self._outputs += client.outputs
            self._turns.pause()

    def _shows_requests(self) -> bool:
        return not self._hides_requests and self._has_requests()

    @property
    def waits(self) -> bool:
        """Whether the core waits for its oldest batch."""
        return self._batches.awaited is not None

    def next_call(self) -> Call | None:
        """The next call of vLLM's scheduler; None: the core waits, or has no requests."""
        if self.waits:
            return None
        call = self._next_launched()
        if call is not None:
            self._core.step_counter = self._core.step_counter + 1 if call.items else 0
        return call

    def next_outputs(self) -> list[Any]:
        """What the oldest batch gave, which has ended: vLLM's `EngineCoreOutput` of requests."""
        self._hides_requests = not self.waits
        oldest = self._batches.oldest_ends()
        while not oldest.taken:
            self._resume()
        self._hides_requests = False
        return self._take_outputs()

    def add(self, request: Any) -> None:
        """A request has arrived."""
        self._core.add_request(request)

    def abort(self, name: str) -> None:
        """The client of a request has gone; a core that waits acts on it behind the batch."""
        if self.waits:
            self._core.aborts_queue.put_nowait([name])
        else:
            self._core.abort_requests([name])
