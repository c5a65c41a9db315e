"""A model executor for vLLM that computes nothing: each step takes a fixed time; every complete
prompt gets a token.

It stands where vLLM's workers on the GPU would, in the process of the engine core; all else is
vLLM's.
"""

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

STEP_S = 0.004
KV_BYTES = 64 << 20
TOKEN = 7


class IdleExecutor(Executor):  # type: ignore[misc]
    """One device, one step at a time."""

    def _init_executor(self) -> None:
        self._device = ThreadPoolExecutor(1)
        self._results: deque[Future[ModelRunnerOutput]] = deque()
        self._prompts: dict[str, tuple[int, int]] = {}

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        model, cache = self.vllm_config.model_config, self.vllm_config.cache_config
        heads, size = model.get_total_num_kv_heads(), model.get_head_size()
        spec = FullAttentionSpec(
            block_size=cache.block_size, num_kv_heads=heads, head_size=size, dtype=torch.float32
        )
        return [{f"layers.{index}": spec for index in range(model.hf_config.num_hidden_layers)}]

    def determine_available_memory(self) -> list[int]:
        return [KV_BYTES]

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        pass

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [("generate",)] if method == "get_supported_tasks" else [None]

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        self._results.append(self._device.submit(_step, self._tokens(scheduler_output)))
        nothing: Future[None] = Future()
        nothing.set_result(None)
        return nothing if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        result = self._results.popleft()
        return result if non_block else result.result()

    def _tokens(self, scheduled: Any) -> ModelRunnerOutput:
        for new in scheduled.scheduled_new_reqs:
            self._prompts[new.req_id] = (len(new.prompt_token_ids), new.num_computed_tokens)
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        names, tokens = list(scheduled.num_scheduled_tokens), []
        for name in names:
            prompt, first = self._prompts[name]
            reached = computed.get(name, first) + scheduled.num_scheduled_tokens[name]
            tokens.append([TOKEN] if reached >= prompt else [])
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, tokens)

    def check_health(self) -> None:
        pass


def _step(made: ModelRunnerOutput) -> ModelRunnerOutput:
    time.sleep(STEP_S)
    return made
