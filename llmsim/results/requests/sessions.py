"""Sessions of a run: when the visible answer came, and where the time before it went.

A session is a chain of calls; a request that belongs to none is a session of one call. Its answer
round is the last call that is not hidden.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim import _native
from llmsim.columns import LatencyCauses, SessionColumns
from llmsim.core import PS_PER_MS, PS_PER_S, Int64, Results, Status, Workload
from llmsim.exact import exact_sum
from llmsim.results.requests.metrics import PERCENTILES, describe, makespan_ps

_COLUMNS = {one.name for one in SessionColumns.COLUMNS}
CAUSES = tuple(one.name for one in LatencyCauses.COLUMNS if one.name in _COLUMNS)
"""Causes of the latency of finished requests; those of a session are their sums and `tool_ps`."""
_DIGITS = 6
_TIMES = ("attft_ps", "atpot_ps", "session_e2el_ps")


def reasons(workload: Workload) -> bool:
    """Whether the trace says which answers are hidden, so that a run reports its sessions."""
    return workload.hidden is not None


def session_columns(results: Results) -> SessionColumns:
    """All sessions of a run, in the order of their first calls; -1 stands for what never came."""
    workload, requests = results.workload, results.requests
    sums = _Sums(workload)
    hidden = np.zeros(len(workload), np.bool_) if workload.hidden is None else workload.hidden
    finished = requests.status == Status.FINISHED
    done = sums.of(~finished) == 0
    heads, lasts = sums.heads, sums.lasts
    arrival, finish = requests.arrival_ps[heads], requests.finish_ps[lasts]
    answer = sums.last_where(~hidden)
    answered = done & (answer >= 0)
    said = workload.input_tokens.astype(np.int64) + workload.output_tokens
    before = np.zeros(len(workload), np.int64)
    before[workload.next_call[workload.next_call >= 0]] = said[workload.next_call >= 0]
    new_tokens = np.maximum(workload.input_tokens - before, 0)
    emitted = np.where(finished, requests.emitted_tokens, 0).astype(np.int64)
    hidden_tokens = sums.of(np.where(hidden, emitted, 0))
    names = workload.session_id or [""] * len(workload)
    return SessionColumns(
        session_id=[names[row] for row in heads.tolist()],
        rounds=sums.of(np.ones(len(workload), np.int64)).astype(np.int32),
        hidden_rounds=sums.of(hidden).astype(np.int32),
        finished_rounds=sums.of(finished).astype(np.int32),
        arrival_ps=arrival,
        finish_ps=np.where(done, finish, -1),
        attft_ps=np.where(answered, requests.first_token_ps[answer] - arrival, -1),
        atpot_ps=_atpot_ps(results, answer, answered),
        session_e2el_ps=np.where(done, finish - arrival, -1),
        planning_tokens_per_s=_rate(
            sums.of(np.where(hidden & sums.earlier_than(answer), emitted, 0)),
            np.where(answered, requests.arrival_ps[answer] - arrival, 0),
        ),
        input_tokens=sums.of(workload.input_tokens),
        new_prompt_tokens=sums.of(new_tokens),
        hidden_new_prompt_tokens=sums.of(np.where(hidden, new_tokens, 0)),
        emitted_tokens=sums.of(emitted),
        hidden_tokens=hidden_tokens,
        cached_tokens=sums.of(requests.cached_tokens),
        own_hit_tokens=sums.of(np.minimum(requests.cached_tokens, before)),
        preemptions=sums.of(requests.preemptions).astype(np.int32),
        tool_ps=np.where(done, sums.of(_tool_ps(results)), -1),
        **{name: np.where(done, sums.of(part), -1) for name, part in _causes(results).items()},
    )


def _causes(results: Results) -> Mapping[str, Int64]:
    """Causes of every run. An encoder's work is prefill here, rows between attention and FFN are
    communication, waits for copies and for memory that computes are decode, the front end is the
    API server's, and switches of layouts take a request from its group like a preemption.
    """
    causes = {name: results.blame[name] for name in CAUSES}
    for name, counts_as in (
        ("encoder_ps", "prefill_ps"),
        ("m2n_ps", "communication_ps"),
        ("offload_ps", "decode_ps"),
        ("frontend_ps", "api_ps"),
        ("reconfigure_ps", "preemption_ps"),
    ):
        if name in results.blame:
            causes[counts_as] = causes[counts_as] + results.blame[name]
    return causes


def answer_rounds(results: Results) -> tuple[Int64, Int64, int]:
    """Rows of the answer rounds of finished sessions, arrivals of these sessions, and how many
    sessions there are in all.
    """
    workload, requests = results.workload, results.requests
    sums = _Sums(workload)
    shown = np.ones(len(workload), np.bool_) if workload.hidden is None else ~workload.hidden
    answer = sums.last_where(shown)
    good = (sums.of(requests.status != Status.FINISHED) == 0) & (answer >= 0)
    return answer[good], requests.arrival_ps[sums.heads[good]], len(sums.heads)


class _Sums:
    """Adds up columns of requests by session."""

    def __init__(self, workload: Workload) -> None:
        sessions = _native.Sessions(workload.next_call)
        self.heads = np.flatnonzero(sessions.round == 0)
        self._session = np.searchsorted(self.heads, sessions.session)
        self._round = sessions.round
        self.lasts = np.zeros(len(self.heads), np.int64)
        ends = np.flatnonzero(workload.next_call < 0)
        self.lasts[self._session[ends]] = ends

    def of(self, column: NDArray[Any]) -> Int64:
        """The sum of a column over the calls of each session, exact in int64."""
        total = np.zeros(len(self.heads), np.int64)
        np.add.at(total, self._session, column.astype(np.int64))
        return total

    def earlier_than(self, rows: Int64) -> NDArray[np.bool_]:
        """Which calls come before their session's one of `rows`."""
        return np.asarray(self._round < self._round[rows[self._session]])

    def last_where(self, wanted: NDArray[np.bool_]) -> Int64:
        """The row of each session's last call that is wanted; -1 where none is."""
        rows = np.flatnonzero(wanted)
        rows = rows[np.lexsort((self._round[rows], self._session[rows]))]
        found = np.full(len(self.heads), -1, np.int64)
        found[self._session[rows]] = rows
        return found


def _tool_ps(results: Results) -> Int64:
    """Between the last token of each request and the arrival of its successor, as clients see it.

    It is the trace's tool time without the delay of the answer at the client, if there is one.
    """
    workload, requests = results.workload, results.requests
    rows = np.flatnonzero(workload.next_call >= 0)
    following = workload.next_call[rows]
    came = (requests.arrival_ps[following] >= 0) & (requests.finish_ps[rows] >= 0)
    tool_ps = np.zeros(len(workload), np.int64)
    gap = requests.arrival_ps[following] - requests.finish_ps[rows]
    tool_ps[rows[came]] = gap[came]
    return tool_ps


def _atpot_ps(results: Results, answer: Int64, answered: NDArray[np.bool_]) -> NDArray[np.float64]:
    requests = results.requests
    gaps = requests.emitted_tokens[answer].astype(np.int64) - 1
    time_ps = requests.finish_ps[answer] - requests.first_token_ps[answer]
    some = answered & (gaps > 0)
    return np.where(some, time_ps / np.maximum(gaps, 1), -1.0)


def _rate(tokens: Int64, time_ps: Int64) -> NDArray[np.float64]:
    return np.where(time_ps > 0, tokens * float(PS_PER_S) / np.maximum(time_ps, 1), -1.0)


def sessions_block(results: Results) -> dict[str, Any]:
    """`sessions` of the summary: latencies, hidden tokens per second, and causes."""
    table = session_columns(results)
    done = table.session_e2el_ps >= 0
    duration_ps = makespan_ps(results)
    block: dict[str, Any] = {
        "sessions": len(done),
        "completed": int(np.count_nonzero(done)),
        "rounds": exact_sum(table.rounds),
        "hidden_rounds": exact_sum(table.hidden_rounds),
    }
    for name in _TIMES:
        values = getattr(table, name)
        block[f"{name.removesuffix('_ps')}_ms"] = _statistics(values[values >= 0], PS_PER_MS)
    planned = table.planning_tokens_per_s
    return block | {
        "hidden_planning_throughput": {
            "total": _per_second(table.hidden_tokens, duration_ps),
            **_statistics(planned[(planned >= 0) & (table.hidden_rounds > 0)], 1),
        },
        "hidden_prompt_throughput": _per_second(table.hidden_new_prompt_tokens, duration_ps),
        "hidden_tokens": exact_sum(table.hidden_tokens),
        "cached_tokens": exact_sum(table.cached_tokens),
        "own_hit_tokens": exact_sum(table.own_hit_tokens),
        "blame": _blame(table, done),
    }


def _blame(table: SessionColumns, done: NDArray[np.bool_]) -> dict[str, Any]:
    """Mean milliseconds per session of each cause and its share of all sessions' time."""
    count = int(np.count_nonzero(done))
    totals = {
        name.removesuffix("_ps"): exact_sum(getattr(table, name)[done])
        for name in (*CAUSES, "tool_ps")
    }
    total_ps = sum(totals.values())
    return {
        name: {
            "mean_ms": _rounded(part_ps / count / PS_PER_MS) if count else None,
            "share": _rounded(part_ps / total_ps) if total_ps else None,
        }
        for name, part_ps in totals.items()
    }


def _statistics(values: NDArray[Any], unit: int) -> dict[str, float | None]:
    found = describe(values)
    if found is None:
        return {"mean": None, "p50": None, **{f"p{q}": None for q in PERCENTILES}}
    named = {"mean": found.mean, "p50": found.median}
    named |= {f"p{q}": value for q, value in found.percentiles.items()}
    return {name: _rounded(value / unit) for name, value in named.items()}


def _per_second(tokens: Int64, duration_ps: int | None) -> float | None:
    return _rounded(exact_sum(tokens) * PS_PER_S / duration_ps) if duration_ps else None


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


def session_files(results: Results) -> Mapping[str, tuple[Any, NDArray[np.bool_] | None]]:
    """Each column of sessions.parquet, and which of its values are null."""
    table = session_columns(results)
    found: dict[str, tuple[Any, NDArray[np.bool_] | None]] = {}
    for one in SessionColumns.COLUMNS:
        values = getattr(table, one.name)
        if one.name == "session_id":
            found[one.name] = ([name or None for name in values], None)
        else:
            found[one.name] = (values, values < 0 if one.nullable else None)
    return found
