"""Prefill and decode servers of SGLang's under the clock."""

from collections.abc import Callable
from typing import Any

from llmsim.emulation.in_engine.sglang.transfers import use_backend
from llmsim.scheduling.conformance.sglang import retractions

FirstTokens = Callable[[list[tuple[str, int]]], None]
"""Called with requests, and their prompts' tokens."""


def hook_role(first_tokens: FirstTokens) -> None:
    """KV moves over our links. `first_tokens` hears of those that come along with it."""
    use_backend()
    retractions.use_stand_in()
    _hook_first_tokens(first_tokens)


def _hook_first_tokens(first_tokens: FirstTokens) -> None:
    from sglang.srt.managers.scheduler_components import batch_result_processor

    processor = batch_result_processor.SchedulerBatchResultProcessor
    process = processor.process_batch_result_prebuilt

    def process_batch_result_prebuilt(self: Any, batch: Any) -> Any:
        new = [one for one in batch.reqs if not one.retracted_stain]  # the others have theirs
        if new:
            first_tokens([(one.rid, len(one.origin_input_ids)) for one in new])
        return process(self, batch)

    processor.process_batch_result_prebuilt = process_batch_result_prebuilt
