"""The answer of a run in at most eight lines: what was served, how fast, what limits it, how sure.

`llmsim.results.printed.text` has everything else (`llmsim run -v`).
"""

import io
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from llmsim.core import Severity, severity_of
from llmsim.plurals import counted
from llmsim.results.error_bars import between

MOST_LINES = 8
NARROW = 80
"""Columns of the narrowest terminal that shows a headline without folding its lines."""
_LABEL_WIDTH = 9
_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2el"))


class Line(Struct, frozen=True):
    """A line of the headline; lines of a lower rank stay where there are too many."""

    label: str
    text: str
    rank: int
    style: str = ""


def render_headline(summary: Mapping[str, Any], *, rich_terminal: bool) -> str:
    """At most MOST_LINES lines, ending in a line feed; styled for a terminal, or plain."""
    lines = headline(summary)
    if not rich_terminal:
        return "".join(f"{f'{line.label}:':<{_LABEL_WIDTH}} {line.text}\n" for line in lines)
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmsim.config.printing import printable

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(Text(line.label), Text(printable(line.text), style=line.style))
    width = max(shutil.get_terminal_size().columns, NARROW)
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, highlight=False, width=width).print(table)
    return stream.getvalue()


def headline(summary: Mapping[str, Any]) -> list[Line]:
    """The lines, in their order; where there are too many, the least important are left out."""
    lines = [*_served(summary), *_latencies(summary), *_sessions(summary), *_goodput(summary)]
    lines += _warnings(summary)
    lines += [*_limits(summary), *_money(summary), *_trust(summary)]
    more = Line("More", _more(summary), 0, "dim")
    kept = sorted(lines, key=lambda line: line.rank)[: MOST_LINES - 1]
    return [line for line in lines if line in kept] + [more]


def decisive_notes(summary: Mapping[str, Any]) -> list[str]:
    """Notes that change what a reader should do."""
    return [note for note in summary["notes"] if severity_of(note) is Severity.DECISION]


def _served(summary: Mapping[str, Any]) -> Iterator[Line]:
    asked = summary["workload"]["requests"]
    rates = (
        f"{_number(summary['request_throughput'])} req/s, "
        f"{_number(summary['output_throughput'])} output tok/s"
        f"{_in_brackets(summary, 'output_throughput')}"
    )
    ended = f"in {_number(summary['duration'])} s: {rates}"
    whole = f"{summary['completed']} of {counted(asked, 'request')} {ended}"
    short = f"{summary['completed']} of {asked} {ended}"
    text = whole if _LABEL_WIDTH + 1 + len(whole) <= NARROW else short
    yield Line("Served", text, 0, "bold")


def _latencies(summary: Mapping[str, Any]) -> Iterator[Line]:
    for label, name in _LATENCIES:
        values = [
            f"{title} {_number(summary[f'{statistic}_{name}_ms']):>7}"
            for title, statistic in (("p50", "median"), ("p90", "p90"), ("p99", "p99"))
        ]
        mean = _number(summary[f"mean_{name}_ms"])
        real = _in_brackets(summary, f"mean_{name}_ms")
        yield Line(label, f"{'  '.join(values)}  mean {mean:>7} ms{real}", 0, "bold")


def _in_brackets(summary: Mapping[str, Any], name: str) -> str:
    """What nine in ten real servers have, where that is known."""
    error = summary.get("system_error", {})
    return f" ({between(error, name)})" if name in error else ""


def _sessions(summary: Mapping[str, Any]) -> Iterator[Line]:
    """Where the workload has hidden rounds, the visible answer's first token counts."""
    sessions = summary.get("sessions")
    if sessions is None:
        return
    attft = sessions["attft_ms"]
    shown = "  ".join(f"{name} {_number(attft[name]):>7}" for name in ("p50", "p90", "p99"))
    yield Line("aTTFT", f"{shown}  mean {_number(attft['mean']):>7} ms", 0, "bold")


def _goodput(summary: Mapping[str, Any]) -> Iterator[Line]:
    good = summary["goodput"]
    if good is None:
        return
    classes = ", ".join(_of_classes(summary))
    wanted = ", ".join([*_targets(good), *([f"class targets ({classes})"] if classes else [])])
    counted = good.get("of", "req")
    met = good["share"] is not None and good["share"] >= 0.99
    yield Line(
        "Goodput",
        f"{_number(good['request_goodput'])} {counted}/s ({_percent(good['share'])}) meet {wanted}",
        1,
        "green" if met else "yellow",
    )


def _targets(good: Mapping[str, Any]) -> Iterator[str]:
    for name, limit in good["targets_ms"].items():
        yield f"{_title(name)} {limit:g} ms ({_percent(good['shares'][name])})"


def _of_classes(summary: Mapping[str, Any]) -> Iterator[str]:
    """Where requests have classes, the share of each that meets the class's targets."""
    for name, one in summary.get("classes", {}).items():
        if one["goodput"] is not None:
            yield f"{name} {_percent(one['goodput']['share'])}"


def _title(latency: str) -> str:
    return "aTTFT" if latency == "attft" else latency.upper()


def _warnings(summary: Mapping[str, Any]) -> Iterator[Line]:
    said = [
        *(["the run was interrupted: figures cover what had finished"] * summary["interrupted"]),
        *(
            ["requests preempt each other for ever: the run was ended"]
            * bool(summary["circular_groups"])
        ),
    ]
    ends = ("rejected", "refused", "cancelled", "errored", "unfinished")
    lost = {name: summary[name] for name in ends}
    named = ", ".join(f"{count} {name}" for name, count in lost.items() if count)
    said += [f"requests without an answer: {named}"] if named else []
    said += [f"invariant {name}: {found}" for name, found in _broken(summary)]
    said += decisive_notes(summary)
    if len(said) > 2:
        said = [said[0], f"{said[1]} (and {len(said) - 2} more, -v lists them)"]
    for text in said:
        yield Line("Note", text, 1, "yellow")


def _limits(summary: Mapping[str, Any]) -> Iterator[Line]:
    used = summary["utilisation"]
    caches = summary["kv_cache"]
    kv = max((group["peak_usage"] or 0.0 for group in caches), default=None)
    parts = []
    if used:
        most = max(used, key=lambda one: one["busy"] or 0.0)
        where = f"group {most['group']} " if len(used) > 1 else ""
        parts.append(
            f"{where}busy {_percent(most['busy'])}, MFU {_percent(most['mfu'])}, "
            f"MBU {_percent(most['mbu'])}"
        )
    parts.append(f"KV peak {_percent(kv)}")
    if summary["preemptions"]:
        parts.append(f"{counted(summary['preemptions'], 'preemption')}")
    switches = len(summary.get("reconfigurations") or ())
    if switches:
        parts.append(f"{counted(switches, 'switch', 'switches')}")
    yield Line("Limits", ", ".join(parts), 2)


def _money(summary: Mapping[str, Any]) -> Iterator[Line]:
    cost, energy = summary["cost"], summary["energy"]
    parts = []
    if cost is not None and cost["per_million_output_tokens"] is not None:
        parts.append(
            f"{_number(cost['per_million_output_tokens'])} USD per million output tokens, "
            f"{cost['price_per_hour']:g} USD/h"
        )
    if energy is not None:
        parts.append(f"{_number(energy['j_per_output_token'])} J per output token")
    if parts:
        yield Line("Cost", "; ".join(parts), 3)


def _trust(summary: Mapping[str, Any]) -> Iterator[Line]:
    """Where operator times come from, and how far the tables are off between their points."""
    sources = summary["sources"]
    shares = {name: share or 0.0 for name, share in sources["by_provenance"].items()}
    if not any(shares.values()):  # no step ran
        return
    known = sum(shares.pop(name) for name in ("measured", "interpolated"))
    most = max(shares, key=lambda name: shares[name])
    from_elsewhere = f"{_percent(shares[most])} {most}" if shares[most] > known else ""
    where = f"{_percent(known)} measured or interpolated"
    error = sources["table_interpolation_error_percent"]
    off = f"off by {error['half']:.1f} % (half), {error['most']:.1f} % (90 %)"
    if "system_error" in summary:
        where, off = from_elsewhere or where, "in brackets: 9 in 10 real servers"
    elif from_elsewhere:
        off = from_elsewhere
    tables = sum(
        share for source, share in sources["by_source"].items() if source.startswith("cost table ")
    )
    given = f"; {_percent(tables)} from cost tables" if tables else ""
    yield Line("Times", f"{where}; {off}{given}", 2)


def _more(summary: Mapping[str, Any]) -> str:
    hidden = len(summary["notes"]) - len(decisive_notes(summary))
    notes = f", {hidden} notes" if hidden > 1 else ", 1 note" if hidden else ""
    return f"-v: memory, options, causes, sources{notes}; --json: everything"


def _broken(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, found) for name, found in summary["invariants"].items() if found != "ok"]


def _number(value: float | None) -> str:
    """Three significant digits, more for large numbers."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
