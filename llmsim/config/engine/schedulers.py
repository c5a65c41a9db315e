"""The schedulers by name: which defaults each brings, and which options mean nothing to it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmsim.config.engine.options import (
    SGLANG_BY_PRIORITY,
    SGLANG_POLICIES,
    scheduler_parameters,
)
from llmsim.config.engine.rankings import check_policy
from llmsim.config.engine.scheduler_kinds import INSTALLED, KINDS, SCHEDULERS, SGLANG, VLLM
from llmsim.config.errors import InputError

if TYPE_CHECKING:
    from llmsim.config.engine.args import EngineArgs
    from llmsim.config.engine.profile import EngineProfile

__all__ = ["INSTALLED", "KINDS", "OWN_DEFAULTS", "SCHEDULERS", "SGLANG", "VERSIONED", "VLLM"]

OWN_DEFAULTS: Mapping[str, Any] = {
    "scheduler": VLLM,
    "prioritize_prefill": False,
    "skip_prefill": False,
    "ttft_target_ns": 1_000_000_000,
    "host_sequence_ns": 0,
    "endpoint": None,
    "api_server_count": None,
    "api_request_ns": None,
    "api_prompt_token_ns": None,
    "api_chunk_ns": None,
    "native_sampler": False,
    "lockstep_dense_dp": False,
    "dp_sync_interval": 32,
    "pipeline_extra_batches": 0,
    "ignore_eos": True,
    "use_v2_model_runner": None,
    "enable_eplb": False,
    "num_redundant_experts": 0,
    "expert_placement_strategy": "linear",
    "speculative_config": None,
    "max_num_scheduled_tokens": None,
    "prefix_cache_retention_interval": -1,
    "prefix_match_unit": None,
    "max_num_active_seqs": None,
    "long_prefill_token_threshold_adaptive": False,
    "prefill_schedule_interval": 1,
    "max_loras": None,
    "max_lora_rank": None,
    "max_cpu_loras": None,
    "fully_sharded_loras": False,
    "kv_load_failure_policy": None,
    "kv_load_failure_rate": 0.0,
    "kv_offloading_size": None,
    "kv_offloading_blocks_per_chunk": None,
    "kv_offloading_eviction_policy": None,
    "kv_offloading_prompt_only": None,
    "kv_offloading_store_threshold": None,
    "kv_offloading_sync_load_budget_bytes": None,
    "max_num_encoder_input_tokens": None,
    "encoder_cache_size": None,
    "disable_chunked_mm_input": False,
    "enable_hierarchical_cache": False,
    "hicache_ratio": None,
    "hicache_size": 0,
    "hicache_write_policy": None,
    "swa_full_tokens_ratio": None,
    "mamba_full_memory_ratio": None,
    "max_mamba_cache_size": None,
    "mamba_radix_cache_strategy": None,
    "mamba_track_interval": None,
    "hicache_storage_backend": None,
    "hicache_storage_prefetch_policy": None,
    "hicache_prefetch_threshold": None,
    "hicache_prefetch_timeout_base": None,
    "hicache_prefetch_timeout_per_ki_token": None,
    "hicache_storage_prefetch_retry_poll_interval": None,
    "hicache_storage_prefetch_retry_max_attempts": None,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
    "cudagraph_mode": None,
    "enforce_eager": False,
    "launch_ns": None,
    "prepare_ns": None,
    "prepare_sequence_ns": None,
    "kv_read_ns": None,
    "kv_descriptor_ns": None,
    "fused_moe_ns": None,
    "enable_sequence_parallelism": False,
    "decode_context_parallel_size": 1,
    "all2all_backend": "allgather_reducescatter",
    "all_reduce_implementation": None,
    "all_gather_implementation": None,
    "reduce_scatter_implementation": None,
    "all_to_all_implementation": None,
    "quick_reduce_quantization": None,
    "quick_reduce_cast_bf16_to_fp16": None,
    "quick_reduce_min_size_bytes_mb": None,
    "quick_reduce_max_size_bytes_mb": None,
    "quick_reduce_quantization_min_size_kb": None,
}
"""Options that no engine has, and what a profile need not say; the default of each does what the
engine does.

dp_sync_interval: 32 in vLLM 0.19 to 0.29 (v1/engine/core.py, DPEngineCoreProc).
"""

KV_OFFLOADING = (
    "kv_offloading_size",
    "kv_offloading_blocks_per_chunk",
    "kv_offloading_eviction_policy",
    "kv_offloading_prompt_only",
    "kv_offloading_store_threshold",
    "kv_offloading_sync_load_budget_bytes",
)

VERSIONED = (
    "prefix_cache_retention_interval",
    "prefix_match_unit",
    "max_num_active_seqs",
    "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "fully_sharded_loras",
    *KV_OFFLOADING,
    "max_num_encoder_input_tokens",
    "encoder_cache_size",
    "disable_chunked_mm_input",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)
"""Options that only some versions of the engine have: those that name them in `options`."""

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM 0.33 takes as max_lora_rank."""

_OFF = (None, False, 0, 0.0)
_DRAFTS = {"speculative_config"}
_ONLY_VLLM = _DRAFTS | {
    "prefix_match_unit",
    "long_prefill_token_threshold",
    "reserve_full_isl",
    "async_scheduling",
    "prioritize_prefill",
    "max_num_active_seqs",
    "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "fully_sharded_loras",
    "kv_load_failure_policy",
    "kv_load_failure_rate",
    *KV_OFFLOADING,
    "max_num_encoder_input_tokens",
    "encoder_cache_size",
    "disable_chunked_mm_input",
}

Position = Callable[[str], str]
Refuse = Callable[[str, str], InputError]


def check_scheduler(values: Mapping[str, Any], positions: Mapping[str, Position]) -> None:
    """Raises InputError for the first given option that contradicts the scheduler or means nothing
    to it.

    `values` are all options, `positions` name those that were given.
    """
    name = values["scheduler"]

    def refuse(option: str, reason: str) -> InputError:
        return InputError(f"{positions[option](option)} {reason}")

    for option, mark in scheduler_parameters().items():
        if option in positions and mark.scheduler != name:
            raise refuse(
                option,
                f"is a parameter of the scheduler {mark.scheduler}, not of {name}; remove it",
            )
    if "scheduling_policy" in positions:
        check_policy(values["scheduling_policy"])
    _check_queue(values, refuse)
    _check_priorities(values, positions, refuse)
    _check_host_cache(values, positions, refuse)
    _check_pools(values, positions, refuse)
    if name in (VLLM, INSTALLED):
        _check_offloading(values, positions, refuse)
    if name == INSTALLED:
        _check_installed(values, positions, refuse)
    elif name != VLLM:
        _check_other(name, values, positions, refuse)
    if values["prioritize_prefill"] and values["skip_prefill"]:
        option = "prioritize_prefill" if "prioritize_prefill" in positions else "skip_prefill"
        raise refuse(
            option, "contradicts skip_prefill: a decode-only run has no prefill; remove one of them"
        )
    if "ttft_target_ns" in positions and values["scheduling_policy"] != "slack":
        raise refuse(
            "ttft_target_ns",
            'has an effect only with scheduling_policy "slack"; remove it, or say "slack"',
        )


def check_async_stages(
    args: "EngineArgs", profile: "EngineProfile", position: str, stages: int
) -> None:
    """Only vLLM schedules pipeline stages asynchronously, and only in versions that do."""
    if args.scheduler not in (VLLM, INSTALLED) or not profile.async_stages:
        raise InputError(
            f"{position}: async_scheduling is true ({args.origin['async_scheduling']}) with "
            f"{stages} pipeline stages, which {profile.name} with the scheduler {args.scheduler} "
            "does not run; leave it out, or set it false"
        )


def _check_installed(
    values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    for option in ("prioritize_prefill", "skip_prefill"):
        if option in positions and values[option]:
            raise refuse(option, f"is no option of vLLM's scheduler; choose the scheduler {VLLM}")
    if values["scheduling_policy"] not in ("fcfs", "priority"):
        raise refuse(
            "scheduling_policy", f"is no order of vLLM's scheduler; choose the scheduler {VLLM}"
        )


_ASKED: Sequence[tuple[str, str, Callable[[Any], bool]]] = (
    ("enable_chunked_prefill", "enable_chunked_prefill", bool),
    ("no_enable_chunked_prefill", "enable_chunked_prefill", lambda value: not value),
    ("enable_prefix_caching", "enable_prefix_caching", bool),
    ("watermark", "watermark", bool),
    ("queue_order", "scheduling_policy", lambda value: value != "fcfs"),
    # A scheduler that takes no ranking of running requests has one of its own.
    ("ranked_running", "kv_load_failure_rate", bool),
    ("ranked_running", "kv_offloading_size", bool),
)
"""Features that an option asks for, or that a scheduler would need to let it be decided: the
feature, the option, and the values that do.
"""


def _check_queue(values: Mapping[str, Any], refuse: Refuse) -> None:
    """What orders of SGLang's queue need."""
    asked, policy = "sglang_schedule_policy", values.get("sglang_schedule_policy")
    if policy == "shortest-prefill-first" and not values["enable_prefix_caching"]:
        raise refuse(
            asked, f"is {policy}, which needs the prefix cache; set enable_prefix_caching true"
        )


_WITH_PRIORITIES = (
    "sglang_low_priority_values_first",
    "sglang_priority_preemption",
    "sglang_preemption_threshold",
    "sglang_retraction_policy",
)


def _check_priorities(
    values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    """SGLang's priorities go with some orders of its queue, and its other options of priorities
    with them.
    """
    asked = "sglang_priority_scheduling"
    if not values.get(asked):
        for option in _WITH_PRIORITIES:
            if option in positions and values[option] not in (*_OFF, "length"):
                raise refuse(
                    option, f"has an effect only with {asked} true; remove it, or set that"
                )
        return
    policy = values.get("sglang_schedule_policy") or SGLANG_POLICIES[0]
    if policy not in SGLANG_BY_PRIORITY:
        allowed = " or ".join(SGLANG_BY_PRIORITY)
        raise refuse(
            "sglang_schedule_policy",
            f"is {policy}, which SGLang does not order by priorities; choose {allowed}",
        )
    if values["scheduling_policy"] != "fcfs":
        raise refuse(asked, "contradicts scheduling_policy; remove one of them")


_OF_HOST_STORAGE = (
    "hicache_storage_prefetch_policy",
    "hicache_prefetch_threshold",
    "hicache_prefetch_timeout_base",
    "hicache_prefetch_timeout_per_ki_token",
    "hicache_storage_prefetch_retry_poll_interval",
    "hicache_storage_prefetch_retry_max_attempts",
)
_OF_HOST_CACHE = (
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "hicache_storage_backend",
    *_OF_HOST_STORAGE,
)


_OF_POOLS = (
    "swa_full_tokens_ratio",
    "mamba_full_memory_ratio",
    "max_mamba_cache_size",
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
)


def _check_pools(
    values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    """Pools of windows and states are SGLang's; spare states belong to its prefix cache."""
    for option in _OF_POOLS:
        if option in positions and values[option] is not None and values["scheduler"] != SGLANG:
            raise refuse(
                option,
                f"is an option of the scheduler {SGLANG}, not of {values['scheduler']}; remove it",
            )
    ratio, states = "mamba_full_memory_ratio", "max_mamba_cache_size"
    if values[ratio] is not None and values[states] is not None:
        raise refuse(states, f"contradicts {ratio}; remove one of them")
    strategy = "mamba_radix_cache_strategy"
    if values[strategy] not in {None, "no_buffer"} and not values["enable_prefix_caching"]:
        raise refuse(
            strategy,
            f"is {values[strategy]}, which SGLang refuses without a prefix cache; remove it, or "
            "set enable_prefix_caching true",
        )


def _check_host_cache(
    values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    """HiCache is SGLang's, and extends its prefix cache."""
    asked = "enable_hierarchical_cache"
    if not values[asked]:
        for option in _OF_HOST_CACHE:
            if option in positions and values[option] not in _OFF:
                raise refuse(
                    option, f"has an effect only with {asked} true; remove it, or set that"
                )
        return
    if values["hicache_storage_backend"] is None:
        for option in _OF_HOST_STORAGE:
            if option in positions and values[option] is not None:
                needs = "hicache_storage_backend"
                raise refuse(option, f"has an effect only with {needs}; remove it, or set that")
    if values["scheduler"] != SGLANG:
        raise refuse(
            asked,
            f"is an option of the scheduler {SGLANG}, not of {values['scheduler']}; remove it, or "
            "give --prefix-storage CPU",
        )
    for option, contradicts, change in (
        ("enable_prefix_caching", not values["enable_prefix_caching"], "set that true"),
        ("skip_prefill", values["skip_prefill"], "set that false"),
        ("scheduling_policy", values["scheduling_policy"] != "fcfs", "set that to fcfs"),
    ):
        if contradicts:
            raise refuse(asked, f"does not go with this {option}; remove it, or {change}")
    if values["hicache_ratio"] is not None and values["hicache_size"]:
        raise refuse("hicache_size", "contradicts hicache_ratio; remove one of them")


def _check_offloading(
    values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    """KV offloading extends the prefix cache."""
    asked, *others = KV_OFFLOADING
    if values[asked] is None:
        for option in others:
            if option in positions:
                raise refuse(option, f"has an effect only with {asked}; remove it, or give that")
        return
    for option, contradicts, change in (
        ("enable_prefix_caching", not values["enable_prefix_caching"], "set that true"),
        ("skip_prefill", values["skip_prefill"], "set that false"),
        ("kv_load_failure_rate", values["kv_load_failure_rate"] > 0, "remove that"),
    ):
        if contradicts:
            raise refuse(asked, f"does not go with this {option}; remove it, or {change}")


def _check_other(
    name: str, values: Mapping[str, Any], positions: Mapping[str, Position], refuse: Refuse
) -> None:
    runs_ahead = "async_scheduling" not in KINDS[name].lacks  # on vLLM's core, with all its limits
    only_vllm = set() if runs_ahead else _ONLY_VLLM - (_DRAFTS - KINDS[name].lacks.keys())
    for option in sorted(only_vllm):
        if option in positions and values[option] not in _OFF:
            raise refuse(option, f"is an option of the scheduler {VLLM}, not of {name}; remove it")
    for feature, option, asks in _ASKED:
        reason = KINDS[name].lacks.get(feature)
        if reason is not None and option in positions and asks(values[option]):
            raise refuse(option, f"does not go with the scheduler {name}: {reason}; remove it")
