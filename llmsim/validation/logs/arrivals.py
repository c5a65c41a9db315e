"""Gives a workload the arrival times of a recorded run: those that the server saw, not those that
were planned.
"""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_NS, Workload
from llmsim.validation.logs.pairing import matching_rows, refuse_twice
from llmsim.validation.logs.reader import read_recording
from llmsim.workload.limits import MAX_TIME_NS

NS_PER_S = 10**9


def with_recorded_arrivals(workload: Workload, log: Path) -> Workload:
    """The workload with each request's recorded arrival, from the log's first one on, rounded to
    ns.

    Raises InputError for a log without arrivals, for sessions (their later calls arrive when their
    predecessors end), where the log lacks a request of the workload, or where two lengths differ.
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
    rows = matching_rows(names, recording.request_id)
    if -1 in rows:
        missing = names[rows.index(-1)]
        failed = next(
            (f" ({one.sentence})" for one in recording.findings if one.code == "failed"), ""
        )
        raise InputError(
            f'{log}: it has no request "{missing}" of {workload.source}{failed}; give the log of '
            "this trace, or the "
            "part of the trace that was run (--num-reqs for its first lines)",
            file=str(log),
        )
    chosen = np.array(rows, dtype=np.int64)
    given = recording.input_tokens[chosen]
    if bool(((given >= 0) & (given != workload.input_tokens)).any()):
        row = int(np.flatnonzero((given >= 0) & (given != workload.input_tokens))[0])
        raise InputError(
            f'{log}: request "{names[row]}" has {given[row]} prompt tokens, but '
            f"{int(workload.input_tokens[row])} in "
            f"{workload.source}; give the log of this trace",
            file=str(log),
        )
    span_s = float(np.ptp(recording.arrival_s[chosen]))
    if not span_s * NS_PER_S <= MAX_TIME_NS:
        raise InputError(
            f"{log}: its arrivals span {span_s:g} s, but a run can last "
            f"{MAX_TIME_NS / NS_PER_S:g} s (53 days)",
            file=str(log),
        )
    arrival_ns = np.round(
        (recording.arrival_s[chosen] - recording.arrival_s[chosen].min()) * NS_PER_S
    ).astype(np.int64)
    return _sorted(replace(workload, arrival_ps=arrival_ns * PS_PER_NS, request_id=names), log)


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
