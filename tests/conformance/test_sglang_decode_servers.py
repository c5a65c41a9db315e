"""Decode servers of SGLang with pools that hold little beside one request."""

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.ours import our_steps

CONFIG = {
    "page_size": 16,
    "chunked_prefill_size": 256,
    "max_prefill_tokens": 512,
    "max_running_requests": 1,
    "context_length": 520,
    "schedule_policy": "lof",
    "enable_mixed_chunk": False,
    "disable_overlap_schedule": False,
    "disable_radix_cache": False,
    "ends_with_stop_token": False,
    "clip_max_new_tokens": 8,
    "enable_priority_scheduling": True,
    "schedule_low_priority_values_first": True,
    "disable_priority_preemption": False,
    "priority_scheduling_preemption_threshold": 2,
    "retraction_policy": "priority",
    "disaggregation_mode": "decode",
    "transfer_ps": 1000000000,
    "num_reserved_decode_tokens": 0,
    "disaggregation_decode_enable_radix_cache": False,
    "max_total_tokens": 1056,
}
"""One request runs; overlapped; the KV of others waits in its pool."""


def request(number: int, arrival: float, prompt: int, answer: int, priority: int) -> Case:
    return {
        "id": f"r{number}",
        "arrival": arrival,
        "segments": [[number, prompt]],
        "output_len": answer,
        "priority": priority,
    }


def test_who_was_alone_and_found_no_room_gets_further() -> None:
    """It needs room for two decodes: the first output comes when the second has begun. With less it
    would be retracted for ever before it hears of one. SGLang aborts it.
    """
    requests = [
        request(0, 1.905652, 19, 27, -27),
        request(1, 1.916958, 500, 2, -29),
        request(2, 2.018992, 45, 450, -29),
        request(3, 2.027696, 51, 8, -28),
    ]
    steps = our_steps({"config": CONFIG, "requests": requests})
    retracted = [name for step in steps for name in step["preempted"]]
    assert retracted == ["r2"]
    ended = [name for step in steps for name in step["finished"]]
    assert sorted(ended) == ["r0", "r1", "r2", "r3"]
