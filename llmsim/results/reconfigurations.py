"""Switches of layouts in the summary: what each one cost, item by item, and what each layout did
while it served.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmsim.core import PS_PER_S, Results
from llmsim.exact import exact_sum
from llmsim.plurals import counted
from llmsim.results.requests.metrics import makespan_ps

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlans

DIGITS = 12


def reconfiguration_blocks(results: Results, layouts: "LayoutPlans") -> dict[str, Any]:
    """The keys `reconfigurations` and `layouts` of the summary; times in seconds."""
    names = [plan.name for plan in layouts.plans]
    return {
        "reconfigurations": [_switch(row, names, layouts) for row in results.reconfigurations],
        "layouts": _served(results, names),
    }


def _switch(row: Mapping[str, int], names: Sequence[str], layouts: "LayoutPlans") -> dict[str, Any]:
    moves = layouts.weights[row["from"]][row["to"]]
    opened = row["opened_ps"] >= 0
    return {
        "from": names[row["from"]],
        "to": names[row["to"]],
        "trigger": _trigger(row["trigger"], layouts),
        "asked_s": _s(row["asked_ps"]),
        "drain_s": _s(row["drained_ps"] - row["asked_ps"]),
        "weights_s": _s(row["weights_ps"]),
        "kv_s": _s(row["kv_ps"]),
        "process_s": _s(row["process_ps"]),
        "opened_s": _s(row["opened_ps"]) if opened else None,
        "requests": row["requests"],
        "held_requests": row["held_requests"],
        "kv_tokens": row["kv_tokens"],
        "kv_bytes": row["kv_bytes"],
        "weights_links_bytes": moves.links_bytes,
        "weights_network_bytes": moves.network_bytes,
        "weights_kept_bytes": moves.kept_bytes,
        "weights_host_bytes": moves.host_bytes,
    }


def _trigger(index: int, layouts: "LayoutPlans") -> str:
    if index < 0:
        return "decide"
    when = layouts.switches[index].when
    given = {name: value for name, value in when if value is not None}
    [(name, value)] = given.items()
    if name == "tail":
        return f"tail.finished_share_above {value.finished_share_above:g}"
    return name if value is True else f"{name} {value:g}"


def _served(results: Results, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each time that a layout served, its last steps included, in order."""
    ends = [max(row["asked_ps"], row["drained_ps"]) for row in results.reconfigurations]
    opens = [row["opened_ps"] for row in results.reconfigurations]
    end = _end_ps(results)
    starts = [int(results.requests.arrival_ps.min(initial=0)), *opens]
    stops = [*ends, end]
    bounds = [first for _, first in results.layout_visits] + [len(results.groups)]
    rows = []
    for i, (layout, first) in enumerate(results.layout_visits):
        groups = range(first, bounds[i + 1])
        counters = {
            name: exact_sum(results.counters[name][first : bounds[i + 1]])
            for name in ("generation_tokens", "scheduled_tokens", "steps", "recomputed_tokens")
        }
        span_ps = max(0, min(stops[i], end) - starts[i]) if starts[i] >= 0 else 0
        devices = sum(results.groups[group].num_devices for group in groups)
        busy = sum(
            int(results.counters["busy_ps"][group]) * results.groups[group].num_devices
            for group in groups
        )
        rows.append(
            {
                "layout": names[layout],
                "first_group": first,
                "groups": len(groups),
                "from_s": _s(starts[i]) if starts[i] >= 0 else None,
                "to_s": _s(stops[i]),
                **counters,
                "output_throughput": _per_second(counters["generation_tokens"], span_ps),
                "busy": round(busy / (devices * span_ps), 6) if span_ps and devices else None,
            }
        )
    return rows


def _end_ps(results: Results) -> int:
    span = makespan_ps(results) or 0
    return int(results.requests.arrival_ps.min(initial=0)) + span


def _per_second(amount: int, span_ps: int) -> float | None:
    return round(amount * PS_PER_S / span_ps, 6) if span_ps else None


def _s(ps: int) -> float:
    return round(ps / PS_PER_S, DIGITS)


def switch_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labels and sentences for people, one for each switch."""
    lines = []
    for row in summary.get("reconfigurations", ()):
        if row["opened_s"] is None:
            lines.append(("Switch", f"{row['from']} to {row['to']} has not ended"))
            continue
        total = row["opened_s"] - row["asked_s"]
        parts = ", ".join(f"{name} {row[f'{name}_s']:.3f}" for name in PARTS)
        lines.append(
            (
                "Switch",
                f"{row['from']} to {row['to']} at {row['asked_s']:.3f} s took {total:.3f} s "
                f"({parts}); {counted(row['requests'], 'request')} moved",
            )
        )
    return lines


PARTS = ("drain", "weights", "kv", "process")
