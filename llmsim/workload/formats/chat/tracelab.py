"""TraceLab (UW): JSON Lines, one round of a coding agent each, with how much of its prompt repeats
the round before.

A session begins at its first timing event; later rounds come after the recorded time between the
last event of one round and the first of the next (the tools and the person), or after its tools'
wall time where events are missing.
"""

from array import array
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from llmsim.core import Int64
from llmsim.plurals import plural
from llmsim.workload.formats.batches import Batch, each
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import all_scaled_ns, json_batches, scaled_ns
from llmsim.workload.formats.source import Rows, Source, Texts
from llmsim.workload.formats.table import LATEST_NS, Table
from llmsim.workload.formats.times import all_timestamps_ns

NS_PER_MS = 1_000_000
PIECE = 1 << 14
"""Rows that are handed over at once."""
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
    return head.kind in ("lines", "object") and head.has(
        "session_id", "round_index", "output_tokens", "prefix_tokens"
    )


FIELDS = (
    "session",
    "round_index",
    "number",
    "input",
    "prefix",
    "output",
    "begin_ns",
    "end_ns",
    "tools_ns",
    "model",
)
"""What is kept of every round until its session is complete; times are 0 where there is none,
models -1.
"""


class _Numbers(dict[str, int]):
    """The number of each name, given as it is first asked for; `names` has them all, and may be
    shared.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self.names)
        self.names.append(name)
        return number


class Rounds:
    """Rounds of all sessions in the file's order, in columns, since a trace may have millions."""

    def __init__(self) -> None:
        self.columns = {name: array("q") for name in FIELDS}
        self.sessions: list[str] = []
        """The name of each session; those of different providers differ, also where their names are
        alike.
        """
        self._sessions: dict[str | None, _Numbers] = {}
        self.models = _Numbers([])

    def add(self, table: Table, number: int, row: Round) -> None:
        """Keeps one line."""
        spans_ns = (np.array([time_ns]) for time_ns in _span_ns(table, number, row))
        self._keep([number], [row], (*spans_ns, np.array([_tools_ns(table, number, row)])))

    def add_all(self, batch: Batch[Round]) -> bool:
        """Keeps the lines of a batch; False, with nothing kept, where each must be looked at."""
        spans_ns, tools_ns = _all_spans_ns(batch.records), _all_tools_ns(batch.records)
        if spans_ns is None or tools_ns is None:
            return False
        self._keep(batch.numbers(), batch.records, (*spans_ns, tools_ns))
        return True

    def _keep(self, numbers: Sequence[int], rows: list[Round], times_ns: tuple[Int64, ...]) -> None:
        totals = [row.input_tokens_total for row in rows]
        prefix = _column([row.prefix_tokens for row in rows])
        if None in totals:
            totals = [
                row.newly_append_tokens + row.prefix_tokens
                if row.input_tokens_total is None
                else row.input_tokens_total
                for row in rows
            ]
        models = [row.model for row in rows]
        model = [-1 if name is None else self.models[name] for name in models]
        columns = (
            _column(self._session_numbers(rows)),
            _column([row.round_index for row in rows]),
            _column(numbers),
            _column(totals),
            prefix,
            _column([row.output_tokens for row in rows]),
            *times_ns,
            _column(model),
        )
        for name, values in zip(FIELDS, columns, strict=True):
            self.columns[name].frombytes(values.tobytes())

    def _session_numbers(self, rows: list[Round]) -> list[int]:
        of, providers = self._sessions, [row.provider for row in rows]
        for provider in dict.fromkeys(providers):
            of.setdefault(provider, _Numbers(self.sessions))
        return [of[provider][row.session_id] for provider, row in zip(providers, rows, strict=True)]

    def ordered(self) -> dict[str, Int64]:
        """The columns, session by session in order of first appearance, each in order of its
        rounds; lets go of what was kept.
        """
        columns = {
            name: np.frombuffer(column, dtype=np.int64) for name, column in self.columns.items()
        }
        self.columns = {}
        rows = np.lexsort((columns["number"], columns["round_index"], columns["session"]))
        return {name: columns.pop(name)[rows] for name in FIELDS}


def read(source: Source, head: Head) -> Table:
    table, rounds = Table(source), Rounds()
    for batch in json_batches(table, Round):
        if isinstance(batch, Batch) and rounds.add_all(batch):
            continue
        for number, row in each(batch):
            rounds.add(table, number, row)
    of = rounds.ordered()
    first = np.flatnonzero(np.diff(of["session"], prepend=-1))
    begins = of["begin_ns"][first]
    timed = begins[begins != 0]
    if len(timed) < len(first) and source.options.rate is None:
        untimed = len(first) - len(timed)
        sessions = plural(untimed, "session without times begins", "sessions without times begin")
        table.notes.append(f"{source.path}: {untimed} {sessions} with the first one")
    of["at_ns"] = np.where(of["begin_ns"] != 0, of["begin_ns"], timed.min() if len(timed) else 0)
    empty = (of["input"] < 1) | (of["output"] < 1)
    if empty.any():
        table.dropped(int(of["number"][empty][0]), int(np.count_nonzero(empty)))
        if source.options.failures == "drop":
            of = {name: column[~empty] for name, column in of.items()}
        for name in ("input", "output"):
            of[name] = np.maximum(of[name], 1)
    _take(table, of, rounds.sessions, rounds.models.names)
    return table


def _take(table: Table, of: dict[str, Int64], sessions: list[str], models: list[str]) -> None:
    """Adds rounds, which are in order: the first of a session at its time, each other after the one
    before it.
    """
    follows = of["session"][1:] == of["session"][:-1]
    both = (of["begin_ns"][1:] != 0) & (of["end_ns"][:-1] != 0)
    gap_ns = np.where(
        both, np.maximum(of["begin_ns"][1:] - of["end_ns"][:-1], 0), of["tools_ns"][:-1]
    )
    after_ns = np.concatenate((np.full(1, -1), np.where(follows, gap_ns, -1)))
    earlier = np.concatenate((np.full(1, -1), np.where(follows, np.arange(len(follows)), -1)))
    repeated = np.minimum(of["prefix"], of["input"])
    for low in range(0, len(of["session"]), PIECE):
        part = slice(low, low + PIECE)
        table.take(
            Rows(
                of["number"][part].tolist,
                of["at_ns"][part],
                of["input"][part],
                of["output"][part],
                after_ns=after_ns[part],
                sessions=Texts(of["session"][part], sessions),
                models=Texts(of["model"][part], models),
                repeats=(earlier[part], repeated[part]),
            )
        )


def _column(values: Sequence[int | None]) -> Int64:
    return np.fromiter(values, dtype=np.int64, count=len(values))


def _tools_ns(table: Table, number: int, row: Round) -> int:
    name = "tool_wall_latency_ms"
    times_ns = (
        scaled_ns(table, number, tool.tool_wall_latency_ms or 0, NS_PER_MS, name)
        for tool in row.tools or ()
    )
    return min(sum(max(time_ns, 0) for time_ns in times_ns), LATEST_NS)


def _all_tools_ns(rows: list[Round]) -> Int64 | None:
    """`_tools_ns` of each; None where a time is to be refused."""
    lists = [row.tools or () for row in rows]
    times_ns = all_scaled_ns(
        [tool.tool_wall_latency_ms or 0 for tools in lists for tool in tools], NS_PER_MS
    )
    if times_ns is None or (len(times_ns) and times_ns.max() > LATEST_NS // len(times_ns)):
        return None
    sums_ns = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.maximum(times_ns, 0))))
    ends = np.cumsum(np.fromiter(map(len, lists), dtype=np.int64, count=len(lists)))
    return np.diff(sums_ns[ends], prepend=0)


def _all_spans_ns(rows: list[Round]) -> tuple[Int64, Int64] | None:
    """`_span_ns` of each; None where a time is no text, or an odd one."""
    times = [
        event.timestamp for row in rows for event in row.timing_events or () if event.timestamp
    ]
    if set(map(type, times)) - {str}:
        return None
    found = all_timestamps_ns(times)  # type: ignore[arg-type]  # all are texts
    if found is None:
        return None
    found -= found % 1000  # to the microsecond, as Python's datetime has them
    counts = np.array([len(row.timing_events or ()) for row in rows])
    if int(counts.sum()) != len(times):
        counts = np.array(
            [sum(1 for event in row.timing_events or () if event.timestamp) for row in rows]
        )
    begins, ends = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    some = np.flatnonzero(counts)
    if len(some):
        starts = (np.cumsum(counts) - counts)[some]
        begins[some], ends[some] = (
            np.minimum.reduceat(found, starts),
            np.maximum.reduceat(found, starts),
        )
    return begins, ends


def _span_ns(table: Table, number: int, row: Round) -> tuple[int, int]:
    """First and last timing event, ns since 1970; 0 where there is none."""
    times = [
        _time_ns(table, number, event.timestamp)
        for event in row.timing_events or ()
        if event.timestamp
    ]
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
        raise table.refusal(
            number, f'a timing event\'s "timestamp" is "{value}", more than 146 years from 1970'
        )
    return time_ns
