"""Options of SGLang's servers that several tests have."""

from typing import Any

DECODE_SERVER: dict[str, Any] = {
    "chunked_prefill_size": 256,
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "enable_mixed_chunk": False,
    "disable_overlap_schedule": True,
    "disable_radix_cache": False,
    "ends_with_stop_token": False,
    "enable_priority_scheduling": False,
    "schedule_low_priority_values_first": False,
    "disable_priority_preemption": False,
    "priority_scheduling_preemption_threshold": 10,
    "retraction_policy": "length",
    "disaggregation_mode": "decode",
    "transfer_ps": 1_000_000_000,
    "disaggregation_decode_enable_radix_cache": True,
}
"""Of a case of conformance: decodes with a prefix cache, and nothing overlaps."""
