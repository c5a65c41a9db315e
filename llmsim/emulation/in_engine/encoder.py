"""The budgets of an encoder, which the small model of vLLM's processes does not have."""

from collections.abc import Mapping
from typing import Any


def give_budgets(encoder: Mapping[str, int]) -> None:
    """Schedulers, and the checks of requests before them, have these from now on."""
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.input_processor import InputProcessor

    if getattr(Scheduler, "_llmsim", False):
        return
    make_scheduler, make_processor = Scheduler.__init__, InputProcessor.__init__

    def scheduler_init(self: Any, *arguments: Any, **options: Any) -> None:
        make_scheduler(self, *arguments, **options)
        self.max_num_encoder_input_tokens = encoder["step_tokens"]
        self.encoder_cache_manager = EncoderCacheManager(encoder["cache_tokens"])
        self.scheduler_config.disable_chunked_mm_input = bool(encoder["whole_inputs"])

    def processor_init(self: Any, *arguments: Any, **options: Any) -> None:
        make_processor(self, *arguments, **options)
        self.mm_encoder_cache_size = encoder["cache_tokens"]

    Scheduler._llmsim, Scheduler.__init__ = True, scheduler_init
    InputProcessor.__init__ = processor_init
