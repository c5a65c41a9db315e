"""What speculative decoding made of its drafts, by the names of vLLM's metrics where
it has them.
"""

from typing import Any

import numpy as np

from llmsim.core import PS_PER_MS, Results
from llmsim.exact import exact_sum

_DIGITS = 6


def speculation_block(results: Results) -> dict[str, Any] | None:
    """None where no group verified a draft; counts are those of vLLM's SpecDecodingStats.

    `acceptance_rate` is accepted / drafted; `acceptance_length` the mean tokens of a verification
    (1 + accepted / verifications); `tokens_per_verification` the mean that reached a client, less
    where answers ended within one. `per_position` is the share of verifications in which the first
    i + 1 drafts held. `mean_output_gap_ms` is the mean time between outputs of a request, counting
    the tokens of one step once, as vLLM's client and server count ITL.
    """
    counters = {
        name: exact_sum(results.counters[name]) for name in _COUNTERS if name in results.counters
    }
    verifications = counters.get("verifications", 0)
    if not verifications:
        return None
    positions = max((len(held) for held in results.accepted_at), default=0)
    held = np.zeros(positions, np.int64)
    for of_group in results.accepted_at:
        held[: len(of_group)] += of_group
    return {
        "verifications": verifications,
        "drafted_tokens": counters["drafted_tokens"],
        "accepted_tokens": counters["accepted_tokens"],
        "acceptance_rate": round(counters["accepted_tokens"] / counters["drafted_tokens"], _DIGITS),
        "acceptance_length": round(1 + counters["accepted_tokens"] / verifications, _DIGITS),
        "tokens_per_verification": round(counters["verified_tokens"] / verifications, _DIGITS),
        "per_position": [round(int(count) / verifications, _DIGITS) for count in held],
        "mean_output_gap_ms": _mean_gap_ms(results),
    }


_COUNTERS = ("verifications", "drafted_tokens", "accepted_tokens", "verified_tokens")


def _mean_gap_ms(results: Results) -> float | None:
    """Tokens of one step come together: gaps of zero are within a step, since every step takes
    time.
    """
    apart = results.itl_values_ps > 0
    count = exact_sum(results.itl_counts[apart])
    if not count:
        return None
    total = exact_sum(results.itl_values_ps[apart], results.itl_counts[apart])
    return round(total / count / PS_PER_MS, _DIGITS)
