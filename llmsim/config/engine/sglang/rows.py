"""Requests that SGLang's decode servers have rows for beside those that run."""

_SMALL_BATCH_REQUESTS = 32
"""Decode servers of at most so many running requests have room for others beside them (in the core
`SglangTakeover::rows`).
"""
_MORE_ROWS = 2
"""For each running request of those."""


def rows_of_transfers(requests: int) -> int:
    """Rows of a decode server for requests whose KV is coming, beside so many that run
    (`disaggregation_decode_extra_slots`).
    """
    return _MORE_ROWS * requests if requests <= _SMALL_BATCH_REQUESTS else 0
