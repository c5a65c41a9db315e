"""The section that says why requests are slow: causes that runs have confirmed, changes that were
tested, and what the slowest requests wait for.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from llmsim.export.html_report.charts import number_text, stacked_bars
from llmsim.export.html_report.results_sections import LEGEND, PART_COLORS
from llmsim.export.html_report.runs import PARTS, Run
from llmsim.export.html_report.tables import table
from llmsim.plurals import counted

MOST_CHANGES, MOST_AHEAD = 8, 5
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end-to-end latency"}
SIDES = (("before_first_token", "to the first token"), ("after_first_token", "after it"))


def why(runs: Sequence[Run]) -> str:
    """An answer for each run that has one; how to get it for the others."""
    several = len(runs) > 1
    return "".join(
        (f"<h3>{escape(run.name)}</h3>" if several else "")
        + (_command(run) if run.why is None else _answer(run.why))
        for run in runs
    )


def _command(run: Run) -> str:
    return (
        "<p>The changes that would help were not tested for this report; "
        f"<code>llmsim why {escape(str(run.folder))}</code> tests them, and "
        "<code>llmsim report --why ttft</code> shows them here.</p>"
    )


def _answer(found: Mapping[str, Any]) -> str:
    slow = found["slowest"]
    head = (
        f"<p>{TITLES[found['metric']]} at percentile {found['percentile']:g} is "
        f"{number_text(found['value_ms'], 4)} ms; "
        f"{counted(slow['requests'], 'request is', 'requests are')} at least as slow. "
        "A cause is named where a run without it takes a quarter of that time away.</p>"
    )
    return head + _causes(found) + _bars(found["blame"]) + _changes(found) + _ahead(found)


QUARTER = 0.25


def no_cause(changes: Iterable[tuple[str, float]]) -> str:
    """Why no cause is named, from the changes that were tested and the part that each takes away:
    none takes much, or one does that would shorten every run's tail.
    """
    change, most = max(changes, key=lambda one: one[1], default=("", 0.0))
    if not change:
        return "No cause is named, as no change was tested."
    if most < QUARTER:
        return "No single cause: no change that was tested takes a quarter of it away."
    return (
        f"No single cause: {change} would take {most:.0%} away, as more devices shorten every "
        "tail, which alone does not show that devices are short."
    )


def _causes(found: Mapping[str, Any]) -> str:
    if not found["causes"]:
        tested = [
            (one["change"], 1 - one["after"] / one["before"])
            for one in found["what_ifs"]
            if one["after"] is not None and one["before"]
        ]
        return f"<p>{escape(no_cause(tested))}</p>"
    rows = [
        [
            one["name"] if one["group"] is None else f"{one['name']}, group {one['group']}",
            one["evidence"],
            f"-{100 * one['reduction']:.0f} %",
        ]
        for one in found["causes"]
    ]
    return table(["Cause", "What shows it", "Its best remedy"], rows)


def _bars(blame: Mapping[str, Any]) -> str:
    """What the slowest requests wait for, and what all do."""
    parts = list(blame["before_first_token"])
    rows = [
        (f"{who}, {label}", [blame[side][part][f"{key}_ms"] for part in parts])
        for side, label in SIDES
        for who, key in (("slowest", "slowest"), ("all", "all"))
    ]
    styles = dict(zip(PARTS, zip(LEGEND, PART_COLORS, strict=True), strict=True))
    names = [styles.get(part, (part.replace("_", " "), styles["api"][1])) for part in parts]
    return stacked_bars("What they wait for", rows, names)


def _changes(found: Mapping[str, Any]) -> str:
    rows = [
        [
            one["change"],
            number_text(one["before"], 4),
            number_text(one["after"], 4),
            f"cannot run: {one['problem']}"
            if one["after"] is None
            else f"{100 * (one['after'] / one['before'] - 1):+.0f} %",
        ]
        for one in found["what_ifs"][:MOST_CHANGES]
        if one["before"]
    ]
    return table(["Change, tested by a run", "ms without", "ms with", "Difference"], rows)


def _ahead(found: Mapping[str, Any]) -> str:
    rows = [
        [
            one["request_id"],
            str(one["input_tokens"]),
            str(one["delayed_requests"]),
            number_text(one["overlap_ms"], 4),
        ]
        for one in found["behind"][:MOST_AHEAD]
    ]
    head = ["Prompt that ran before them", "tokens", "slowest that waited", "ms beside them"]
    return table(head, rows)
