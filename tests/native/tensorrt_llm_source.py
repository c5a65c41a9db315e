"""TensorRT-LLM's own scheduler in Python, loaded from a checkout, behind the twin's clock.

Its two stages run as they are (`SimpleUnifiedScheduler` of
tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py). What they import from compiled parts is
replaced: requests, states, a logger, and a KV cache manager that counts blocks as the twin does.

`python tensorrt_llm_source.py CHECKOUT COMMIT FILE` (with `tests` and `tests/native` on the path)
writes what it does in random runs.
"""

import gzip
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, StrEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tensorrt_llm_twin import Sequence, Twin, drawn

SCHEDULER = "tensorrt_llm._torch.pyexecutor.scheduler.scheduler"
FIRST_SEED, RUNS = 10_000, 100
"""Those that are recorded; others than the twin's own tests draw."""
_WINDOW = 1 << 30


class _State(Enum):
    """The states of a request that matter here, in TensorRT-LLM's order."""

    ENCODER_INIT = 1
    CONTEXT_INIT = 10
    GENERATION_IN_PROGRESS = 13
    GENERATION_TO_COMPLETE = 14
    GENERATION_COMPLETE = 20


class _Policy(StrEnum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"


class Request:
    """A sequence of the twin as the scheduler sees it."""

    is_encoder_init_state = is_disagg_generation_init_state = False
    lora_task_id, num_draft_tokens = None, 0

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.request_id = self.py_request_id = sequence.row

    @property
    def is_generation_in_progress_state(self) -> bool:
        return self.sequence.generates

    @property
    def is_context_init_state(self) -> bool:
        return not self.sequence.generates

    @property
    def state_value(self) -> int:
        generates = self.sequence.generates
        return (_State.GENERATION_IN_PROGRESS if generates else _State.CONTEXT_INIT).value

    @property
    def is_first_context_chunk(self) -> bool:
        return not self.sequence.started

    @property
    def context_remaining_length(self) -> int:
        return self.sequence.remaining

    @property
    def estimated_reusable_tokens(self) -> int:
        return self.sequence.reusable

    @property
    def context_chunk_size(self) -> int:
        return self.sequence.chunk

    @context_chunk_size.setter
    def context_chunk_size(self, tokens: int) -> None:
        self.sequence.chunk = tokens

    @property
    def is_last_context_chunk(self) -> bool:
        return self.sequence.chunk == self.sequence.remaining

    def get_num_tokens(self, beam: int) -> int:
        return self.sequence.tokens

    def has_draft_tokens(self) -> bool:
        return False

    def get_beam_width_by_iter(self, for_next_iteration: bool) -> int:
        return 1

    def get_unique_tokens(self, beam: int) -> None:
        """The manager knows the request's blocks."""


class _Manager:
    """Blocks as the twin counts them."""

    is_variable_window, max_attention_window_vec = False, (_WINDOW,)

    def __init__(self, twin: "SourceTwin") -> None:
        self._twin = twin
        self.enable_block_reuse = twin.reuse
        self._given_back = 0

    def get_kv_cache_stats(self) -> Any:
        return SimpleNamespace(
            num_free_blocks_per_window_size={_WINDOW: self._twin.free(self._twin.active)}
        )

    def analyze_prefix_reuse(self, tokens: None, request: Request) -> Any:
        return SimpleNamespace(first_new_block=self._twin.first_new(request.sequence))

    def get_remaining_blocks_to_completion(self, request: Request, window: int) -> int:
        return self._twin.to_come(request.sequence)

    def get_needed_blocks_one_step(self, request: Request, two_steps: bool, window: int) -> int:
        return self._twin.blocks(request.sequence.tokens) - request.sequence.blocks

    def start_scheduling(self) -> None:
        self._given_back = 0

    def scheduling_remove_sequence(self, request: int) -> None:
        [one] = [one for one in self._twin.active if one.row == request]
        self._given_back += one.blocks

    def scheduling_has_free_blocks(self, blocks: int, window: int) -> bool:
        return blocks <= self._twin.free(self._twin.active) + self._given_back


class SourceTwin(Twin):
    """The twin with TensorRT-LLM's scheduler in place of its own."""

    module: ModuleType
    active: list[Sequence]

    def schedule(self, active: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        self.active = active
        scheduler = self.module.SimpleUnifiedScheduler(
            max_batch_size=self.max_seqs,
            max_num_tokens=self.budget,
            kv_cache_manager=_Manager(self),
            peft_cache_manager=None,
            scheduler_policy=(
                _Policy.MAX_UTILIZATION if self.utilization else _Policy.GUARANTEED_NO_EVICT
            ),
            ctx_chunk_config=self._chunks(),
        )
        found = scheduler.schedule_request([Request(one) for one in active], set())
        for one in found.paused_requests:
            self.pause(one.sequence)
        contexts = [one.sequence for one in found.context_requests]
        if not self.chunked:
            for one in contexts:
                one.chunk = one.remaining
        return contexts, [one.sequence for one in found.generation_requests]

    def _chunks(self) -> tuple[str, int] | None:
        if not self.chunked:
            return None
        return "EQUAL_PROGRESS" if self.equal else "FIRST_COME_FIRST_SERVED", self.size


@contextmanager
def source(checkout: Path) -> Iterator[type[SourceTwin]]:
    """Twins with the scheduler of a checkout of TensorRT-LLM."""
    stands_in = _stand_ins()
    before = {name: sys.modules.get(name) for name in [*stands_in, SCHEDULER]}
    sys.modules.update(stands_in)
    try:
        path = checkout / Path(*SCHEDULER.split(".")).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(SCHEDULER, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[SCHEDULER] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield type("FromSource", (SourceTwin,), {"module": module})
    finally:
        for name, one in before.items():
            if one is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = one


def _stand_ins() -> dict[str, ModuleType]:
    """What the file imports that is compiled, or imports what is."""
    made: dict[str, dict[str, Any]] = {
        "tensorrt_llm": {},
        "tensorrt_llm.bindings": {"internal": _compiled()},
        "tensorrt_llm.llmapi": {},
        "tensorrt_llm.llmapi.llm_args": {"CapacitySchedulerPolicy": _Policy},
        "tensorrt_llm.logger": {"logger": SimpleNamespace(debug=lambda *_: None)},
        "tensorrt_llm._torch": {},
        "tensorrt_llm._torch.pyexecutor": {},
        "tensorrt_llm._torch.pyexecutor.llm_request": {
            "LlmRequest": Request,
            "LlmRequestState": _State,
            "get_multimodal_encoder_token_lengths": None,
            "is_multimodal_encoder_ready": None,
        },
        "tensorrt_llm._torch.pyexecutor.scheduler": {},
        "strenum": {"StrEnum": StrEnum},
    }
    found = {}
    for name, members in made.items():
        module = found[name] = ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
    return found


def _compiled() -> Any:
    """Names of types in annotations."""
    parts = SimpleNamespace(PrefixReuseSummary=object, PeftCacheManager=object)
    return SimpleNamespace(batch_manager=parts)


def record(checkout: Path, commit: str, path: Path) -> None:
    """Writes the batches and pauses of random runs; the same bytes every time."""
    runs = []
    with source(checkout) as kind:
        for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
            requests, twin = drawn(seed, kind)
            twin.run(requests)
            runs.append({"seed": seed, "steps": twin.steps, "paused": twin.paused})
    text = json.dumps({"commit": commit, "runs": runs}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
