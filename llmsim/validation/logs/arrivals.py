"""Gives a workload the arrival times of a recorded run: those that the server saw, not those that
were planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_NS, Workload
from llmsim.validation.logs.pairing import matching_rows, refuse_twice
from llmsim.validation.logs.reader import read_recording
from llmsim.validation.logs.recording import UNKNOWN, Float64, Int64, Recording
from llmsim.workload.limits import MAX_TIME_NS

NS_PER_S = 10**9


def with_recorded_arrivals(workload: Workload, log: Path) -> Workload:
    """The workload with each request's recorded arrival, from the first one on, rounded to ns.

    A request that failed arrives, too, and is simulated as one that is served. Raises InputError
    for a log without arrivals, for sessions (their later calls arrive when their predecessors end),
    where the log lacks the arrival of a request, or where two lengths differ.
    """
    recording = read_recording(log)
    if not recording.has_arrivals:
        raise InputError(
            f"{log}: it has no arrival times; run without --arrivals, as the trace says",
            file=str(log),
        )
    if bool((workload.arrival_ps < 0).any()):
        raise InputError(
            f"{workload.source}: it has sessions, whose calls follow each other; run without "
            "--arrivals"
        )
    refuse_twice(recording)
    names = workload.request_id or [str(row) for row in range(len(workload))]
    arrived = _Arrived.of(recording, names)
    _refuse_other_requests(workload, names, arrived, log)
    span_s = float(np.ptp(arrived.arrival_s))
    if not span_s * NS_PER_S <= MAX_TIME_NS:
        raise InputError(
            f"{log}: its arrivals span {span_s:g} s, but a run can last "
            f"{MAX_TIME_NS / NS_PER_S:g} s (53 days)",
            file=str(log),
        )
    arrival_ns = np.round((arrived.arrival_s - arrived.arrival_s.min()) * NS_PER_S).astype(np.int64)
    return _sorted(replace(workload, arrival_ps=arrival_ns * PS_PER_NS, request_id=names), log)


@dataclass(frozen=True, eq=False)
class _Arrived:
    """What a log says of the requests of a workload, in its order."""

    is_there: NDArray[np.bool_]
    arrival_s: Float64
    """NaN where the log does not say it."""
    input_tokens: Int64

    @classmethod
    def of(cls, recording: Recording, names: Sequence[str]) -> "_Arrived":
        """Of requests that finished, and of those that failed and were not tried again."""
        finished = set(recording.request_id)
        failed = recording.failed.request_id
        rows = [row for row, name in enumerate(failed) if name not in finished]
        ids = recording.request_id + tuple(failed[row] for row in rows)
        arrival_s = np.concatenate([recording.arrival_s, recording.failed.arrival_s[rows]])
        tokens = np.concatenate([recording.input_tokens, np.full(len(rows), UNKNOWN)])
        found = np.array(matching_rows(names, ids), dtype=np.int64)
        return cls(found >= 0, arrival_s[found], tokens[found])


def _refuse_other_requests(
    workload: Workload, names: Sequence[str], arrived: _Arrived, log: Path
) -> None:
    """Raises InputError where the log has no arrival of a request, or another prompt."""
    this_trace = (
        "give the log of this trace, or the part of the trace that was run (--num-reqs for its "
        "first lines)"
    )
    for row in np.flatnonzero(~arrived.is_there)[:1]:
        raise InputError(
            f'{log}: it has no request "{names[row]}" of {workload.source}; {this_trace}',
            file=str(log),
        )
    for row in np.flatnonzero(np.isnan(arrived.arrival_s))[:1]:
        raise InputError(
            f'{log}: request "{names[row]}" failed, and the log has no arrival of it; leave it '
            "out of the trace",
            file=str(log),
        )
    given = arrived.input_tokens
    for row in np.flatnonzero((given >= 0) & (given != workload.input_tokens))[:1]:
        raise InputError(
            f'{log}: request "{names[row]}" has {given[row]} prompt tokens, but '
            f"{int(workload.input_tokens[row])} in {workload.source}; give the log of this trace",
            file=str(log),
        )


def _sorted(workload: Workload, log: Path) -> Workload:
    """Rows in order of their new arrivals, with a note that says where those are from."""
    order = np.argsort(workload.arrival_ps, kind="stable")
    offsets = workload.key_offsets
    parts = [workload.keys[offsets[row] : offsets[row + 1]] for row in order]
    columns: dict[str, Any] = {}
    for name, value in asdict(workload).items():
        if name in ("key_offsets", "keys") or len(workload) == 0:
            continue
        if isinstance(value, np.ndarray) and len(value) == len(workload):
            columns[name] = value[order]
        elif isinstance(value, list):
            columns[name] = [value[row] for row in order.tolist()]
    return replace(
        workload,
        **columns,
        key_offsets=np.concatenate([offsets[:1], np.cumsum(np.diff(offsets)[order])]),
        keys=np.concatenate([workload.keys[:0], *parts]),
        notes=(*workload.notes, f"arrival times are those recorded in {log}"),
    )
