"""The summary as text, one screen of it, and the heartbeat line of a running simulation."""

import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmsim.core import PS_PER_S, severity_of
from llmsim.plurals import counted
from llmsim.results.afd import afd_lines
from llmsim.results.error_bars import shown
from llmsim.results.reconfigurations import switch_lines

_LATENCIES = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("ITL", "itl"),
    ("End to end", "e2el"),
    ("Queueing delay", "queueing_delay"),
)
_STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")
_LABEL_WIDTH = 27
_MAX_GROUPS = 8
_MAX_NOTES = 8


def render_summary(summary: Mapping[str, Any], *, rich_terminal: bool) -> str:
    """The text of `llmsim.results.summary`, ending in a line feed: styled for a terminal, or plain
    and stable, one `label: value` per line, for files and grep. "-" stands for a value that does
    not exist.
    """
    return _rich(summary) if rich_terminal else _plain(summary)


def heartbeat(row: Mapping[str, int], *, interval_ps: int, total_blocks: int) -> str:
    """One line about one group over the last `interval_ps`, from a row of the series table
    (llmsim.columns); `total_blocks` counts the null block, which holds nothing.
    """
    prompt = row["prompt_tokens"] * PS_PER_S / interval_ps if interval_ps else 0.0
    generation = row["generation_tokens"] * PS_PER_S / interval_ps if interval_ps else 0.0
    kv = 100 * row["kv_blocks_used"] / max(total_blocks - 1, 1)
    queried = row["queried_tokens"]
    hits = f"{100 * row['hit_tokens'] / queried:.1f} %" if queried else "-"
    return (
        f"[{row['time_ps'] / PS_PER_S:10.1f} s] group {row['group']}: "
        f"prompt {prompt:.1f} tok/s, generation {generation:.1f} tok/s, "
        f"running {row['running']}, waiting {row['waiting']}, KV {kv:.1f} %, prefix hits {hits}"
    )


def _plain(summary: Mapping[str, Any]) -> str:
    lines = [f"{label + ':':<{_LABEL_WIDTH}} {value}" for label, value in _facts(summary)]
    lines.append(
        f"{'Latency (ms):':<{_LABEL_WIDTH}}" + "".join(f"{name:>13}" for name in _STATISTICS)
    )
    for label, values in _latency_rows(summary):
        lines.append(f"{label + ':':<{_LABEL_WIDTH}}" + "".join(f"{value:>13}" for value in values))
    after = (*_machine_facts(summary), *_warnings(summary))
    lines += [f"{label + ':':<{_LABEL_WIDTH}} {value}" for label, value in after]
    return "\n".join(lines) + "\n"


def _rich(summary: Mapping[str, Any]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmsim.config.printing import printable

    def grid(facts: Iterator[tuple[str, str]], style: str = "") -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", min_width=_LABEL_WIDTH)
        table.add_column(style=style, overflow="fold")
        for label, value in facts:
            table.add_row(Text(printable(label)), Text(printable(value)))
        return table

    latency = Table(box=None, padding=(0, 1), pad_edge=False)
    latency.add_column("Latency (ms)", style="dim", min_width=16)
    for name in _STATISTICS:
        latency.add_column(
            name, justify="right", no_wrap=True, style="bold" if name == "mean" else ""
        )
    for label, values in _latency_rows(summary):
        latency.add_row(label, *values)
    # A figure that is cut short is worse than a line that wraps.
    width = max(shutil.get_terminal_size().columns, 80)
    console = Console(file=io.StringIO(), force_terminal=True, highlight=False, width=width)
    console.print(grid(_facts(summary), "bold"), latency, grid(_machine_facts(summary)), sep="\n")
    warnings = list(_warnings(summary))
    if warnings:
        console.print(grid(iter(warnings), "yellow"))
    stream = console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def _facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gone = "".join(
        f"{summary[name]} {name}, " for name in ("cancelled", "refused", "errored") if summary[name]
    )
    requests = (
        f"{summary['completed']} completed, {summary['rejected']} rejected, "
        f"{gone}{summary['unfinished']} unfinished"
    )
    yield "Requests", requests
    yield "Duration (s)", _number(summary["duration"], 3)
    yield "Input tokens", str(summary["total_input_tokens"])
    yield "Output tokens", str(summary["total_output_tokens"])
    yield "Request throughput (req/s)", _number(summary["request_throughput"], 3)
    yield "Output throughput (tok/s)", _number(summary["output_throughput"], 2)
    yield "Total throughput (tok/s)", _number(summary["total_token_throughput"], 2)
    good = summary.get("goodput")
    if good is not None:
        counted = good.get("of", "requests")
        wanted = ", ".join(
            f"{name.upper()} {limit_ms:g} ms {_percent(good['shares'][name])}"
            for name, limit_ms in good["targets_ms"].items()
        )
        wanted = wanted or "targets of the classes"
        yield (
            f"Goodput ({'req' if counted == 'requests' else counted}/s)",
            (
                f"{_number(good['request_goodput'], 3)}, {_percent(good['share'])} of {counted} "
                f"({wanted})"
            ),
        )


def _class_facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of traces whose requests have classes."""
    for name, one in summary.get("classes", {}).items():
        latencies = ", ".join(
            f"{latency.upper()} p50 {_number(one[f'median_{latency}_ms'], 3)} "
            f"p99 {_number(one[f'p99_{latency}_ms'], 3)}"
            for latency in ("ttft", "tpot", "e2el")
        )
        good = one["goodput"]
        met = "" if good is None else f"; {_percent(good['share'])} meet its targets"
        yield f"Class {name} (ms)", f"{one['completed']} of {one['requests']}, {latencies}{met}"


def _session_facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of workloads with hidden rounds."""
    found = summary.get("sessions")
    if found is None:
        return
    count = found["rounds"]
    rounds = f"{counted(count, 'round')}, {found['hidden_rounds']} of them hidden"
    yield "Sessions", f"{found['completed']} of {found['sessions']} completed, {rounds}"
    for label, name in (
        ("aTTFT (ms)", "attft_ms"),
        ("aTPOT (ms)", "atpot_ms"),
        ("Session latency (ms)", "session_e2el_ms"),
    ):
        values = [f"{key} {_number(value, 3)}" for key, value in found[name].items()]
        yield label, ", ".join(values)
    planned = found["hidden_planning_throughput"]["total"]
    yield "Hidden planning throughput (tok/s)", _number(planned, 2)


def _latency_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for label, name in _LATENCIES:
        yield label, [_number(summary[f"{statistic}_{name}_ms"], 3) for statistic in _STATISTICS]


def _machine_facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _class_facts(summary)
    yield from _session_facts(summary)
    yield from switch_lines(summary)
    yield from afd_lines(summary)
    yield from _kv_cache_facts(summary["kv_cache"])
    yield from _utilisation_facts(summary)
    yield from _cache_facts(summary)
    yield (
        "Preemptions",
        f"{summary['preemptions']} ({counted(summary['recomputed_tokens'], 'token')} computed "
        "again)",
    )
    yield from _energy_facts(summary)
    sources = summary["sources"]
    parts = {name: part["share"] for name, part in summary["blame"].items()}
    yield "Latency by cause", _shares(parts)
    yield "Time by source", _shares(_by_family(sources["by_source"]))
    yield "Time by confidence", _shares(sources["by_provenance"]) + _farthest(sources)
    yield "Table interpolation error", _table_error(sources)
    if "system_error" in summary:
        error = summary["system_error"]
        yield f"Real server, {error['level']:.0%}", shown(error)
    elif "without_system_error" in summary:
        yield "Real server", f"no interval: {summary['without_system_error']}"
    broken = [f"{name}: {found}" for name, found in summary["invariants"].items() if found != "ok"]
    yield (
        "Invariants",
        "; ".join(broken) if broken else f"{len(summary['invariants'])} checked, all hold",
    )


def _kv_cache_facts(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for group in groups[:_MAX_GROUPS]:
        longest = group["longest_requests"]
        room = f"room for {longest['at_once']} x {longest['tokens']:,}, " if longest else ""
        yield (
            f"KV cache, group {group['group']}",
            f"{counted(group['num_blocks'], 'block')} of "
            f"{counted(group['block_size_tokens'], 'token')}, {room}"
            f"peak use {_percent(group['peak_usage'])} ({group['model']} on {group['devices']} x "
            f"{group['hardware']})",
        )
    if len(groups) > _MAX_GROUPS:
        yield "KV cache, other groups", f"{len(groups) - _MAX_GROUPS} more (--json lists them)"


def _utilisation_facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for group in summary["utilisation"][:_MAX_GROUPS]:
        yield (
            f"Utilisation, group {group['group']}",
            f"busy {_percent(group['busy'])}, compute (MFU) {_percent(group['mfu'])}, memory "
            f"bandwidth (MBU) {_percent(group['mbu'])}; while busy {_percent(group['mfu_busy'])}, "
            f"{_percent(group['mbu_busy'])}",
        )
    classes = summary["utilisation_by_device"]
    for device in classes if len(summary["utilisation"]) > len(classes) else ():
        yield (
            f"Utilisation, {device['devices']} x {device['hardware']}",
            f"busy {_percent(device['busy'])}, compute (MFU) {_percent(device['mfu'])}, "
            f"memory bandwidth (MBU) {_percent(device['mbu'])}",
        )


def _cache_facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The prefix cache, the KV tiers and the drafts."""
    cache = summary["prefix_cache"]
    hits = (
        f"{cache['hit_tokens']} of {counted(cache['queried_tokens'], 'token')} hit "
        f"({_percent(cache['hit_rate'])})"
    )
    if cache["both_sides_of_hand_overs"]:
        hits += (
            "; prompts that are handed over are looked up in the prefill and in the decode "
            "group, and count twice"
        )
    yield "Prefix cache", hits
    for pool in summary["kv_tiers"][:_MAX_GROUPS]:
        used = (
            _percent(pool["peak_bytes"] / pool["capacity_bytes"]) if pool["capacity_bytes"] else "-"
        )
        recalled = counted(pool["hit_tokens"], "token")
        moved = f"{recalled} recalled, {counted(pool['written_chunks'], 'chunk')} written"
        yield (
            f"KV in {pool['name']}",
            (
                f"{moved}, {pool['evicted_chunks']} given up ({pool['thrashed_chunks']} thrashed), "
                f"peak use {used}"
            ),
        )
    offloaded = summary.get("kv_offloading")
    if offloaded is not None:
        yield (
            "KV offloading",
            f"{counted(offloaded['loaded_tokens'], 'token')} loaded, "
            f"{offloaded['stored_tokens']} stored, {offloaded['evicted_tokens']} evicted, "
            f"{offloaded['refused_tokens']} without room; "
            f"requests passed over {counted(offloaded['deferred_lookups'], 'time')}",
        )
    yield from _host_link_facts(summary.get("host_links", ()))
    drafts = summary.get("speculation")
    if drafts is not None:
        yield (
            "Speculation",
            f"{drafts['accepted_tokens']} of {counted(drafts['drafted_tokens'], 'draft')} "
            f"accepted ({_percent(drafts['acceptance_rate'])}), "
            f"{drafts['acceptance_length']:.3f} tokens per verification",
        )


def _host_link_facts(links: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The links to hosts that were busy longest."""
    used = [one for one in links if one["to_host_bytes"] or one["from_host_bytes"]]
    used.sort(key=lambda one: -max(one["to_host_busy"] or 0, one["from_host_busy"] or 0))
    for one in used[:_MAX_GROUPS]:
        devices = ", ".join(map(str, one["devices"]))
        sent, received = (
            f"{one[f'{way}_host_bytes'] / 1e9:.2f} GB {way} the host "
            f"({_percent(one[f'{way}_host_busy'])} of the time)"
            for way in ("to", "from")
        )
        yield f"Host link, node {one['node']}", f"device {devices}: {sent}, {received}"


def _energy_facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    energy, cost, carbon = summary["energy"], summary["cost"], summary["carbon"]
    if energy is not None:
        grams = "" if carbon is None else f", {carbon['total_g']:.1f} g CO2e"
        yield (
            "Energy",
            f"{energy['total_j']:.1f} J, {_number(energy['j_per_output_token'], 3)} J per output "
            f"token, mean {_number(energy['mean_power_w'], 1)} W, peak "
            f"{_number(energy['peak_power_w'], 1)} W{grams}",
        )
        total = energy["total_j"]
        parts = {
            name: part / total if total else None for name, part in energy["components_j"].items()
        }
        yield "Energy by component", _shares(parts)
    if cost is not None and cost["total"] is not None:
        yield (
            "Cost (USD)",
            f"{cost['total']:.4f}, {_number(cost['per_million_output_tokens'], 3)} per million "
            f"output tokens ({cost['price_per_hour']:g} per hour)",
        )


def _farthest(sources: Mapping[str, Any]) -> str:
    """Where a table was left farthest behind."""
    if not sources["extrapolations"]:
        return ""
    worst = sources["extrapolations"][0]
    return f"; farthest from its table: {worst['operator']}, {worst['beyond']:.1f} x the last point"


def _table_error(sources: Mapping[str, Any]) -> str:
    """Error of the operator tables between and beyond their points."""
    error = sources["table_interpolation_error_percent"]
    return f"{error['half']:.1f} %, nine in ten {error['most']:.1f} %; a system's is larger"


def _warnings(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if summary["interrupted"]:
        yield "Warning", "the run was interrupted: figures cover what had finished by then"
    if summary.get("circular_groups"):
        yield (
            "Warning",
            "the run was ended because it never would: figures cover what had finished by then",
        )
    if summary.get("horizon_s") is not None:
        yield (
            "Horizon",
            (
                f"the run was cut at {summary['horizon_s']:g} s: figures cover what had finished "
                "by then"
            ),
        )
    if summary["rejected"]:
        yield (
            "Warning",
            (
                f"{counted(summary['rejected'], 'request')} can never run: longer than the "
                "model's limit or the KV cache"
            ),
        )
    notes = sorted(summary["notes"], key=severity_of, reverse=True)  # decisions are never left out
    for note in notes[:_MAX_NOTES]:
        yield "Note", note
    if len(notes) > _MAX_NOTES:
        yield "Note", f"{len(notes) - _MAX_NOTES} more (--json lists them)"


def _by_family(shares: Mapping[str, float | None]) -> dict[str, float]:
    """Shares by database or bundle: what comes after its name (table, file, shape) is left to
    --json.
    """
    families: dict[str, float] = {}
    for source, share in shares.items():
        words = source.split()
        known = words[0] in ("aiconfigurator-core", "profile")
        family = " ".join(words[:3]).rstrip(",") if known else source.partition(", n=")[0]
        family = family.rsplit("/", 1)[0] if family.endswith(".csv") else family
        families[family] = families.get(family, 0.0) + (share or 0.0)
    return families


def _shares(shares: Mapping[str, float | None]) -> str:
    present = [f"{name} {_percent(share)}" for name, share in shares.items() if share]
    return ", ".join(present) or "-"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
