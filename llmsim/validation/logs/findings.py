"""What readers of logs notice for those who compare."""

from llmsim.plurals import counted, plural
from llmsim.validation.logs.recording import Finding, Float64

CLOCK_GRAIN_S = 1e-6
"""Epoch seconds in a 64-bit float are no finer."""


def failed_findings(failed: int, total: int) -> list[Finding]:
    """What a comparison has to say of requests that failed."""
    if not failed:
        return []
    return [
        Finding(
            "failed",
            True,
            f"{failed} of the log's {counted(total, 'request')} failed; "
            f"{plural(failed, 'it', 'they')} loaded the server all the same",
        )
    ]


def backwards_findings(ttft: Float64, latency: Float64) -> list[Finding]:
    """First tokens before the request, and last tokens before the first."""
    wrong = int(((ttft < -CLOCK_GRAIN_S) | (latency < ttft - CLOCK_GRAIN_S)).sum())
    if not wrong:
        return []
    sentence = (
        f"the log's clocks disagree: in {counted(wrong, 'request')} a token comes before the "
        "request or the one before it"
    )
    return [Finding("clocks", True, sentence)]
