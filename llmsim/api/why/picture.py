"""Pictures of a `why`: blame before and after the first token, and the what-ifs."""

from typing import TYPE_CHECKING, Any

from llmsim.api.why.seen import PARTS
from llmsim.api.why.text import LEGEND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from llmsim.api.why.answer import Why

COLORS = {
    "api": "#9a9891",
    "queue": "#eda100",
    "wait": "#f2c86b",
    "prefill": "#2a78d6",
    "decode": "#1baf7a",
    "communication": "#4a3aa7",
    "encoder": "#7fb2ea",
    "m2n": "#7263c8",
    "offload": "#2f6f73",
    "host": "#b4632c",
    "kv_transfer": "#8d7fe0",
    "preemption": "#e34948",
    "reconfigure": "#c0307a",
    "abandoned": "#cfcdc6",
    "frontend": "#6d6c66",
}

WHOLE_MS = 10
"""From here on axes show whole milliseconds."""


def picture(why: "Why") -> "Figure":
    """Draws the answer; raises InputError where matplotlib is missing."""
    from llmsim.api.why.answer import title
    from llmsim.config.errors import InputError

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "plots need matplotlib, which is not installed; pip install matplotlib"
        ) from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1)
    _blame(above, why.to_dict()["blame"], why)
    _what_ifs(below, why)
    figure.suptitle(f"{title(why.seen)}: {why.seen.value_ms:,.1f} ms")
    return figure


def _bars(blame: dict[str, Any], why: "Why") -> list[tuple[str, dict[str, float]]]:
    """Label and parts of each bar: of the slowest, of all, and of the request that was asked for,
    before and after the first token.
    """
    bars: list[tuple[str, dict[str, float]]] = []
    spans = [("before_first_token", "to first token"), ("after_first_token", "after")]
    if why.seen.metric in ("ttft", "tpot"):
        spans = spans[:1] if why.seen.metric == "ttft" else spans[1:]
    for span, label in spans:
        for who, name in (("slowest_ms", "slowest"), ("all_ms", "all")):
            parts = {part: value[who] for part, value in blame[span].items()}
            bars.append((f"{label}, {name}", parts))
        if why.request is not None:
            story = why.request
            of_request = story.before if span == "before_first_token" else story.after
            bars.append((f"{label}, request {story.name}", of_request))
    return bars


def _blame(ax: Any, blame: dict[str, Any], why: "Why") -> None:
    bars = _bars(blame, why)
    for number, (_, parts) in enumerate(bars):
        left = 0.0
        for part in parts:
            ax.barh(number, parts[part], left=left, color=COLORS[part], height=0.7)
            left += parts[part]
    ax.set_yticks(range(len(bars)), [label for label, _ in bars])
    ax.invert_yaxis()
    ax.set_xlabel("mean ms per request")
    longest = max(sum(parts.values()) for _, parts in bars)
    ax.xaxis.set_major_formatter("{x:,.0f}" if longest >= WHOLE_MS else "{x:g}")
    used = [part for part in PARTS if any(parts.get(part) for _, parts in bars)]
    handles = [ax.barh([0], [0], color=COLORS[part]) for part in used]
    ax.legend(
        handles, [LEGEND[part] for part in used], edgecolor="none", framealpha=0.85, fontsize=8
    )


def _what_ifs(ax: Any, why: "Why") -> None:
    from llmsim.api.why.answer import title

    shown = [one for one in why.what_ifs if one.after is not None][:6]
    labels = ["as it is", *(one.change for one in shown)]
    values = [why.seen.value_ms, *(one.after or 0.0 for one in shown)]
    ax.barh(range(len(values)), values, color=["#9a9891", *["#2a78d6"] * len(shown)], height=0.7)
    ax.set_yticks(range(len(values)), labels, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel(f"{title(why.seen)} (ms)")
    ax.xaxis.set_major_formatter("{x:,.0f}" if max(values) >= WHOLE_MS else "{x:g}")
