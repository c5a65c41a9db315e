"""Says when a comparison does not mean what its figures say."""

import numpy as np

from llmsim.plurals import counted
from llmsim.validation.compare.mismatch import mismatches
from llmsim.validation.logs.pairing import Pairs
from llmsim.validation.logs.recording import Finding, KvUse, Recording

KV_FULL = 0.98
"""Peak use from which the size of the KV cache decides who runs."""
ARRIVAL_TOLERANCE_S = 0.010
FEW_PAIRS = 30
COLD_EXCESS_S = 0.020
"""A first token of the log that is later than the simulated one by this much (and by a fifth) is a
cold start.
"""


def check(pairs: Pairs, skip_seconds: float) -> tuple[Finding, ...]:
    """Everything found, the unsound first; findings of the readers included."""
    real, simulated = pairs.real, pairs.simulated
    found = [*pairs.findings, *real.findings, *simulated.findings]
    found += unlike_lengths(real, simulated)
    found += _arrivals(real, simulated)
    found += _cold_start(real, simulated, skip_seconds)
    found += _kv(simulated.kv, simulated.kind)
    found += mismatches(pairs)
    if len(real) < FEW_PAIRS:
        few = f"only {counted(len(real), 'request')}"
        found.append(Finding("few", False, f"{few}: percentiles say little"))
    return tuple(sorted(found, key=lambda finding: not finding.unsound))


def unlike_lengths(real: Recording, simulated: Recording) -> list[Finding]:
    """What prompts and answers of paired requests say of the work of both runs."""
    found = []
    for what, a, b in (
        ("prompts", real.input_tokens, simulated.input_tokens),
        ("answers", real.output_tokens, simulated.output_tokens),
    ):
        different = int(((a != b) & (a >= 0) & (b >= 0)).sum())
        if different:
            sentence = (
                f"the {what} of {counted(different, 'paired request')} differ in length: they "
                "are not the same work"
            )
            found.append(Finding("lengths", True, sentence))
    return found


def _arrivals(real: Recording, simulated: Recording) -> list[Finding]:
    if not real.has_arrivals:
        sentence = (
            "the log has no arrival times: no throughput, makespan or time series, and nothing "
            "is excluded"
        )
        return [Finding("arrivals", True, sentence)]
    shift = simulated.arrival_s - real.arrival_s
    worst = float(np.abs(shift - np.median(shift)).max())
    order = (
        np.argsort(real.arrival_s, kind="stable"),
        np.argsort(simulated.arrival_s, kind="stable"),
    )
    swapped = not np.array_equal(*order)
    if worst <= ARRIVAL_TOLERANCE_S and not swapped:
        return []
    sentence = f"arrivals differ by up to {1000 * worst:.1f} ms" + (
        ", and in their order" if swapped else ""
    )
    rates = [_rate_per_s(recording) for recording in (real, simulated)]
    if abs(rates[1] - rates[0]) > 0.02 * rates[0]:
        sentence += f" (load: {rates[0]:.4g} requests/s in the log, {rates[1]:.4g} simulated)"
    return [Finding("arrivals", worst > 1.0, sentence + "; `run --arrivals LOG` takes the log's")]


def _rate_per_s(recording: Recording) -> float:
    span_s = float(np.ptp(recording.arrival_s))
    return (len(recording) - 1) / span_s if span_s > 0 else 0.0


def _cold_start(real: Recording, simulated: Recording, skip_seconds: float) -> list[Finding]:
    if not real.has_arrivals:
        return []
    cold = real.arrival_s < skip_seconds
    found = []
    first = int(np.argmin(real.arrival_s))
    excess = float(real.ttft_s[first] - simulated.ttft_s[first])
    if excess > max(COLD_EXCESS_S, 0.2 * float(simulated.ttft_s[first])):
        left = (
            f"paired figures leave out the {counted(int(cold.sum()), 'request')} of "
            f"the first {skip_seconds:g} s"
        )
        sentence = (
            f"cold start: the log's first token came {1000 * excess:.0f} ms later than simulated; "
            + (left if cold[first] else "nothing is excluded (--skip-seconds)")
        )
        found.append(Finding("cold start", not bool(cold[first]), sentence))
    if cold.mean() > 0.5:
        sentence = (
            f"{100 * cold.mean():.0f} % of the requests arrive in the first {skip_seconds:g} s "
            "and are left out"
        )
        found.append(Finding("excluded", True, sentence))
    return found


def _kv(use: KvUse | None, kind: str) -> list[Finding]:
    if use is None:
        if kind == "llmsim results":
            return []
        sentence = (
            f"a {kind} does not say how full the KV cache was; give the run folder to have it "
            "checked"
        )
        return [Finding("KV unknown", False, sentence)]
    bound = use.peak_usage >= KV_FULL or use.preemptions > 0
    if not bound or use.blocks_given:
        return []
    sentence = (
        f"the KV cache was full (peak use {100 * use.peak_usage:.0f} %, {use.preemptions} "
        "preemptions) and its size is predicted: some per cent of blocks change every queueing "
        "time; give the server's own count (num_gpu_blocks_override)"
    )
    return [Finding("KV bound", True, sentence)]
