"""A data-parallel rank of vLLM in this process, of a lock-step group.

`SimulatedRank` is vLLM's `DPEngineCoreProc` without its sockets. Its `run_busy_loop` runs as it is:
when the rank takes requests in, runs a dummy batch, asks the other ranks whether work is left, and
when a wave begins and ends is vLLM's decision. The loop runs on a thread of its own (`turns`) and
pauses where it looks for messages, waits for a batch, runs a dummy batch, and would all-reduce
(`loop`). What lies between the ranks is `exchange.RankGroup`.
"""

import contextlib
import threading
import time as real
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from vllm.config import ParallelConfig
from vllm.v1.engine import EngineCoreRequestType, core
from vllm.v1.engine.utils import EngineZmqAddresses

from llmsim._native import EngineTurn
from llmsim.scheduling.conformance.vllm.engine_core import SteppedExecutor, moved_outputs
from llmsim.scheduling.conformance.vllm.ranks.loop import RankLoop


class WakefulTime(types.ModuleType):
    """Stands for the module `time` in vLLM's engine, whose ranks would rest while KV moves."""

    def __init__(self) -> None:
        super().__init__("time")

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def sleep(self, seconds: float) -> None:
        """Takes no time: no thread beside the engine's moves anything."""


core.time = WakefulTime()
_by_processes = ParallelConfig.__dict__["sync_dp_state"]


def _sync_dp_state(*given: Any, has_unfinished: bool, pending_pause: bool) -> tuple[bool, bool]:
    """`ParallelConfig.sync_dp_state`, whose last positional argument is the process group."""
    group: RankLoop = given[-1]
    return group.agree(has_unfinished=has_unfinished, pending_pause=pending_pause)


ParallelConfig.sync_dp_state = (
    staticmethod(_sync_dp_state) if isinstance(_by_processes, staticmethod) else _sync_dp_state
)


class EmptyAnswer(Future):  # type: ignore[type-arg]
    """What a call without a batch gives: a worker's answer, which says what had moved then."""

    def __init__(self, value: Any, taken: Callable[[], None]) -> None:
        """`taken` is called when the rank takes it."""
        super().__init__()
        self.set_result(value)
        self._taken = taken

    def result(self, timeout: float | None = None) -> Any:
        """The simulator tells the rank's scheduler first of what had moved."""
        self._taken()
        return super().result(timeout)


class RankExecutor(SteppedExecutor):
    """Answers a rank, whose dummy batches run in rounds of the simulator."""

    rank: "SimulatedRank"

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Launches a batch; with a KV connector, one without requests looks for what has moved."""
        answer = super().execute_model(scheduler_output, non_block)
        if self.rank.scheduler.connector is None or scheduler_output.num_scheduled_tokens:
            return answer
        loop = self.rank.dp_group
        return EmptyAnswer(answer.result(), partial(loop.take, loop.now_ps))

    def execute_dummy_batch(self) -> None:
        """Waits until the devices are no further behind than they may be."""
        self.rank.dp_group.pause(EngineTurn.DUMMY)


class Outbox:
    """Takes what a rank puts into its output queue."""

    def __init__(self, rank: "SimulatedRank") -> None:
        self._rank = rank

    def put_nowait(self, item: tuple[int, Any]) -> None:
        """(client, outputs)."""
        self._rank.dp_group.tell(*item)


class SimulatedRank(core.DPEngineCoreProc):  # type: ignore[misc]
    """vLLM's data-parallel engine core with so many blocks of KV in such tables (a `KVCacheConfig`
    of vLLM).
    """

    dp_group: Any
    """The `RankLoop`, from its beginning on."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        self._kv_cache_config = kv_cache_config
        super().__init__(vllm_config, True, "", RankExecutor, log_stats=False)
        self.model_executor.rank = self
        self.output_queue = Outbox(self)
        self.publish_dp_lb_stats = False  # the router reads the simulator's counts
        self._looks = False

    @contextlib.contextmanager
    def _perform_handshakes(self, *_: Any, **__: Any) -> Iterator[EngineZmqAddresses]:
        """There is a coordinator, and nobody is reached by sockets."""
        yield EngineZmqAddresses(inputs=[], outputs=[], coordinator_output="")

    def process_input_sockets(self, *given: Any) -> None:
        """Nobody writes into a socket; vLLM waits for the event."""
        ready: threading.Event = given[-1]
        ready.set()

    def process_output_sockets(self, *_: Any) -> None:
        """Nobody reads from a socket."""

    def _init_data_parallel(self, vllm_config: Any) -> None:
        """There is no process group."""
        parallel = vllm_config.parallel_config
        self.dp_rank, self.dp_size = parallel.data_parallel_rank, parallel.data_parallel_size
        self.dp_group = None

    def _initialize_kv_caches(self, vllm_config: Any) -> Any:
        """The simulator's memory model has said how many blocks there are."""
        vllm_config.cache_config.num_gpu_blocks = self._kv_cache_config.num_blocks
        return self._kv_cache_config

    def _process_input_queue(self) -> None:
        """Looks for messages; goes on with all that came until then, when there is work."""
        self._looks = True
        self.dp_group.pause(EngineTurn.LOOKS)
        while not self.has_work():
            self.dp_group.pause(EngineTurn.LOOKS)
        self._looks = False
        super()._process_input_queue()

    def _hear(self, kind: EngineCoreRequestType, message: Any) -> None:
        """A message, which waits in the queue while the loop does not look."""
        if self._looks:
            self._handle_client_request(kind, message)
        else:
            self.input_queue.put_nowait((kind, message))

    def hear_request(self, request: Any, wave: int) -> None:
        """A request has arrived, sent in this wave."""
        self._hear(EngineCoreRequestType.ADD, (request, wave))

    def hear_abort(self, name: str) -> None:
        """The client of a request has gone, which vLLM hears by two queues."""
        if not self._looks:
            self.aborts_queue.put_nowait([name])
        self._hear(EngineCoreRequestType.ABORT, [name])

    def hear_wave(self, wave: int, begun_by: int) -> None:
        """The coordinator says that a wave begins."""
        self._hear(EngineCoreRequestType.START_DP_WAVE, (wave, begun_by))

    def hear_of_moved(self, told: dict[str, Any]) -> list[Any]:
        """Workers have found that KV has been moved; what that gave requests."""
        return moved_outputs(self.scheduler, told)
