"""The answer of `why` as text."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from llmsim.api.why.seen import PARTS
from llmsim.plurals import counted, grouped, plural

if TYPE_CHECKING:
    from llmsim.api.why.answer import Why
    from llmsim.api.why.request import RequestStory

LEGEND = {
    "api": "API server",
    "queue": "queue",
    "wait": "others' steps",
    "prefill": "prefill",
    "decode": "decode",
    "communication": "collectives",
    "encoder": "encoder",
    "m2n": "attention and FFN rows",
    "offload": "copies and offloads",
    "host": "host",
    "kv_transfer": "KV transfer",
    "preemption": "preemption",
    "reconfigure": "switch of layouts",
    "abandoned": "abandoned",
    "frontend": "front end",
}
MARKS = {
    "api": "a",
    "queue": "q",
    "wait": "w",
    "prefill": "P",
    "decode": "D",
    "communication": "c",
    "encoder": "e",
    "m2n": "m",
    "offload": "o",
    "host": "h",
    "kv_transfer": "k",
    "preemption": "x",
    "reconfigure": "s",
    "abandoned": "-",
    "frontend": "f",
}
WIDTH = 64
MOST_WHAT_IFS = 6
MUCH_MORE = 0.2
"""By how much more of the slowest requests' mean than of the percentile a change takes away, from
which the text says both.
"""


def text_of(why: "Why") -> str:
    """Sections: headline, causes, what-ifs, blame, behind whom, limits, one request."""
    parts = [
        _headline(why),
        _causes(why),
        _what_ifs(why),
        _blame(why.to_dict()["blame"]),
        _behind(why),
        _limits(why),
    ]
    if why.request is not None:
        parts.append(_story(why.request))
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part))) + "\n"


def _headline(why: "Why") -> Iterator[str]:
    from llmsim.api.why.answer import title

    seen = why.seen
    rest = 100 - seen.percentile
    slowest, known = len(seen.cohort), len(seen.known)
    are = plural(slowest, "is", "are")
    requests = counted(known, "request")
    if slowest > seen.reached:  # too few reach the percentile
        cohort = f"the slowest {are} {slowest} of {requests}"
    elif slowest > rest / 100 * known + 1:  # many have the percentile itself
        has = plural(slowest, "has", "have")
        cohort = f"the slowest {are} the {slowest} of {requests} that {has} it or more"
    else:
        cohort = f"the slowest {rest:g} % {are} {slowest} of {requests}"
    yield f"{title(seen)} is {seen.value_ms:,.1f} ms; {cohort}."


def _causes(why: "Why") -> Iterator[str]:
    from llmsim.export.html_report.why_section import no_cause

    if not why.causes:
        yield no_cause([(one.change, one.reduction) for one in why.what_ifs])
    for number, one in enumerate(why.causes, 1):
        where = "" if one.group is None else f", group {one.group}"
        of_percentile = any(other.reduction == one.reduction for other in why.what_ifs)
        of = "" if of_percentile else " of the slowest's mean"
        yield f"Cause {number}: {one.name}{where} (its best remedy: -{one.reduction:.0%}{of})"
        yield f"  {one.evidence}"


def _what_ifs(why: "Why") -> Iterator[str]:
    if not why.what_ifs:
        return
    from llmsim.api.why.answer import title

    yield f"What if (each tested by a run; {title(why.seen)} in ms):"
    for one in why.what_ifs[:MOST_WHAT_IFS]:
        if one.after is None:
            yield f"  {'cannot run':>22}  {one.change}: {one.problem}"
        else:
            change, mean = f"{-one.reduction:+.0%}", ""
            if one.mean_after is not None and one.mean_reduction > one.reduction + MUCH_MORE:
                mean = f"; mean of the slowest {one.mean_before:,.1f} -> {one.mean_after:,.1f}"
            yield f"  {one.before:>9,.1f} ->{one.after:>9,.1f}  {change:>5}  {one.change}{mean}"
    if any(one.before != why.seen.value_ms for one in why.what_ifs[:MOST_WHAT_IFS]):
        yield (
            f"  Where the first number is not {why.seen.value_ms:,.1f}, both leave out the prompts "
            "that go elsewhere."
        )


def _blame(blame: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    before, after = blame["before_first_token"], blame["after_first_token"]
    yield f"{'Mean ms per request':20}{'to the first token':>22}{'after it':>22}"
    yield f"{'':20}{'slowest':>11}{'all':>11}{'slowest':>11}{'all':>11}"
    for part in before:
        row = [one[part][who] for one in (before, after) for who in ("slowest_ms", "all_ms")]
        if any(row):
            yield f"{LEGEND[part]:20}" + "".join(f"{value:>11,.1f}" for value in row)


def _behind(why: "Why") -> Iterator[str]:
    if not why.blockers:
        return
    yield "While the slowest waited for their first token, these prompts ran:"
    for one in why.blockers:
        yield (
            f"  request {why.seen.name(one.row)}: {grouped(one.input_tokens, 'token')}, beside "
            f"{one.delayed} of the slowest"
        )


def _limits(why: "Why") -> Iterator[str]:
    yield (
        f"{'Use while busy':20}{'compute':>9}{'memory':>9}{'network':>9}{'KV peak':>9}{'host':>9}"
        f"{'busy':>9}"
    )
    names = ("compute", "memory_bandwidth", "network", "kv", "host", "busy")
    for row in why.limits[:8]:
        yield f"{'group ' + str(row['group']):20}" + "".join(_percent(row[one]) for one in names)
    if len(why.limits) > 8:
        more = len(why.limits) - 8
        yield f"{more} more {plural(more, 'group')} (--json lists them)"


def _percent(share: float | None) -> str:
    return f"{'-':>9}" if share is None else f"{100 * share:>7.1f} %"


def _story(story: "RequestStory") -> Iterator[str]:
    yield (
        f"Request {story.name}: {story.status} on group {story.group}, arrived at "
        f"{story.arrival_s:.3f} s, {story.input_tokens} prompt and {story.output_tokens} output "
        "tokens"
    )
    for name, time_ms in story.events:
        yield f"  {time_ms:>12,.2f} ms  {name.replace('_', ' ')}"
    for label, parts in (("to the first token", story.before), ("after it", story.after)):
        total = sum(parts.values())
        if total:
            named = ", ".join(
                f"{LEGEND[part]} {value:,.1f}" for part, value in parts.items() if value
            )
            yield f"  {label}: {total:,.1f} ms = {named}"
            yield f"  |{_bar(parts, total)}|"
    used = {part for one in (story.before, story.after) for part, value in one.items() if value}
    yield "  " + "  ".join(f"{MARKS[part]} {LEGEND[part]}" for part in PARTS if part in used)
    for name, tokens, time_ms in story.behind:
        yield f"  behind request {name}: {tokens} prompt tokens, {time_ms:,.1f} ms"


def _bar(parts: Mapping[str, Any], total: float) -> str:
    """One character for each 1/WIDTH of the time, by the part in its middle."""
    ends, at = [], 0.0
    for part in parts:
        at += parts[part]
        ends.append((at, part))
    middles = [(i + 0.5) * total / WIDTH for i in range(WIDTH)]
    return "".join(
        MARKS[next((part for end, part in ends if middle <= end), ends[-1][1])]
        for middle in middles
    )
