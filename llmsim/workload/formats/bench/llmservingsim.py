"""LLMServingSim's JSON Lines, the format of our own files: told here, read by
`llmsim.workload.jsonl`.
"""

from llmsim.workload.formats.head import Head

KEYS = ("input_toks", "output_toks", "arrival_time_ns", "sub_requests")


def detect(head: Head) -> bool:
    return head.kind in ("lines", "object") and any(head.has(key) for key in KEYS)
