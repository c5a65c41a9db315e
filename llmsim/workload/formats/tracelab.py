"""TraceLab (UW): JSON Lines, one round of a coding agent each, with how much of its prompt repeats the round before.

A session begins at its first timing event; later rounds come after the recorded time between the last event of one
round and the first of the next (the tools and the person), or after its tools' wall time where events are missing.
"""

from array import array
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import json_lines, scaled_ns
from llmsim.workload.formats.table import Source, Table

NAME, TITLE = "tracelab", "TraceLab"
Count = Annotated[int, Meta(ge=0, le=2**61)]


class Event(msgspec.Struct, gc=False):
    timestamp: str | float | None = None


class Tool(msgspec.Struct, gc=False):
    tool_wall_latency_ms: float | None = None


class Round(msgspec.Struct, gc=False):
    session_id: str
    round_index: Annotated[int, Meta(ge=-(2**62), le=2**62)]
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


FIELDS = ("session", "round_index", "number", "input", "prefix", "output", "begin_ns", "end_ns", "tools_ns", "model")
"""What is kept of every round until its session is complete; times are 0 where there is none, models -1."""


class Rounds:
    """Rounds of all sessions in the file's order, in columns, since a trace may have millions."""

    def __init__(self) -> None:
        self.columns = {name: array("q") for name in FIELDS}
        self.sessions: dict[tuple[str | None, str], int] = {}
        self.models: dict[str, int] = {}

    def add(self, table: Table, number: int, row: Round) -> None:
        """Keeps one line."""
        total = row.input_tokens_total
        total = row.prefix_tokens + row.newly_append_tokens if total is None else total
        tools_ms = sum(max(tool.tool_wall_latency_ms or 0, 0) for tool in row.tools or ())
        tools_ns = scaled_ns(table, number, tools_ms, 1_000_000, "tool_wall_latency_ms")
        session = self.sessions.setdefault((row.provider, row.session_id), len(self.sessions))
        model = -1 if row.model is None else self.models.setdefault(row.model, len(self.models))
        begin_ns, end_ns = _span_ns(table, number, row)
        values = (
            session, row.round_index, number, total, row.prefix_tokens, row.output_tokens, begin_ns, end_ns, tools_ns,
            model,
        )  # fmt: skip
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def ordered(self) -> list[tuple[int, int]]:
        """(first, last + 1) of each session's rows, in order of first appearance; sorts the columns."""
        columns = {name: np.frombuffer(column, dtype=np.int64) for name, column in self.columns.items()}
        rows = np.lexsort((columns["number"], columns["round_index"], columns["session"]))
        for name in FIELDS:
            values = columns.pop(name)[rows]
            self.columns[name] = array("q")
            self.columns[name].frombytes(values.tobytes())
        counts = np.bincount(np.frombuffer(self.columns["session"], dtype=np.int64))
        ends = np.cumsum(counts).tolist()
        return list(zip([0, *ends], ends, strict=False))


def read(source: Source, head: Head) -> Table:
    table, rounds = Table(source), Rounds()
    for number, row in json_lines(table, Round):
        rounds.add(table, number, row)
    spans = rounds.ordered() if rounds.sessions else []
    begins = rounds.columns["begin_ns"]
    timed = [begins[first] for first, _ in spans if begins[first]]
    if len(timed) < len(spans) and source.options.rate is None:
        table.notes.append(f"{source.path}: {len(spans) - len(timed)} sessions without times begin with the first one")
    earliest_ns = min(timed, default=0)
    models = [*rounds.models, None]
    for (_, name), span in zip(rounds.sessions, spans, strict=True):
        _take_session(table, name, rounds, span, earliest_ns, models)
    return table


def _take_session(
    table: Table, name: str, rounds: Rounds, span: tuple[int, int], earliest_ns: int, models: list[str | None]
) -> None:
    """Adds the rounds of one session, in order."""
    of = rounds.columns
    previous, before = -1, span[0]
    for row in range(*span):
        begin_ns, after_ns = of["begin_ns"][row], -1
        if previous >= 0:
            both = begin_ns and of["end_ns"][before]
            after_ns = max(begin_ns - of["end_ns"][before], 0) if both else of["tools_ns"][before]
        added = table.add(
            of["number"][row],
            begin_ns or earliest_ns,
            of["input"][row],
            of["output"][row],
            after_ns=after_ns,
            session=name,
            model=models[of["model"][row]],
        )
        if added:
            table.detail(repeats=(previous, min(of["prefix"][row], of["input"][row])))
            previous, before = len(table) - 1, row


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
    time_ns = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    if not abs(time_ns) < 1 << 62:
        raise table.refusal(number, f'a timing event\'s "timestamp" is "{value}", more than 146 years from 1970')
    return time_ns
