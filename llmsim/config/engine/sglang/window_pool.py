"""What SGLang's requests hold of its KV pool of layers with a window."""

SLIDE_INTERVAL = 128
"""Tokens that a window of decodes leaves until SGLang frees them (SGLANG_SWA_EVICTION_INTERVAL; in
the core `Sglang::kSlideInterval`).
"""


def tokens_of_requests(
    window: int,
    page: int,
    requests: int,
    *,
    in_flight_tokens: int,
    verified: int = 1,
    decode_tokens: int = 0,
) -> int:
    """Tokens that so many running requests hold at most, in whole pages.

    Each holds its `window`, what its decodes of `verified` tokens leave until that is freed, a page
    of rounding, and what one decode takes: `decode_tokens`, or a page. Prompts of the steps in
    flight take `in_flight_tokens` and a page. Source: SGLang 0.5.23, `compute_swa_request_cap`.
    """
    kept = window + SLIDE_INTERVAL * verified + page + (decode_tokens or page)
    tokens = kept * requests + in_flight_tokens + page
    return -(-tokens // page) * page
