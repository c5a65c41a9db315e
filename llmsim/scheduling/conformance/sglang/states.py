"""SGLang's pool of states on a CPU, where no kernel writes them.

Needs SGLang's Python packages.
"""

from typing import Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.ours import keeps_states


def arguments(config: Case) -> dict[str, Any]:
    """SGLang's command line for the pool of a configuration, whose size is that of each rank."""
    return {
        "--max-mamba-cache-size": config["max_mamba_cache_size"] * config.get("dp_size", 1),
        "--mamba-radix-cache-strategy": config["mamba_radix_cache_strategy"],
        "--mamba-track-interval": config["mamba_track_interval"],
    }


def use_stand_in() -> None:
    """From now on SGLang's schedulers start without kernels of layers that keep states, and may
    have spare slots for these on a CPU, too.
    """
    import torch
    from sglang.srt.arg_groups import mamba_hook
    from sglang.srt.model_executor.model_runner_components import attention_backend_setup

    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
    attention_backend_setup.attn_backend_wrapper = lambda _, backend: backend


class NoPool:
    """Of a case whose layers keep none."""

    def free(self, _: str) -> dict[str, int]:
        """Nothing to compare."""
        return {}


class Pool(NoPool):
    """The slots of a running scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._allocator = scheduler.req_to_token_pool.mamba_allocator

    def free(self, name: str) -> dict[str, int]:
        """How many nobody holds, the cache neither, by this name."""
        return {name: int(self._allocator.available_size())}


def pool_of(scheduler: Any, config: Case) -> NoPool:
    """What counts a scheduler's free slots."""
    return Pool(scheduler) if keeps_states(config) else NoPool()
