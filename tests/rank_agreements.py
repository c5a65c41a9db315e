"""What data-parallel ranks agree on."""

AGREEMENTS = [
    ([(False, False), (False, False)], (False, False)),
    ([(True, False), (False, False)], (True, False)),
    ([(False, True), (False, False)], (True, False)),
    ([(False, True), (False, True)], (False, True)),
]
"""What each of two ranks says, and what both then know (vLLM: ParallelConfig.sync_dp_state):
(unfinished requests, a pause that waits).
"""
