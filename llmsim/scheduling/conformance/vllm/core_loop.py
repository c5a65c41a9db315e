"""An engine core on a thread of its own, which the simulator lets go on until it waits.

The core is an engine's; nothing here is. What is known of it: `scheduler` with its `requests`,
`model_executor` with its `batches` (`InFlight`) and its `model` and `held`, and `hear_of_moved`.
"""

import gc
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from llmsim.scheduling.conformance.engine_failure import EngineFailureError, words_of
from llmsim.scheduling.conformance.vllm.known_model import Call, KnownModel
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


class InFlight:
    """The batches of an executor that have not ended in simulated time."""

    pause: Callable[[], None]
    """Called when the core waits for a batch that has not ended."""

    def __init__(self) -> None:
        self._answers: deque[Answer] = deque()
        self.awaited: Answer | None = None
        """The batch for which the core waits."""
        self.launched: Call | None = None
        """The last call of the scheduler, until it is taken."""
        self.ended: Any = None
        """What the batch gave that has ended last."""

    def __len__(self) -> int:
        return len(self._answers)

    def launch(self, value: Any) -> None:
        """A batch has been launched, which will give `value`."""
        self._answers.append(Answer(value, self._await))

    @property
    def newest(self) -> Answer:
        """Of the batch that was launched last."""
        return self._answers[-1]

    def oldest_ends(self) -> Answer:
        """The oldest batch has ended."""
        oldest = self._answers.popleft()
        oldest.end()
        self.ended = oldest.value
        return oldest

    def _await(self, answer: Answer) -> None:
        self.awaited = answer
        self.pause()
        self.awaited = None


class CoreLoop:
    """Runs the program of an engine core while the simulator waits for it.

    Holds the core alone; who holds this has it `end`.
    """

    def __init__(self, core: Any, model: KnownModel, program: Callable[[], None]) -> None:
        self._core, self._turns = core, Turns(program)
        executor = core.model_executor
        executor.model, executor.held = model, core.scheduler.requests
        self._batches: InFlight = executor.batches
        self._outputs: list[Any] = []
        """What requests got since the last `_take_outputs`: vLLM's `EngineCoreOutput` of each."""

    def _resume(self) -> None:
        try:
            self._turns.resume()
        except Exception as error:
            raise EngineFailureError(f"vLLM's scheduler ends with {words_of(error)}") from error

    def _next_launched(self) -> Call | None:
        """What the program launches until it pauses."""
        self._batches.launched = None
        self._resume()
        return self._batches.launched

    def _take_outputs(self) -> list[Any]:
        outputs, self._outputs = self._outputs, []
        return outputs

    @property
    def in_flight(self) -> int:
        """Batches that have not ended."""
        return len(self._batches)

    def hear_of_moved(self, told: dict[str, Any]) -> list[Any]:
        """Workers have found that KV has been moved; what that gave requests."""
        found: list[Any] = self._core.hear_of_moved(told)
        return found

    def end(self) -> None:
        """The core runs no further step, and what it has frozen is collected as before."""
        self._turns.end()
        gc.unfreeze()
