"""The card of a trace: how much, how fast, how bursty, how long, and how much of it a prefix cache
could find.
"""

from typing import Any

import numpy as np

from llmsim.core import Int64, Workload
from llmsim.plurals import grouped, plural
from llmsim.workload.block_content_ids import repeated_prompt_tokens

PS_PER_S = 1e12
PEAK_PARTS = 100
"""Equal parts of the span, of which the busiest one is the peak."""


def card(
    workload: Workload, format_name: str, *, max_model_len: int | None = None
) -> dict[str, Any]:
    """What there is to know of a workload, as plain numbers (None where there is none).

    Rates and the coefficient of variation of gaps are those of lines (requests, or sessions by
    their first call), over the time from the first arrival to the last. `ideal_prefix_hit_ratio` is
    the share of prompt tokens that a cache which forgets nothing would find, were each request
    finished before the next begins: no run does better.
    """
    arrival = workload.arrival_ps[workload.arrival_ps >= 0] / PS_PER_S
    gaps = np.diff(arrival)
    span = float(arrival[-1] - arrival[0]) if len(arrival) else 0.0
    inputs, outputs = (
        workload.input_tokens.astype(np.int64),
        workload.output_tokens.astype(np.int64),
    )
    context = inputs + outputs
    named = int(np.count_nonzero(np.diff(workload.key_offsets)))
    made: dict[str, Any] = {
        "format": format_name,
        "source": workload.source,
        "requests": len(workload),
        "lines": len(arrival),
        "sessions": _sessions(workload),
        "calls_after_another": int(np.count_nonzero(workload.next_call >= 0)),
        "models": [workload.models[index] for index in np.unique(workload.model) if index >= 0],
        "span_s": round(span, 9),
        "rate_per_s": round((len(arrival) - 1) / span, 6) if span > 0 else None,
        "interarrival_cv": _ratio(float(gaps.std()), float(gaps.mean())) if len(gaps) else None,
        "peak_rate_per_s": _peak(arrival, span),
        "peak_window_s": round(span / PEAK_PARTS, 9) if span > 0 else None,
        "input_tokens": _lengths(inputs),
        "output_tokens": _lengths(outputs),
        "longest_context_tokens": int(context.max()),
        "requests_with_content": named,
        "content_block_tokens": workload.granularity if named else None,
        "ideal_prefix_hit_ratio": _ratio(repeated_prompt_tokens(workload), int(inputs.sum()))
        if named
        else None,
        "notes": list(workload.notes),
    }
    if max_model_len is not None:
        made["max_model_len"] = max_model_len
        made["requests_beyond_max_model_len"] = int(np.count_nonzero(context > max_model_len))
    return made


def _sessions(workload: Workload) -> int:
    if workload.session_id:
        names = set(workload.session_id)
        return len(names) - ("" in names)
    return int(np.count_nonzero((workload.next_call >= 0) & (workload.arrival_ps >= 0)))


def _lengths(values: Int64) -> dict[str, float]:
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    shown = {
        "mean": float(values.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": float(values.max()),
    }
    return {name: round(value, 3) for name, value in shown.items()} | {"total": int(values.sum())}


def _peak(arrival: np.ndarray[Any, np.dtype[np.float64]], span: float) -> float | None:
    """Most arrivals in one of the equal parts of the span, per second."""
    if span <= 0:
        return None
    counts, _ = np.histogram(arrival, bins=PEAK_PARTS)
    return round(float(counts.max()) / (span / PEAK_PARTS), 6)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def render(made: dict[str, Any]) -> str:
    """The card as a few lines for a person."""
    lines = [f"{made['source']}: {made['format']}"]
    sessions = f" in {grouped(made['sessions'], 'session')}" if made["sessions"] else ""
    following = (
        f", {made['calls_after_another']:,} of them after another call"
        if made["calls_after_another"]
        else ""
    )
    lines.append(f"  requests          {made['requests']:,}{sessions}{following}")
    rate, cv = made["rate_per_s"], made["interarrival_cv"]
    if rate is None:
        lines.append("  arrivals          all at once")
    else:
        peak = f"{made['peak_rate_per_s']:,.4g}/s in {made['peak_window_s']:,.4g} s"
        lines.append(
            f"  arrivals          {rate:,.4g}/s over {made['span_s']:,.6g} s, peak {peak}, "
            f"CV of gaps {'-' if cv is None else f'{cv:.3g}'}"
        )
    for name, label in (("input_tokens", "input tokens"), ("output_tokens", "output tokens")):
        values = made[name]
        shown = ", ".join(
            f"{key} {values[key]:,.6g}" for key in ("mean", "p50", "p90", "p99", "max")
        )
        lines.append(f"  {label:<17} {shown}")
    beyond = made.get("requests_beyond_max_model_len")
    over = (
        ""
        if beyond is None
        else f"; {grouped(beyond, 'request')} {plural(beyond, 'exceeds', 'exceed')} max_model_len "
        f"{made['max_model_len']:,}"
    )
    lines.append(f"  longest context   {grouped(made['longest_context_tokens'], 'token')}{over}")
    hits = made["ideal_prefix_hit_ratio"]
    if hits is None:
        lines.append(
            "  prefix hits       unknown: the trace does not name its content, so a run finds none"
        )
    else:
        lines.append(
            f"  prefix hits       at most {hits:.1%} of prompt tokens (content of "
            f"{grouped(made['requests_with_content'], 'request')} "
            f"known, in blocks of {made['content_block_tokens']})"
        )
    if made["models"]:
        lines.append(f"  models            {', '.join(made['models'])}")
    return "\n".join([*lines, *(f"  note: {note}" for note in made["notes"])])
