"""Cuts, thins and speeds up a workload: whole lines (a request, or a session with its later calls)
at a time.
"""

import math
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.random import PCG64, Generator, SeedSequence

from llmsim.config.errors import InputError
from llmsim.core import Int64, Workload
from llmsim.workload.columns import next_calls
from llmsim.workload.content import reordered
from llmsim.workload.limits import MAX_TIME_NS
from llmsim.workload.options import TraceOptions

PS_PER_S = 10**12
NS_PER_S = 10**9


def selected(workload: Workload, options: TraceOptions) -> Workload:
    """The workload that `options` ask for. Raises InputError where nothing is left, or time runs
    out.
    """
    heads = np.flatnonzero(workload.arrival_ps >= 0)
    arrival = workload.arrival_ps[heads]
    streams = [Generator(PCG64(child)) for child in SeedSequence(options.seed).spawn(2)]
    start_ps = 0
    if options.rate is not None:
        arrival = _poisson_ps(workload, options.rate, len(heads), streams[0])
    keep = np.ones(len(heads), dtype=bool)
    if options.window_s is not None:
        start_s, end_s = options.window_s
        begin_ps = int(arrival.min()) if len(arrival) else 0
        since_s = (arrival - begin_ps) / PS_PER_S
        keep &= (since_s >= start_s) & (since_s < end_s)
        if len(arrival) and not bool(keep.any()):
            raise InputError(
                f"{workload.source}: nothing is left of its {len(heads)} lines by the window "
                f"{start_s:g}-{'' if math.isinf(end_s) else f'{end_s:g}'}; they arrive from 0 to "
                f"{since_s.max():.10g} s"
            )
        start_ps = begin_ps + round(start_s * PS_PER_S)
    if options.sample < 1:
        keep &= streams[1].random(len(heads)) < options.sample
    chosen = np.flatnonzero(keep)
    if options.limit:
        chosen = chosen[: options.limit]
    if len(chosen) == 0:
        raise InputError(
            f"{workload.source}: nothing is left of its {len(heads)} lines; ask for a larger "
            "window or sample"
        )
    arrival = arrival - start_ps
    if options.speedup != 1:
        with np.errstate(over="ignore"):  # a time beyond all numbers is refused just below
            moved = np.rint(arrival / 1000 / options.speedup)
        if not moved.max() <= MAX_TIME_NS:
            raise InputError(
                f"{workload.source}: slowed down by {options.speedup:g}, the last request "
                "arrives beyond 53 days"
            )
        arrival = moved.astype(np.int64) * 1000
    return _rows_of(workload, heads, chosen, arrival)


def lines_of(workload: Workload, wanted: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Workload:
    """The lines whose rows are all wanted (shape (requests,)), at their times.

    Raises InputError where nothing is left.
    """
    heads = np.flatnonzero(workload.arrival_ps >= 0)
    line = np.cumsum(workload.arrival_ps >= 0) - 1
    whole = np.ones(len(heads), dtype=bool)
    whole[line[~wanted]] = False
    if not whole.any():
        raise InputError(f"{workload.source}: no line is left; keep at least one")
    return _rows_of(workload, heads, np.flatnonzero(whole), workload.arrival_ps[heads])


def _poisson_ps(workload: Workload, rate: float, n: int, random: Generator) -> Int64:
    with np.errstate(over="ignore"):  # a time beyond all numbers is refused just below
        times_ns = np.rint(np.cumsum(random.standard_exponential(n)) * (NS_PER_S / rate))
    if n and not times_ns[-1] <= MAX_TIME_NS:
        raise InputError(
            f"{workload.source}: at a rate of {rate:g} per second the last request arrives "
            "beyond 53 days"
        )
    return times_ns.astype(np.int64) * 1000


def _rows_of(workload: Workload, heads: Int64, chosen: Int64, arrival_ps: Int64) -> Workload:
    """The lines `chosen`, with all their rows, first calls arriving at `arrival_ps`
    (of all lines).
    """
    new_arrival = workload.arrival_ps.copy()
    new_arrival[heads] = arrival_ps
    if len(chosen) == len(heads):
        return replace(workload, arrival_ps=new_arrival)
    kept = np.zeros(len(heads), dtype=bool)
    kept[chosen] = True
    rows = np.flatnonzero(kept[np.cumsum(workload.arrival_ps >= 0) - 1])
    offsets, keys = reordered(workload.key_offsets, workload.keys, rows)
    listed = rows.tolist()
    columns = {
        name: getattr(workload, name)[rows]
        for name in (
            "input_tokens",
            "output_tokens",
            "model",
            "tool_delay_ps",
            "priority",
            "timeout_ps",
            "cancel_after_tokens",
            "hidden",
            "extends",
            "draft_depth",
        )
        if getattr(workload, name, None) is not None
    }
    return replace(
        workload,
        arrival_ps=new_arrival[rows],
        next_call=next_calls(new_arrival[rows]),
        key_offsets=offsets,
        keys=keys,
        session_id=[workload.session_id[row] for row in listed] if workload.session_id else None,
        request_id=[workload.request_id[row] for row in listed] if workload.request_id else None,
        **columns,
        **_lists_of(workload, listed),
    )


def _lists_of(workload: Workload, rows: list[int]) -> dict[str, Any]:
    """Columns that hold a tuple or a name for each row."""
    return {
        name: [column[row] for row in rows]
        for name in (
            "acceptance_rate",
            "accepted_drafts",
            "slo_class",
            "adapter",
            "encoder_inputs",
        )
        if (column := getattr(workload, name)) is not None
    }
