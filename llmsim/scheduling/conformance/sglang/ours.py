"""A case of SGLang's scheduler run by our own."""

from collections.abc import Iterator
from typing import Any

from llmsim import _native
from llmsim.config.engine.options import SGLANG_POLICIES, SGLANG_RETRACTIONS
from llmsim.scheduling.conformance.cases import Case, run_case


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
    resolved = {
        "max_num_scheduled_tokens": max(most, config["max_running_requests"]),
        "max_concurrent_batches": 1 if config["disable_overlap_schedule"] else 2,
        "reserve_full_isl": True,
        "watermark": 0.0,
        "num_spec_tokens": 0,
        "num_lookahead_tokens": 0,
    }
    return {"config": translated, "resolved": resolved, "requests": case["requests"]}


def our_steps(case: Case) -> Iterator[Case]:
    """The steps of the native scheduler `sglang`."""
    config = case["config"]

    def group(spec: Any, scheduler: Any, program: Any) -> Any:
        scheduler.scheduler = "sglang"
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
        }
        return _native.GroupSpec(spec, scheduler, program, record_schedule=True)

    yield from run_case(native_case(case), group)
