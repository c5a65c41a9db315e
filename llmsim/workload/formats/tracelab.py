"""TraceLab (UW): JSON Lines, one round of a coding agent each, with how much of its prompt repeats the round before.

A session begins at its first timing event; later rounds come after the recorded time between the last event of one
round and the first of the next (the tools and the person), or after its tools' wall time where events are missing.
"""

from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import json_lines, scaled_ns
from llmsim.workload.formats.table import Source, Table

NAME, TITLE = "tracelab", "TraceLab"
Count = Annotated[int, Meta(ge=0)]


class Event(msgspec.Struct, gc=False):
    timestamp: str | float | None = None


class Tool(msgspec.Struct, gc=False):
    tool_wall_latency_ms: float | None = None


class Round(msgspec.Struct, gc=False):
    session_id: str
    round_index: int
    output_tokens: Count
    input_tokens_total: Count | None = None
    prefix_tokens: Count = 0
    newly_append_tokens: Count = 0
    provider: str | None = None
    model: str | None = None
    timing_events: list[Event] | None = None
    tools: list[Tool] | None = None


def detect(head: Head) -> bool:
    return head.kind in ("lines", "object") and head.has("session_id", "round_index", "output_tokens", "prefix_tokens")


class Kept(NamedTuple):
    """What is needed of a round until its session is complete; 0 where there is no time."""

    round_index: int
    number: int
    input_tokens: int
    prefix_tokens: int
    output_tokens: int
    begin_ns: int
    end_ns: int
    tools_ns: int
    model: str | None


def read(source: Source, head: Head) -> Table:
    table = Table(source)
    sessions: dict[tuple[str | None, str], list[Kept]] = {}
    for number, row in json_lines(table, Round):
        total = row.input_tokens_total
        total = row.prefix_tokens + row.newly_append_tokens if total is None else total
        tools_ms = sum(max(tool.tool_wall_latency_ms or 0, 0) for tool in row.tools or ())
        tools_ns = scaled_ns(table, number, tools_ms, 1_000_000, "tool_wall_latency_ms")
        times = (*_span_ns(table, number, row), tools_ns)
        kept = Kept(row.round_index, number, total, row.prefix_tokens, row.output_tokens, *times, row.model)
        sessions.setdefault((row.provider, row.session_id), []).append(kept)
    for rounds in sessions.values():
        rounds.sort(key=lambda kept: (kept.round_index, kept.number))
    timed = [rounds[0].begin_ns for rounds in sessions.values() if rounds[0].begin_ns]
    if len(timed) < len(sessions) and source.options.rate is None:
        table.notes.append(
            f"{source.path}: {len(sessions) - len(timed)} sessions without times begin with the first one"
        )
    for (_, name), rounds in sessions.items():
        _take_session(table, name, rounds, min(timed, default=0))
    return table


def _take_session(table: Table, name: str, rounds: list[Kept], earliest_ns: int) -> None:
    """Adds the rounds of one session, in order."""
    previous, before = -1, rounds[0]
    for kept in rounds:
        after_ns = -1
        if previous >= 0:
            both = kept.begin_ns and before.end_ns
            after_ns = max(kept.begin_ns - before.end_ns, 0) if both else before.tools_ns
        added = table.add(
            kept.number,
            kept.begin_ns or earliest_ns,
            kept.input_tokens,
            kept.output_tokens,
            after_ns=after_ns,
            session=name,
            model=kept.model,
        )
        if added:
            table.detail(repeats=(previous, min(kept.prefix_tokens, kept.input_tokens)))
            previous, before = len(table) - 1, kept


def _span_ns(table: Table, number: int, row: Round) -> tuple[int, int]:
    """First and last timing event, ns since 1970; 0 where there is none."""
    times = [_time_ns(table, number, event.timestamp) for event in row.timing_events or () if event.timestamp]
    return (min(times), max(times)) if times else (0, 0)


def _time_ns(table: Table, number: int, value: str | float | None) -> int:
    if isinstance(value, (int, float)):
        return scaled_ns(table, number, value, 10**9, "timestamp")
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise table.refusal(
            number, f'a timing event\'s "timestamp" is "{value}", but must be an ISO date and time'
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
