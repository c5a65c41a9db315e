"""Lets a whole scheduler written in Python run behind the loop, and holds it to what an engine can
do.
"""

from collections.abc import Sequence
from typing import Any

from llmsim.config.errors import InputError, LlmsimError
from llmsim.config.plugin_calls import defined_at, said
from llmsim.core import Workload
from llmsim.scheduling.base import Emitted, EngineLimits, ScheduledItem, StepPolicy


class StepScheduler:
    """A `StepPolicy` as `Scheduler`: counts tokens and blocks, knows when answers end, and names
    what it refuses.
    """

    def __init__(
        self, policy: StepPolicy, name: str, limits: EngineLimits, workload: Workload
    ) -> None:
        self._policy, self._name, self._limits = policy, name, limits
        self._prompt, self._answer = workload.input_tokens, workload.output_tokens
        self._known: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self._batch: list[tuple[int, bool]] = []
        self._held = 0

    def add(self, request: int) -> None:
        self._known[request], self._computed[request] = int(self._prompt[request]), 0
        self._call("add", request, self._known[request])

    def build(self, now_ps: int) -> tuple[list[ScheduledItem], list[int]]:
        answer = self._call("build", now_ps)
        try:
            wanted, preempted = answer
            items = [(int(request), int(tokens)) for request, tokens in wanted]
            preempted = [int(request) for request in preempted]
        except (TypeError, ValueError) as error:
            raise self._refused(f"build() answered {answer!r:.80} ({said(error)})") from None
        for request in preempted:
            if not self._computed.get(request):
                raise self._refused(f"it preempted request {request}, which does not run")
            self._release(request)
        return self._batched(items), preempted

    def _batched(self, items: Sequence[tuple[int, int]]) -> list[ScheduledItem]:
        limits, batch = self._limits, []
        self._batch = []
        if len({request for request, _ in items}) != len(items):
            raise self._refused(f"it scheduled a request twice in one step: {items!r:.80}")
        if (
            sum(tokens for _, tokens in items) > limits.max_num_batched_tokens
            or len(items) > limits.max_num_seqs
        ):
            raise self._refused(
                f"it scheduled {sum(tokens for _, tokens in items)} tokens of {len(items)} "
                "requests, but a step holds "
                f"{limits.max_num_batched_tokens} and {limits.max_num_seqs}"
            )
        for request, tokens in items:
            if request not in self._known:
                raise self._refused(f"it scheduled request {request}, which is not there")
            before, known = self._computed[request], self._known[request]
            if not 1 <= tokens <= known - before:
                raise self._refused(
                    f"it scheduled {tokens} tokens of request {request}, which has "
                    f"{known - before} to go"
                )
            self._held += self._blocks(before + tokens) - self._blocks(before)
            if self._held > limits.num_blocks:
                raise self._refused(
                    f"it scheduled {self._held} blocks of KV, but there are {limits.num_blocks}"
                )
            self._computed[request] = before + tokens
            emits = before + tokens == known
            self._batch.append((request, emits))
            batch.append((request, tokens, before, 0, emits))
        return batch

    def complete(self) -> list[Emitted]:
        emitted = []
        for request, emits in self._batch:
            if request not in self._known:
                continue
            self._known[request] += emits
            received = self._known[request] - int(self._prompt[request])
            done = (
                received >= int(self._answer[request])
                or self._known[request] >= self._limits.max_model_len
            )
            emitted.append((request, int(emits), bool(emits and done)))
        for request, _, done in emitted:
            if done:
                self._forget(request)
        self._batch = []
        self._call("complete", emitted)
        return emitted

    def abort(self, request: int) -> None:
        self._forget(request)
        self._call("abort", request)

    def gauges(self) -> tuple[int, int, int]:
        running = sum(1 for computed in self._computed.values() if computed)
        return running, len(self._computed) - running, self._limits.num_blocks - self._held

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)

    def _release(self, request: int) -> None:
        self._held -= self._blocks(self._computed[request])
        self._computed[request] = 0

    def _forget(self, request: int) -> None:
        self._release(request)
        del self._known[request], self._computed[request]

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            return getattr(self._policy, method)(*arguments)
        except LlmsimError:
            raise
        except Exception as error:
            raise InputError(
                f"scheduler {self._name} failed in {method}(): {said(error)}"
            ) from error

    def _refused(self, reason: str) -> InputError:
        return InputError(f"scheduler {self._name}: {reason} ({defined_at(self._policy.build)})")
