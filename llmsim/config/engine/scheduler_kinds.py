"""The schedulers by name, as each declares itself in the core beside its class."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from llmsim import _native

VLLM = "vllm_v1"
INSTALLED = "vllm"
SGLANG = "sglang"
TENSORRT_LLM = "tensorrt_llm"

FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "pp_size": "pipeline stages (`pp_size`)",
        "pd_type": "prefill and decode apart (`pd_type`)",
        "enable_chunked_prefill": "prompts that spread over steps (`enable_chunked_prefill`)",
        "no_enable_chunked_prefill": "whole prompts (`enable_chunked_prefill` false)",
        "enable_prefix_caching": "prefix cache (`enable_prefix_caching`)",
        "hybrid_kv_cache": "one pool of layers that see windows or keep states, and others",
        "kv_tiers": "KV tiers (`--prefix-storage`)",
        "kv_tier_recall": "recalls beside the batch (`--kv-tier-recall async`)",
        "kv_tier_write_back": "KV tiers that are written late (`--kv-tier-write write-back`)",
        "skip_prefill": "decodes alone (`skip_prefill`)",
        "async_scheduling": "a step ahead of the outputs (`async_scheduling`)",
        "speculative_config": "drafts (`speculative_config`)",
        "watermark": "spare blocks (`watermark`)",
        "queue_order": "orders of the waiting queue (`scheduling_policy`, `--queue-order`)",
        "ranked_running": "rankings of running requests and victims (`--preemption-victim`)",
    }
)
"""What a scheduler may go with, and what asks for it."""


class Parameter(Struct, frozen=True):
    """An integer parameter of one scheduler: its default, and its least and its greatest value."""

    default: int
    low: int
    high: int


class SchedulerKind(Struct, frozen=True):
    """What a scheduler declares of itself."""

    name: str
    parameters: Mapping[str, Parameter]
    defaults: Mapping[str, Any]
    """Engine options whose default is another one than the engine profile's."""
    lacks: Mapping[str, str]
    """Features that the scheduler does not go with, each with the reason."""


def _known() -> dict[str, SchedulerKind]:
    kinds = {}
    for one in _native.schedulers():
        parameters = {name: Parameter(*rest) for name, *rest in one["parameters"]}
        kinds[one["name"]] = SchedulerKind(one["name"], parameters, one["defaults"], one["lacks"])
    installed = {
        "kv_tier_write_back": "the installed vLLM does not say which blocks lose their content",
        "ranked_running": "the installed vLLM orders requests itself",
    }
    kinds[INSTALLED] = SchedulerKind(INSTALLED, {}, {}, installed)
    return kinds


KINDS: Mapping[str, SchedulerKind] = MappingProxyType(_known())
"""Every scheduler by name; the installed vLLM's own is one of them."""
SCHEDULERS = (VLLM, INSTALLED, *sorted(KINDS.keys() - {VLLM, INSTALLED}))


def parameter(scheduler: str, name: str) -> Parameter:
    """A scheduler's parameter; raises KeyError where its class does not declare it."""
    return KINDS[scheduler].parameters[name]
