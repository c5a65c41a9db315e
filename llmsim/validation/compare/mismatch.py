"""What a log shows that the described deployment contradicts: differences that no constant of a
machine explains.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from llmsim.validation.logs.pairing import Pairs
from llmsim.validation.logs.recording import Finding, Float64, Recording

FACTOR = 2.0
"""A mean that is this many times too large or too small is no error of operator times."""
LEAST_TTFT_S = 0.1
"""Of a difference of mean TTFTs; below, networks, front ends and the phase of one step decide."""
GROWTH = 0.1
"""Seconds of TTFT that each second of arrivals adds, from which a server is saturated."""
FEWEST = 40
PLATEAU_SHARE = 0.2
"""Share of the run that a log spends within a fiftieth of its most answers at once: a limit, not
chance.
"""
LATENCIES = {
    "ttft": ("TTFT", LEAST_TTFT_S),
    "tpot": ("TPOT", 0.0),
    "latency": ("latency", LEAST_TTFT_S),
}
"""Label of each latency, and the difference in seconds that is left unsaid."""
ANOTHER_SERVER = ("mismatch tpot", "mismatch latency", "saturation", "limit", "option")
"""Findings with which constants of a machine are not fitted; a front end or a network may explain a
TTFT.
"""


def mismatches(pairs: Pairs) -> list[Finding]:
    """Gross differences of means, of saturation and of the answers that are written at once; all of
    them unsound.
    """
    real, simulated = pairs.real, pairs.simulated
    means_s = {
        name: [_mean(getattr(one, f"{name}_s")) for one in (real, simulated)] for name in LATENCIES
    }
    found = gross_differences(means_s, "in the log")
    if real.has_arrivals and simulated.has_arrivals:
        found += _saturation(real, simulated)
        found += _concurrency(real, simulated) if found else []
    return found


def _mean(values: Float64) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def gross_differences(means_s: Mapping[str, Sequence[float]], where: str) -> list[Finding]:
    """A finding for each (recorded, simulated) mean, seconds, that is FACTOR times too large or too
    small.
    """
    found = []
    for name, (theirs_s, ours_s) in means_s.items():
        label, least_s = LATENCIES[name]
        known = theirs_s > 0 and ours_s > 0 and abs(ours_s - theirs_s) >= least_s
        if not known or theirs_s / FACTOR < ours_s < FACTOR * theirs_s:
            continue
        sentence = (
            f"mean {label} is {1000 * ours_s:.4g} ms simulated and {1000 * theirs_s:.4g} ms "
            f"{where} ({100 * (ours_s / theirs_s - 1):+.0f} %): the options do not describe the "
            "server that was recorded"
        )
        found.append(Finding(f"mismatch {name}", True, sentence))
    return found


def _saturation(real: Recording, simulated: Recording) -> list[Finding]:
    theirs, ours = ttft_growth(real), ttft_growth(simulated)
    if (theirs >= GROWTH) == (ours >= GROWTH) or abs(theirs - ours) < GROWTH:
        return []
    full, free = ("log", "simulation") if theirs >= GROWTH else ("simulation", "log")
    sentence = (
        f"the server of the {full} is saturated, that of the {free} is not: each second of "
        f"arrivals adds {theirs:.2f} s of TTFT in the log and {ours:.2f} s in the simulation; "
        "compare max_num_seqs, max_num_batched_tokens, the KV cache and the number of devices"
    )
    return [Finding("saturation", True, sentence)]


def ttft_growth(recording: Recording) -> float:
    """Seconds of TTFT that a second of arrivals adds, from the first to the last quarter of
    arrivals; 0 for few.
    """
    if len(recording) < FEWEST:
        return 0.0
    order = np.argsort(recording.arrival_s, kind="stable")
    quarter = len(order) // 4
    first, last = order[:quarter], order[-quarter:]
    between_s = float(recording.arrival_s[last].mean() - recording.arrival_s[first].mean())
    added_s = float(recording.ttft_s[last].mean() - recording.ttft_s[first].mean())
    return added_s / between_s if between_s > 0 and added_s >= LEAST_TTFT_S else 0.0


def _concurrency(real: Recording, simulated: Recording) -> list[Finding]:
    """The log stays at a number of answers at once that the simulation passes."""
    (theirs, share), (ours, _) = most_at_once(real), most_at_once(simulated)
    if theirs < 1 or share < PLATEAU_SHARE or ours <= 1.1 * theirs:
        return []
    sentence = (
        f"the log writes at most {theirs} answers at once, and does so for {100 * share:.0f} % of "
        f"its time, the simulation up to {ours}: the server's max_num_seqs may be {theirs}"
    )
    return [Finding("limit", True, sentence)]


def most_at_once(recording: Recording) -> tuple[int, float]:
    """(most answers between first and last token at one time, share of the run within a fiftieth of
    it).
    """
    begins_s = recording.arrival_s + recording.ttft_s
    ends_s = recording.arrival_s + recording.latency_s
    times_s = np.concatenate([begins_s, ends_s])
    changes = np.concatenate(
        [np.ones(len(begins_s), dtype=np.int64), np.full(len(ends_s), -1, dtype=np.int64)]
    )
    order = np.lexsort((changes, times_s))  # who ends makes room for who begins at the same time
    running = np.cumsum(changes[order])
    most = int(running.max(initial=0))
    lengths_s = np.diff(times_s[order], append=times_s[order][-1:])
    near = running >= most - most // 50
    total_s = float(lengths_s.sum())
    return most, float(lengths_s[near].sum()) / total_s if total_s else 0.0
