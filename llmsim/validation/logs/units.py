"""Notices logs whose times are in other units than their format says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite
from llmsim.validation.logs.recording import Finding, Float64

LATEST_EPOCH_S = 1e11
"""Seconds since 1970 reach this in the year 5138; milliseconds did in 1973."""
MOST_TIMES_AS_FAST = 20.0
"""Two clocks of seconds run alike, up to what waits between them; of seconds and milliseconds, 1000
times apart.
"""
LEAST_SPAN_S = 1.0
AGREE = 0.02


def check_clocks(path: Path, stamps: Mapping[str, Float64]) -> None:
    """Raises InputError where a log's stamps cannot all be seconds."""
    largest = float(np.max(stamps["arrival_time"]))
    if largest >= LATEST_EPOCH_S:
        raise InputError(
            f"{path}: arrival_time is {largest:.6g}; it must be in seconds, this looks like ms, "
            "us or ns",
            file=str(path),
        )
    arrivals = float(np.ptp(stamps["arrival_time"]))
    for name in ("queued_ts", "first_token_ts", "last_token_ts"):
        span = float(np.ptp(stamps[name]))
        slow = arrivals > LEAST_SPAN_S and arrivals > MOST_TIMES_AS_FAST * span
        fast = name == "queued_ts" and span > MOST_TIMES_AS_FAST * max(arrivals, LEAST_SPAN_S)
        if slow or fast:
            raise InputError(
                f"{path}: {name} spans {span:.6g} and arrival_time {arrivals:.6g}; both must be "
                "in seconds",
                file=str(path),
            )


def benchmark_units(data: Mapping[str, Any], ttft_s: Float64) -> list[Finding]:
    """Unsound where the mean TTFT that a benchmark states is not that of the single requests in the
    same file.
    """
    stated = finite(data.get("mean_ttft_ms"))
    if stated is None or stated <= 0:
        return []
    mean_ms = 1e3 * float(np.mean(ttft_s))
    if abs(mean_ms - stated) <= AGREE * stated:
        return []
    sentence = (
        f"the benchmark says that the mean TTFT was {stated:.6g} ms, but its ttfts, which must be "
        f"seconds, have a mean of {mean_ms:.6g} ms"
    )
    return [Finding("units", True, sentence)]
