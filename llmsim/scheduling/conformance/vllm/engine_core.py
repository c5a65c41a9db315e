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

**What is not vLLM's.** The simulator lock-steps data-parallel ranks that share experts: its model
of vLLM's `DPEngineCoreProc` says who runs dummies and when a wave ends, since the rounds are the
collectives that it times. Whether prompts wait for a later round (`prefill_schedule_interval`) is
vLLM's own rule, with the simulator's count of rounds. KV that has been moved reaches vLLM's
scheduler in the form of a worker's answer, between two steps.
"""

import gc
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.core import DPEngineCoreProc, EngineCore
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

from llmsim.scheduling.conformance.engine_failure import EngineFailureError, words_of
from llmsim.scheduling.conformance.vllm.known_model import Call, KnownModel
from llmsim.scheduling.conformance.vllm.no_workers import NoWorkers, done
from llmsim.scheduling.conformance.vllm.turns import Turns


class Answer(Future):  # type: ignore[type-arg]
    """What a batch gives, which nobody has before its simulated end."""

    def __init__(self, value: Any, pause: Callable[["Answer"], None]) -> None:
        super().__init__()
        self.value, self._pause = value, pause
        self.taken = False

    def end(self) -> None:
        """The batch has ended."""
        self.set_result(self.value)

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the end."""
        while not self.done():
            self._pause(self)
        self.taken = True
        return self.value


class SteppedExecutor(NoWorkers):
    """Answers batches with the tokens of a model that is known, when they have ended."""

    model: KnownModel
    held: Any
    """Requests that vLLM's scheduler holds, by name."""
    pause: Callable[[], None]
    """Called when the core waits for a batch that has not ended."""

    def _init_executor(self) -> None:
        self.in_flight: deque[Answer] = deque()
        self.awaited: Answer | None = None
        """The batch for which the core waits."""
        self.launched: Call | None = None
        """The last call of the scheduler, until it is taken."""
        self._names: list[str] = []
        """Requests of the batch that has ended last."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Launches a batch; its tokens come from `sample_tokens`."""
        call = self.launched = self.model.launch(scheduler_output, self.held)
        places = {name: place for place, name in enumerate(call.names)}
        answer = ModelRunnerOutput(
            req_ids=call.names, req_id_to_index=places, sampled_token_ids=call.tokens
        )
        if call.names:
            self.in_flight.append(Answer(answer, self._await))
            return done(None) if non_block else None
        return done(answer) if non_block else answer

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The tokens of the batch that was launched last, when it has ended."""
        newest = self.in_flight[-1]
        return newest if non_block else newest.result()

    def _await(self, answer: Answer) -> None:
        self.awaited = answer
        self.pause()
        self.awaited = None

    def oldest_ends(self) -> Answer:
        """The oldest batch in flight has ended."""
        oldest = self.in_flight.popleft()
        oldest.end()
        self._names = oldest.value.req_ids
        return oldest

    def take_draft_token_ids(self) -> Any:
        """Drafts that follow the batch that has ended last."""
        return DraftTokenIds(list(self._names), self.model.drafts_after(self._names))


class SimulatedCore(EngineCore):  # type: ignore[misc]
    """vLLM's engine core with so many blocks of KV in such tables (a `KVCacheConfig` of vLLM)."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        self._kv_cache_config = kv_cache_config
        super().__init__(vllm_config, SteppedExecutor, log_stats=False)
        self._interval = vllm_config.scheduler_config.prefill_schedule_interval
        # From 0.33 on the scheduler of an engine that is alone counts by itself.
        counts_itself = getattr(self.scheduler, "local_prefill_interval", 1) > 1
        self.prefill_schedule_interval = 1 if counts_itself else self._interval
        self.step_counter = 0
        """Steps of a busy time, or rounds of a lock-step."""

    def be_rank(self) -> None:
        """It is one of several data-parallel ranks in lock-step, as whose scheduler vLLM makes it
        where `data_parallel_size` says so.
        """
        self.prefill_schedule_interval = self._interval
        self.scheduler.local_prefill_interval = 1

    def _initialize_kv_caches(self, vllm_config: Any) -> Any:
        """The simulator's memory model has said how many blocks there are."""
        vllm_config.cache_config.num_gpu_blocks = self._kv_cache_config.num_blocks
        return self._kv_cache_config

    _should_throttle_prefills = DPEngineCoreProc._should_throttle_prefills


class EngineLoop:
    """Calls the steps of an engine core, on a thread of its own, while the simulator waits for it.

    Holds the core alone; who holds this has it `end`.
    """

    def __init__(self, core: SimulatedCore, model: KnownModel) -> None:
        self._core, self._turns = core, Turns(self._run)
        self._executor: SteppedExecutor = core.model_executor
        self._executor.model, self._executor.held = model, core.scheduler.requests
        self._executor.pause = self._turns.pause
        self._outputs: list[Any] = []
        self._hides_requests = self._is_rank = False
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

    def _resume(self) -> None:
        try:
            self._turns.resume()
        except Exception as error:
            raise EngineFailureError(f"vLLM's scheduler ends with {words_of(error)}") from error

    def _shows_requests(self) -> bool:
        return not self._hides_requests and self._has_requests()

    @property
    def in_flight(self) -> int:
        """Batches that have not ended."""
        return len(self._executor.in_flight)

    @property
    def waits(self) -> bool:
        """Whether the core waits for its oldest batch."""
        return self._executor.awaited is not None

    def next_call(self) -> Call | None:
        """The next call of vLLM's scheduler; None: the core waits, or has no requests."""
        if self.waits:
            return None
        self._executor.launched = None
        self._resume()
        call = self._executor.launched
        if call is not None and not self._is_rank:
            self._core.step_counter = self._core.step_counter + 1 if call.items else 0
        return call

    def next_outputs(self) -> list[Any]:
        """What the oldest batch gave, which has ended: vLLM's `EngineCoreOutput` of requests."""
        self._hides_requests = not self.waits
        oldest = self._executor.oldest_ends()
        while not oldest.taken:
            self._resume()
        self._hides_requests = False
        outputs, self._outputs = self._outputs, []
        return outputs

    def set_round(self, rounds: int) -> None:
        """The core is a data-parallel rank, whose lock-step has run so many rounds."""
        if not self._is_rank:
            self._is_rank = True
            self._core.be_rank()
        self._core.step_counter = rounds

    def abort(self, name: str) -> None:
        """The client of a request has gone; a core that waits acts on it behind the batch."""
        if self.waits:
            self._core.aborts_queue.put_nowait([name])
        else:
            self._core.abort_requests([name])

    def hear_of_moved(self, told: dict[str, Any]) -> list[Any]:
        """Workers have found that KV has been moved; what that gave requests."""
        moved = KVConnectorOutput(**told)
        answer = ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=moved)
        outputs = self._core.scheduler.update_from_output(SchedulerOutput.make_empty(), answer)
        return [one for client in outputs.values() for one in client.outputs]

    def end(self) -> None:
        """The core runs no further step, and what it has frozen is collected as before."""
        self._turns.end()
        gc.unfreeze()
