"""Goodput: the finished requests that meet latency targets, as `--goodput` of vLLM's benchmark
counts them; with a target of aTTFT, the sessions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.config.errors import InputError, nearest
from llmsim.core import PS_PER_MS, PS_PER_S, Int64, Results
from llmsim.results.requests.metrics import finished_rows, makespan_ps
from llmsim.results.requests.sessions import answer_rounds

TARGETS = ("ttft", "tpot", "e2el")
"""Latencies of a request."""
SESSION_TARGET = "attft"
"""From a session's arrival to the first token of its answer round; sessions are counted then."""
_DIGITS = 6


def parse_targets(
    texts: Sequence[str], option: str = "--goodput", known: tuple[str, ...] = TARGETS
) -> dict[str, int]:
    """`ttft:1000,tpot:40` (milliseconds; commas or blanks, one text or several) -> ps by name, in
    the order of `known`.

    Raises InputError for an unknown or repeated name and for a time that is not above 0.
    """
    found: dict[str, int] = {}
    words = [word for text in texts for word in text.replace(",", " ").split()]
    for word in words:
        name, _, value = word.partition(":")
        if name not in known:
            raise InputError(
                f'{option}: "{word}" has no known latency{nearest(name, known)}; write '
                "NAME:MILLISECONDS with "
                f"{', '.join(known)}, as ttft:1000,tpot:40"
            )
        if name in found:
            raise InputError(f"{option}: {name} is given twice; give one target for each latency")
        found[name] = _ps(word, value, option)
    if texts and not found:
        raise InputError(f"{option} is empty; write NAME:MILLISECONDS, as ttft:1000,tpot:40")
    return {name: found[name] for name in known if name in found}


def _ps(word: str, value: str, option: str) -> int:
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = 0.0
    if not 1e-9 <= milliseconds <= 1e9:
        raise InputError(
            f'{option}: "{word}" needs milliseconds above 0 (from 1e-9, a picosecond) and at '
            "most 1e9, as ttft:1000"
        )
    return round(milliseconds * PS_PER_MS)


def goodput_block(
    results: Results, targets_ps: Mapping[str, int], among: NDArray[np.bool_] | None = None
) -> dict[str, Any] | None:
    """None without targets; else how many requests met all of them, per second of the makespan, and
    as a share; with `among`, shape (requests,), of these requests alone.

    A latency that equals its target meets it; an answer of one token has no TPOT to miss. `share`
    is of all requests of the workload: whoever was rejected, refused, cancelled or not finished met
    nothing. `shares` has each target alone. With a target of aTTFT sessions are counted instead,
    each by its answer round, and `of` is "sessions".
    """
    if not targets_ps:
        return None
    requests, by_session = results.requests, SESSION_TARGET in targets_ps
    if by_session:
        rows, begin_ps, total = answer_rounds(results)
    else:
        rows, total = finished_rows(requests), len(results.workload)
        if among is not None:
            rows, total = rows[among[rows]], int(np.count_nonzero(among))
        begin_ps = requests.arrival_ps[rows]
    ttft_ps = requests.first_token_ps[rows] - requests.arrival_ps[rows]
    e2el_ps = requests.finish_ps[rows] - requests.arrival_ps[rows]
    gaps = requests.emitted_tokens[rows].astype(np.int64) - 1
    # A time and how often the target fits into it at most: TPOT is so compared exactly, in
    # integers.
    compared: dict[str, tuple[Any, Any]] = {
        "ttft": (ttft_ps, 1),
        "tpot": (e2el_ps - ttft_ps, gaps),
        "e2el": (e2el_ps, 1),
        SESSION_TARGET: (requests.first_token_ps[rows] - begin_ps, 1),
    }
    met = {name: _within(*compared[name], limit_ps) for name, limit_ps in targets_ps.items()}
    good = int(np.count_nonzero(np.logical_and.reduce(list(met.values()))))
    duration_ps = makespan_ps(results)
    return {
        "targets_ms": {name: limit_ps / PS_PER_MS for name, limit_ps in targets_ps.items()},
        "good": good,
        "share": _share(good, total),
        "shares": {
            name: _share(int(np.count_nonzero(column)), total) for name, column in met.items()
        },
        "request_goodput": round(good * PS_PER_S / duration_ps, _DIGITS) if duration_ps else None,
        **({"of": "sessions"} if by_session else {}),
    }


def _within(time_ps: Int64, times: Int64 | int, limit_ps: int) -> NDArray[np.bool_]:
    """Whether each time is at most `times` limits; the limit is not multiplied, which could
    overflow int64.
    """
    limits_needed = -(-time_ps // limit_ps)
    return np.asarray(limits_needed <= times)


def _share(part: int, total: int) -> float | None:
    return round(part / total, _DIGITS) if total else None
