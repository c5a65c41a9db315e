"""A case of SGLang's scheduler run by our own."""

from collections.abc import Iterator
from typing import Any

from llmsim import _native
from llmsim.config.engine.host_cache import HOST_WRITES, host_pages
from llmsim.config.engine.options import SGLANG_POLICIES, SGLANG_RETRACTIONS
from llmsim.core import PS_PER_US
from llmsim.scheduling.conformance.cases import Case, run_case, speculation
from llmsim.scheduling.conformance.sglang import transfers

EAGLE = ("EAGLE", "EAGLE3")
"""Algorithms whose drafter reads the token behind each of its own."""
COPY_PS = 200 * PS_PER_US
"""A copy between the device and the host takes this, and `hicache_copy_ps` for each token."""


def native_case(case: Case) -> Case:
    """The case in the form that `run_case` takes: pages as blocks, and the step's bounds."""
    config = case["config"]
    page, chunk = config["page_size"], config["chunked_prefill_size"]
    longest = max(sum(length for _, length in one["segments"]) for one in case["requests"])
    most = chunk if chunk > 0 else config["max_prefill_tokens"] + config["context_length"] + longest
    translated = {
        "num_gpu_blocks": config["max_total_tokens"] // page + 1,
        "block_size": page,
        "max_num_seqs": config["max_running_requests"],
        "max_model_len": config["context_length"],
        "max_num_batched_tokens": most,
        "enable_prefix_caching": not config["disable_radix_cache"],
        "enable_chunked_prefill": chunk > 0,
        "async_scheduling": not config["disable_overlap_schedule"],
        "ends_with_stop_token": config["ends_with_stop_token"],
    }
    width = config.get("speculative_num_draft_tokens", 1)
    resolved = {
        "max_num_scheduled_tokens": max(most, config["max_running_requests"]),
        "max_step_tokens": max(most, config["max_running_requests"] * width),
        "max_concurrent_batches": _batches_in_flight(config),
        "reserve_full_isl": True,
        "watermark": 0.0,
        "num_spec_tokens": config.get("speculative_num_steps", 0),
        "num_lookahead_tokens": 0,
        "use_eagle": config.get("speculative_algorithm") in EAGLE,
    }
    drafts = {"acceptance": case["acceptance"]} if "acceptance" in case else {}
    return {"config": translated, "resolved": resolved, "requests": case["requests"], **drafts}


def _batches_in_flight(config: Case) -> int:
    stages: int = config.get("pp_size", 1)
    if stages > 1:
        return stages
    return 1 if config["disable_overlap_schedule"] else 2


def acceptance(case: Case) -> "_native.Acceptance":
    """Which drafts of a case hold."""
    return speculation(native_case(case)).acceptance


def our_steps(case: Case) -> Iterator[Case]:
    """The steps of the native scheduler `sglang`."""
    config = case["config"]

    def group(spec: Any, scheduler: Any, program: Any) -> Any:
        scheduler.scheduler = "sglang"
        if config.get("disaggregation_mode") == "prefill":
            scheduler.kv_producer, spec.role = True, _native.Role.PREFILL
        if config.get("enable_hierarchical_cache", False):
            scheduler.host_cache = _host_cache(config)
        scheduler.stages = scheduler.micro_batches = config.get("pp_size", 1)
        scheduler.parameters = {
            "new_tokens": config["clip_max_new_tokens"],
            "max_prefill_tokens": config["max_prefill_tokens"],
            "mixed_chunk": int(config["enable_mixed_chunk"] and config["chunked_prefill_size"] > 0),
            "policy": SGLANG_POLICIES.index(config["schedule_policy"]),
            "priorities": int(config["enable_priority_scheduling"]),
            "low_priorities_first": int(config["schedule_low_priority_values_first"]),
            "preemption": int(not config["disable_priority_preemption"]),
            "preemption_threshold": config["priority_scheduling_preemption_threshold"],
            "retraction_policy": SGLANG_RETRACTIONS.index(config["retraction_policy"]),
            "eagle_topk": config.get("speculative_eagle_topk", 1),
            "draft_tokens": config.get("speculative_num_draft_tokens", 0),
        }
        return _native.GroupSpec(spec, scheduler, program, record_schedule=True)

    prefills = config.get("disaggregation_mode") == "prefill"
    around = transfers.receiver(config["transfer_ps"]) if prefills else None
    yield from run_case(native_case(case), group, around)


def _host_cache(config: Case) -> "_native.HostCacheConfig":
    """Pages of the host pool as SGLang counts them; all layers are loaded before the step."""
    native = _native.HostCacheConfig()
    host_tokens = int(config["max_total_tokens"] * config["hicache_ratio"])
    native.pages = host_pages(host_tokens, config["page_size"])
    native.write = HOST_WRITES[config["hicache_write_policy"]]
    native.copy_latency_ps = COPY_PS
    native.write_ps_per_token = native.load_ps_per_token = config["hicache_copy_ps"]
    return native
