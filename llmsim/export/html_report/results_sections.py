"""Sections of the results: headline, targets, latencies, queues, steps, blame."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from llmsim.core import PS_PER_MS, PS_PER_S
from llmsim.export.html_report.charts import Axis, Line, line_chart, stacked_bars
from llmsim.export.html_report.runs import PARTS, Floats, Run
from llmsim.export.html_report.tables import compared, percent, table

Runs = Sequence[Run]
HEADLINE: tuple[tuple[str, Callable[[Any], float | None]], ...] = (
    ("Requests completed", lambda s: s["completed"]),
    ("Duration (s)", lambda s: s["duration"]),
    ("Requests per second", lambda s: s["request_throughput"]),
    ("Output tokens per second", lambda s: s["output_throughput"]),
    ("TTFT p50 (ms)", lambda s: s["median_ttft_ms"]),
    ("TTFT p99 (ms)", lambda s: s["p99_ttft_ms"]),
    ("TPOT p50 (ms)", lambda s: s["median_tpot_ms"]),
    ("TPOT p99 (ms)", lambda s: s["p99_tpot_ms"]),
    ("End to end p50 (ms)", lambda s: s["median_e2el_ms"]),
    ("End to end p99 (ms)", lambda s: s["p99_e2el_ms"]),
    ("Queueing delay p99 (ms)", lambda s: s["p99_queueing_delay_ms"]),
    ("Preemptions", lambda s: s["preemptions"]),
    ("Prefix cache hits (%)", lambda s: _times_100(s["prefix_cache"]["hit_rate"])),
    ("Tokens of KV loaded from host", lambda s: _of(s.get("kv_offloading"), "loaded_tokens")),
    ("Switches of layouts", lambda s: len(s.get("reconfigurations") or ()) or None),
    ("USD per million output tokens", lambda s: _of(s["cost"], "per_million_output_tokens")),
    ("J per output token", lambda s: _of(s["energy"], "j_per_output_token")),
)
LATENCIES = (
    ("ttft", "Time to first token"),
    ("tpot", "Time per output token"),
    ("e2el", "End to end"),
    ("queueing", "Queueing delay"),
)
LEGEND = (
    "API server",
    "queue",
    "others' steps",
    "prefill",
    "decode",
    "collectives",
    "encoder",
    "attention and FFN rows",
    "copies and offloads",
    "host",
    "KV transfer",
    "preemption",
    "switch of layouts",
    "abandoned",
)
PART_COLORS = (7, 2, 6, 0, 1, 3, 2, 5, 0, 6, 5, 4, 4, 7)
MOST_GROUPS = 8


def headline(runs: Runs) -> str:
    """The first figures of all runs, as tiles for one run and as a table for several."""
    if len(runs) > 1:
        rows = [
            [label, *compared([of(run.summary) for run in runs])]
            for label, of in HEADLINE
            if any(of(run.summary) is not None for run in runs)
        ]
        return table(["", *(run.name for run in runs)], rows, "numbers")
    summary = runs[0].summary
    tiles = "".join(
        f"<div><b>{compared([of(summary)])[0]}</b><span>{label}</span></div>"
        for label, of in HEADLINE
        if of(summary) is not None
    )
    return f'<div class="tiles">{tiles}</div>'


def targets(runs: Runs) -> str:
    """Which share of the requests met the targets."""
    rows = []
    for run in runs:
        good = run.summary["goodput"]
        if good is None:
            continue
        for name, limit in good["targets_ms"].items():
            share = percent(good["shares"][name])
            rows.append([run.name, f"{name.upper()} within {limit:g} ms", share])
        rows += [[run.name, *cells] for cells in _class_targets(run.summary)]
        both = f"{percent(good['share'])}, {compared([good['request_goodput']])[0]} requests/s"
        rows.append([run.name, "all targets", both])
    if not rows:
        return (
            "<p>The runs have no latency targets; "
            "<code>llmsim run --goodput ttft:1000,tpot:40</code> sets them.</p>"
        )
    return table(["Run", "Target", "Requests that meet it"], rows)


def _class_targets(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(target, share) of each class of requests."""
    for name, one in summary.get("classes", {}).items():
        good = one["goodput"]
        for latency, limit in {} if good is None else good["targets_ms"].items():
            share = percent(good["shares"][latency])
            yield f"{name}: {latency.upper()} within {limit:g} ms", share


def latencies(runs: Runs) -> str:
    """Distributions of the three latencies, and their percentiles."""
    charts = []
    for metric, label in LATENCIES:
        lines = [
            Line(run.name, values, np.linspace(100 / len(values), 100, len(values)), run.number)
            for run in runs
            if len(values := run.latency_ms(metric))
        ]
        charts.append(
            line_chart(label, lines, Axis("ms", log=True), Axis("% of requests", low=0, high=100))
        )
    rows = []
    for metric, label in (*LATENCIES, ("itl", "Inter-token latency")):
        name = "queueing_delay" if metric == "queueing" else metric
        for statistic in ("mean", "median", "p90", "p95", "p99"):
            figures = [run.summary[f"{statistic}_{name}_ms"] for run in runs]
            rows.append([f"{label}, {statistic} (ms)", *compared(figures)])
    numbers = table(["", *(run.name for run in runs)], rows, "numbers")
    return _grid(charts) + f"<details><summary>Percentiles</summary>{numbers}</details>"


def load(runs: Runs) -> str:
    """Running and waiting requests, KV cache and throughput over time."""
    columns = (
        ("running", "Running requests", "requests", 1.0),
        ("waiting", "Waiting requests", "requests", 1.0),
        ("generation_tokens", "Output tokens", "tokens/s", 0.0),
    )
    charts = [
        line_chart(title, lines, Axis("s"), Axis(unit, low=0))
        for column, title, unit, factor in columns
        if (lines := [_over_time(run, column, factor) for run in runs])
    ]
    charts.append(line_chart("KV cache in use", _kv(runs), Axis("s"), Axis("%", low=0)))
    return _grid(charts)


def steps(runs: Runs) -> str:
    """How long steps take and how large their batches are."""
    durations, sizes = [], []
    for run in runs:
        if not len(run.steps.get("start_ps", ())):
            continue
        worked = (run.steps["tokens"] > 0) & (run.steps["end_ps"] >= 0)  # to their ends
        took = (run.steps["end_ps"] - run.steps["start_ps"])[worked] / PS_PER_MS
        share = np.linspace(100 / max(len(took), 1), 100, len(took))
        durations.append(Line(run.name, np.sort(took), share, run.number))
        batch = np.sort(run.steps["sequences"][worked]).astype(float)
        sizes.append(Line(run.name, batch, share, run.number))
    whole = Axis("% of steps", low=0, high=100)
    charts = [
        line_chart("Duration of steps", durations, Axis("ms", log=True), whole),
        line_chart("Sequences in a step", sizes, Axis("sequences", low=0), whole),
    ]
    rows = [
        ["Steps", *(f"{run.summary['steps']:,}" for run in runs)],
        ["CUDA graph of all of it", *(f"{run.summary['graphs']['full_graph']:,}" for run in runs)],
        [
            "CUDA graphs around attention",
            *(f"{run.summary['graphs']['piecewise_graph']:,}" for run in runs),
        ],
        ["Without graph", *(f"{run.summary['graphs']['without_graph']:,}" for run in runs)],
    ]
    return _grid(charts) + table(["", *(run.name for run in runs)], rows, "numbers")


def blame(runs: Runs) -> str:
    """Where the latency went, of all requests and of the slowest hundredth."""
    rows = []
    for run in runs:
        for slowest, label in ((False, "all"), (True, "slowest 1 %")):
            name = label if len(runs) == 1 else f"{run.name}, {label}"
            rows.append((name, run.parts_ms(slowest)))
    parts = list(zip(LEGEND, PART_COLORS, strict=True))
    chart = stacked_bars("Parts of the end-to-end latency", rows, parts)
    numbers = [
        [legend, *(compared([values[index]])[0] for _, values in rows)]
        for index, legend in enumerate(LEGEND)
        if any(values[index] for _, values in rows)
    ]
    assert len(PARTS) == len(LEGEND)
    head = ["Mean ms per request", *(name for name, _ in rows)]
    return chart + table(head, numbers, "numbers")


def _over_time(run: Run, column: str, factor: float) -> Line:
    """The sum over the groups at each time; without a factor, per second of the interval."""
    series = run.tables.series
    times, where = np.unique(series["time_ps"], return_inverse=True)
    counted = np.bincount(where, weights=series[column], minlength=len(times))
    total: Floats = counted.astype(float)
    seconds = times / PS_PER_S - run.start_s
    if not factor:
        before = np.concatenate(([0.0], seconds[:-1])) if len(seconds) else seconds
        total = total / np.maximum(seconds - before, 1e-9)
    return Line(run.name, seconds, total * (factor or 1.0), run.number)


def _kv(runs: Runs) -> list[Line]:
    """A line for each group of a single run, and each run's fullest group for several."""
    lines = []
    for run in runs:
        series = run.tables.series
        usable = {g["group"]: max(g["num_blocks"] - 1, 1) for g in run.summary["kv_cache"]}
        share = (
            100 * series["kv_blocks_used"] / [usable[int(g)] for g in series["group"]]
            if len(series["group"])
            else np.zeros(0)
        )
        if len(runs) > 1 or len(usable) > MOST_GROUPS:
            times, where = np.unique(series["time_ps"], return_inverse=True)
            most = np.zeros(len(times))
            np.maximum.at(most, where, share)
            name = f"{run.name}, fullest group"
            lines.append(Line(name, times / PS_PER_S - run.start_s, most, run.number))
            continue
        for group in sorted(usable):
            mine = series["group"] == group
            seconds = series["time_ps"][mine] / PS_PER_S - run.start_s
            lines.append(Line(f"group {group}", seconds, share[mine], group))
    return lines


def _grid(charts: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'


def _times_100(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _of(block: Any, name: str) -> float | None:
    value: float | None = None if block is None else block.get(name)
    return value
