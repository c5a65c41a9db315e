"""Throughput over time, simulated against recorded: reads published series and says how far two of
them are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.config.files.reading import file_text, quoted
from llmsim.core import PS_PER_S, Results

Floats = NDArray[np.float64]
HEADER = ("time_s", "throughput")
MAX_SECONDS = 10_000_000


@dataclass(frozen=True)
class SeriesErrors:
    """Differences in percent of the recorded value.

    `total`: generated tokens over the time to the last of them, signed; `series`: sum of
    |difference| of each second over the sum of the recorded series.
    """

    total: float
    series: float


def read_series(path: Path) -> Floats:
    """Tokens in each second from a table `time_s<TAB>throughput`; entry t is the interval that ends
    at t seconds.
    """
    lines = file_text(path, f"a table with the columns {' and '.join(HEADER)}").split("\n")
    if not lines or tuple(lines[0].split()) != HEADER:
        raise InputError(
            f'{path}:1:1: the first line must be "{HEADER[0]}<TAB>{HEADER[1]}"', file=str(path)
        )
    found: dict[int, float] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            second, tokens = (float(cell) for cell in line.split())
        except ValueError:
            raise InputError(
                f"{path}:{number}:1: {quoted(line)} is not a time in seconds and a throughput",
                file=str(path),
            ) from None
        if not 0 <= second < MAX_SECONDS or second != int(second) or not 0 <= tokens < float("inf"):
            raise InputError(
                f"{path}:{number}:1: {quoted(line.strip())}; whole seconds and tokens that are "
                "not negative",
                file=str(path),
            )
        found[int(second)] = tokens
    series = np.zeros(max(found, default=0) + 1)
    for second_index, tokens in found.items():
        series[second_index] = tokens
    return series


def emitted_series(results: Results) -> Floats:
    """Generated tokens in each second of a run, in the layout of `read_series`."""
    times = [np.zeros(0, dtype=np.int64)]
    for row in np.flatnonzero(results.requests.emitted_tokens > 0):
        first = results.requests.first_token_ps[row]
        times.append(first + np.concatenate([[0], np.cumsum(results.itl_of(int(row)))]))
    ends = -(-np.concatenate(times) // PS_PER_S)
    return np.bincount(np.maximum(ends, 1)).astype(np.float64) if len(ends) else np.zeros(1)


def total_throughput(series: Floats) -> float:
    """Tokens per second up to the last second in which there were any."""
    busy = np.flatnonzero(series > 0)
    return float(series.sum() / busy[-1]) if len(busy) and busy[-1] else 0.0


def completed(series: Floats, total_tokens: int) -> Floats:
    """A series that was printed at whole seconds only, with what was generated after its last line
    as one more second.

    Raises InputError where more is missing than its last busy second held: then it is not the end
    that is missing.
    """
    busy = np.flatnonzero(series > 0)
    missing = total_tokens - float(series.sum())
    if not len(busy) or missing > series[busy[-1]]:
        raise InputError(
            f"the series lacks {missing:g} of {total_tokens} tokens, more than its last busy "
            "second has"
        )
    return np.append(series[: busy[-1] + 1], missing) if missing > 0 else series


def series_errors(simulated: Floats, recorded: Floats) -> SeriesErrors:
    """How far a simulated series is from the recorded one; InputError when nothing was recorded."""
    if not total_throughput(recorded):
        raise InputError(
            "the recorded throughput series is zero everywhere; there is nothing to compare with"
        )
    length = max(len(simulated), len(recorded))
    ours, theirs = (np.pad(series, (0, length - len(series))) for series in (simulated, recorded))
    return SeriesErrors(
        100.0 * (total_throughput(simulated) / total_throughput(recorded) - 1.0),
        100.0 * float(np.abs(ours - theirs).sum() / theirs.sum()),
    )
