"""Sections of the machine: network, power, cost, configuration, provenance, accuracy."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from llmsim.columns import PowerColumns
from llmsim.core import PS_PER_S
from llmsim.export.html_report.charts import (
    Axis,
    Line,
    bar_chart,
    line_chart,
    number_text,
    stacked_bars,
)
from llmsim.export.html_report.runs import Run
from llmsim.export.html_report.tables import compared, percent, table

Runs = Sequence[Run]
MOST_OPERATORS = 8
PROVENANCE = ("measured", "interpolated", "extrapolated", "scaled", "analytic")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "broadcast")
"""Beginnings or parts of the names of operators that move data between devices."""


def network(runs: Runs) -> str:
    """Collectives' share of the busy time, KV transfers between groups, and links to hosts."""
    rows: list[list[str]] = [
        ["Collectives, share of busy time", *(percent(_collectives(run)) for run in runs)],
        [
            "Collectives, mean ms per request",
            *(_mean_blame(run, "communication") for run in runs),
        ],
    ]
    if any(run.summary["kv_transfer"] for run in runs):
        rows += _kv_rows(runs)
    if any("host_links" in run.summary for run in runs):
        rows += _host_link_rows(runs)
    charts = [
        bar_chart(f"Busy time by operator{_of(run, runs)}", _operators(run), "%") for run in runs
    ]
    return table(["", *(run.name for run in runs)], rows, "numbers") + _grid(charts)


def _kv_rows(runs: Runs) -> Iterator[list[str]]:
    """What moved between groups, and how long it took."""
    moved = [run.summary["kv_transfer"] for run in runs]
    sizes = ("-" if one is None else number_text(one["bytes"] / 1e9) for one in moved)
    yield ["KV moved (GB)", *sizes]
    for statistic in ("mean", "p99"):
        values = [None if one is None else one[f"{statistic}_transfer_ms"] for one in moved]
        yield [f"KV transfer, {statistic} (ms)", *compared(values)]


def _host_link_rows(runs: Runs) -> Iterator[list[str]]:
    """What the links to hosts carried, and how busy the busiest one was."""
    of_runs = [run.summary.get("host_links", ()) for run in runs]
    for way in ("to", "from"):
        moved = [sum(one[f"{way}_host_bytes"] for one in links) / 1e9 for links in of_runs]
        busy = ([one[f"{way}_host_busy"] or 0 for one in links] for links in of_runs)
        yield [f"Links {way} hosts (GB)", *map(number_text, moved)]
        yield [f"Links {way} hosts, busiest", *(percent(max(one, default=None)) for one in busy)]


def utilisation(runs: Runs) -> str:
    """Compute and memory bandwidth of each group while busy."""
    rows = []
    for run in runs:
        caches = {one["group"]: one for one in run.summary["kv_cache"]}
        for one in run.summary["utilisation"][:16]:
            cache = caches[one["group"]]
            rows.append(
                [
                    f"{run.name}, group {one['group']}" if len(runs) > 1 else str(one["group"]),
                    f"{cache['devices']} x {cache['hardware']}",
                    percent(one["busy"]),
                    percent(one["mfu_busy"]),
                    percent(one["mbu_busy"]),
                    percent(cache["peak_usage"]),
                ]
            )
    head = ["Group", "Devices", "Busy", "Compute (MFU)", "Memory bandwidth (MBU)", "KV peak"]
    return table(head, rows, "numbers")


def power(runs: Runs) -> str:
    """Power over time and energy by component, where nodes say what they draw."""
    known = [run for run in runs if run.summary["energy"] is not None]
    if not known:
        return "<p>No node says what it draws (<code>power</code> of the cluster file).</p>"
    lines = [_power_line(run) for run in known]
    charts = [line_chart("Power", lines, Axis("s"), Axis("W", low=0)), _energy_bars(known)]
    figures = (
        ("Energy (J)", "total_j"),
        ("J per output token", "j_per_output_token"),
        ("Mean power (W)", "mean_power_w"),
        ("Peak power (W)", "peak_power_w"),
    )
    rows = [
        [label, *compared([run.summary["energy"][name] for run in known])]
        for label, name in figures
    ]
    return _grid(charts) + table(["", *(run.name for run in known)], rows, "numbers")


def _energy_bars(known: list[Run]) -> str:
    names = list(known[0].summary["energy"]["components_j"])
    bars = [
        (run.name, [float(run.summary["energy"]["components_j"].get(name, 0)) for name in names])
        for run in known
    ]
    parts = [(name, number) for number, name in enumerate(names)]
    return stacked_bars("Energy by component", bars, parts)


def _power_line(run: Run) -> Line:
    """The power of all nodes together over time."""
    watts = [one.name for one in PowerColumns.COLUMNS if one.unit == "W"]
    times, where = np.unique(run.power["time_ps"], return_inverse=True)
    drawn = sum(np.asarray(run.power[name], dtype=float) for name in watts)
    total = np.bincount(where, weights=drawn, minlength=len(times))
    return Line(run.name, times / PS_PER_S - run.start_s, total.astype(float), run.number, True)


def cost(runs: Runs) -> str:
    """Prices and carbon, where they are known."""
    blocks = [run.summary["cost"] for run in runs]
    if not any(blocks):
        return "<p>No device of these runs has a price (<code>price_per_device_hour</code>).</p>"
    figures = (
        ("Price per hour (USD)", "price_per_hour"),
        ("Cost of the run (USD)", "total"),
        ("USD per million output tokens", "per_million_output_tokens"),
        ("USD per million tokens", "per_million_tokens"),
    )
    rows = [[label, *compared(_figures(blocks, name))] for label, name in figures]
    carbon = [run.summary["carbon"] for run in runs]
    if any(carbon):
        rows.append(["Carbon (g CO2e)", *compared(_figures(carbon, "total_g"))])
    priced = [group for block in filter(None, blocks) for group in block["groups"]]
    sources = {
        f"{group['hardware']}: {group['price_per_device_hour']} USD/h, {group['source']}"
        for group in priced
    }
    listed = "".join(f"<li>{escape(one)}</li>" for one in sorted(sources))
    return table(["", *(run.name for run in runs)], rows, "numbers") + f"<ul>{listed}</ul>"


def _figures(blocks: Sequence[dict[str, Any] | None], name: str) -> list[Any]:
    """One figure of each block; None where there is no block."""
    return [None if block is None else block[name] for block in blocks]


def configuration(runs: Runs) -> str:
    """What was run: groups, options that were given, the cluster file, the command."""
    parts = []
    for run in runs:
        heading = f"<h3>{escape(run.name)}</h3>" if len(runs) > 1 else ""
        parts.append(heading + _groups(run) + _given(run))
    return "".join(parts)


def provenance(runs: Runs) -> str:
    """Where operator times come from, and the files that were read."""
    bars = [
        (
            run.name,
            [float(run.summary["sources"]["by_provenance"][name] or 0) for name in PROVENANCE],
        )
        for run in runs
    ]
    colors = [(name, color) for name, color in zip(PROVENANCE, (1, 0, 2, 3, 4), strict=True)]
    chart = stacked_bars("Busy time by source of the operator times", bars, colors)
    parts = [chart]
    for run in runs:
        sources = [
            [source, percent(share)]
            for source, share in list(run.summary["sources"]["by_source"].items())[:12]
        ]
        files = [
            [one["path"], f"{one['bytes']:,}" if one["bytes"] is not None else "-", one["sha256"]]
            for one in run.tables.manifest.get("inputs", ())
        ]
        name = _of(run, runs)
        parts.append(
            f"<details><summary>Sources and files{escape(name)}</summary>"
            + table(["Source", "Share"], sources)
            + table(["File", "Bytes", "SHA-256"], files, "files")
            + f"<p>llmsim {escape(run.tables.version)}, seed {run.tables.seed}, "
            f"{len(run.tables.manifest.get('files', ()))} files were read.</p></details>"
        )
    return "".join(parts)


def accuracy(runs: Runs) -> str:
    """The interval of the operator tables, validity, invariants and notes."""
    rows = []
    for run in runs:
        error = run.summary["sources"]["table_interpolation_error_percent"]
        broken = [name for name, found in run.summary["invariants"].items() if found != "ok"]
        checked = len(run.summary["invariants"])
        rows.append(
            [
                run.name,
                f"half of the operators within {error['half']:.1f} %",
                f"nine in ten within {error['most']:.1f} %",
                f"{checked} hold" if not broken else f"broken: {', '.join(broken)}",
            ]
        )
    head = ["Run", "Operator tables", "", "Invariants"]
    notes = "".join(
        f"<li>{escape(run.name)}: {escape(note)}</li>"
        for run in runs
        for note in run.summary["notes"]
    )
    return (
        table(head, rows)
        + "<p>The interval is that of operator times between and beyond measured points. The error "
        "of a whole system is larger; <code>llmsim validate</code> measures it on a log.</p>"
        + (f"<details><summary>Notes</summary><ul>{notes}</ul></details>" if notes else "")
    )


def _groups(run: Run) -> str:
    rows = []
    for group in run.config.get("groups", ())[:32]:
        layout = f"TP {group['tp']}, PP {group['pp']}" + (
            f", EP {group['ep']}" if group.get("ep") else ""
        )
        role = group.get("pd_type") or "prefill and decode"
        rows.append(
            [
                str(group["index"]),
                str(group["model_name"]),
                f"{group['num_devices']} x {group['hardware']}",
                layout,
                str(role),
            ]
        )
    return table(["Group", "Model", "Devices", "Layout", "Role"], rows)


def _given(run: Run) -> str:
    asked = run.tables.manifest.get("run", {})
    options = dict(asked.get("options", {})) | {"dataset": run.summary["workload"]["source"]}
    router = run.config.get("router")
    if router is not None:
        options["router"] = router
    rows = [[name, _plain(value)] for name, value in sorted(options.items())]
    engine = _engine(run)
    text = asked.get("cluster", {}).get("text", "")
    file = f"<details><summary>Cluster file</summary><pre>{escape(text)}</pre></details>"
    options_of = table(["Engine option", "Value", "From"], engine)
    more = f"<details><summary>Engine options of group 0</summary>{options_of}</details>"
    return table(["Given", ""], rows) + (more if engine else "") + (file if text else "")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _engine(run: Run) -> list[list[str]]:
    groups = run.config.get("groups", ())
    if not groups:
        return []
    engine = groups[0]["engine"]
    origin = engine.get("origin", {})
    return [
        [name, str(value)[:80], str(origin.get(name, ""))]
        for name, value in engine.items()
        if name != "origin" and value not in (None, [], ())
    ]


def _operators(run: Run) -> list[tuple[str, float, int]]:
    shares: dict[str, float] = {}
    for one in run.summary["sources"]["operators"]:
        shares[one["operator"]] = shares.get(one["operator"], 0.0) + (one["share"] or 0.0)
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:MOST_OPERATORS]
    return [
        (name, 100 * share, 3 if _is_collective(name) else run.number) for name, share in ranked
    ]


def _collectives(run: Run) -> float:
    return sum(
        one["share"] or 0.0
        for one in run.summary["sources"]["operators"]
        if _is_collective(one["operator"])
    )


def _is_collective(name: str) -> bool:
    return any(part in name for part in COLLECTIVES)


def _mean_blame(run: Run, part: str) -> str:
    return number_text(run.summary["blame"][part]["mean_ms"])


def _of(run: Run, runs: Runs) -> str:
    return f", {run.name}" if len(runs) > 1 else ""


def _grid(charts: Sequence[Any]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'
