"""What limited the groups of a run: compute, memory bandwidth, network, KV cache, host."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmsim.api.why.seen import Seen
from llmsim.core import Int64

if TYPE_CHECKING:
    from llmsim.api.result import Result

FEWEST_STEPS = 3
"""Steps with an equal batch that two groups need before their times are compared."""


def waiting_steps(seen: Seen, group: int) -> Mapping[str, NDArray[Any]]:
    """Steps of a group after whose scheduling requests still waited."""
    steps = seen.steps_of(group)
    mine = steps["waiting"] > 0
    return {name: column[mine] for name, column in steps.items()}


def step_durations_ps(seen: Seen, group: int) -> Int64:
    """From the end of the step before to the end; from the start after a pause without work."""
    steps = seen.steps_of(group)
    took = np.asarray(steps["end_ps"] - steps["start_ps"], dtype=np.int64)
    went_on = steps["decode_sequences"][1:] > 0  # of requests that the step before had as well
    periods = np.diff(steps["end_ps"])
    took[1:] = np.where(went_on, periods, took[1:])
    return took


def slowdowns(seen: Seen, pool: Sequence[int]) -> dict[int, float]:
    """Median step time of each group over that of its peers, at batches of equal sequences.

    Steps that only decode are compared; groups without a batch in common are left out.
    """
    medians = {group: _medians(seen, group) for group in pool}
    found: dict[int, float] = {}
    for group, mine in medians.items():
        ratios = []
        for sequences, took in mine.items():
            others = [
                medians[other][sequences]
                for other in pool
                if other != group and sequences in medians[other]
            ]
            if others:
                ratios.append(took / float(np.median(others)))
        if ratios:
            found[group] = float(np.median(ratios))
    return found


def _medians(seen: Seen, group: int) -> dict[int, float]:
    steps, took = seen.steps_of(group), step_durations_ps(seen, group)
    decodes = (steps["prefill_tokens"] == 0) & (steps["decode_sequences"] > 0)
    sizes = steps["decode_sequences"][decodes]
    found = {}
    for size in np.unique(sizes):
        of_size = took[decodes][sizes == size]
        if len(of_size) >= FEWEST_STEPS:
            found[int(size)] = float(np.median(of_size))
    return found or _prefill_medians(seen, group)


def batch_share(seen: Seen, group: int) -> float:
    """The part of a decode step that its batch adds, beside a step of the smallest batch."""
    of_size = {size: took for size, took in _medians(seen, group).items() if size > 0}
    steps, took = seen.steps_of(group), step_durations_ps(seen, group)
    decodes = took[(steps["prefill_tokens"] == 0) & (steps["decode_sequences"] > 0)]
    if not of_size or not len(decodes):
        return 0.0
    return max(0.0, 1 - of_size[min(of_size)] / float(np.median(decodes)))


def _prefill_medians(seen: Seen, group: int) -> dict[int, float]:
    """Of a group that only prefills: ps for each token, under one key for steps of a size class."""
    steps, took = seen.steps_of(group), step_durations_ps(seen, group)
    sizes = np.floor(np.log2(np.maximum(steps["tokens"], 1))).astype(int)
    found = {}
    for size in np.unique(sizes):
        mine = (sizes == size) & (steps["tokens"] > 0)
        if np.count_nonzero(mine) >= FEWEST_STEPS:
            found[-int(size) - 1] = float(np.median(took[mine] / steps["tokens"][mine]))
    return found


def crowded_share(seen: Seen) -> float:
    """The share of the cohort's time in which steps with its prompts computed tokens of others.

    The time of a step counts for others by their part of its tokens.
    """
    requests = seen.result._results.requests
    total = sum(int(part[seen.cohort].sum()) for part in seen.parts.values())
    others = 0.0
    for group in np.unique(seen.prompt_group[seen.cohort]).tolist():
        rows = seen.cohort[seen.prompt_group[seen.cohort] == group]
        steps = seen.steps_of(group)
        computed = np.concatenate(([0], np.cumsum(steps["tokens"])))
        first = np.searchsorted(steps["end_ps"], requests.scheduled_ps[rows], "right")
        last = np.searchsorted(steps["end_ps"], seen.prompt_done_ps[rows], "right")
        tokens = np.maximum(computed[last] - computed[first], 1)
        own = np.minimum(seen.input_tokens[rows], tokens)
        others += float((seen.before["prefill"][rows] * (1 - own / tokens)).sum())
    return others / total if total else 0.0


def busy_share(seen: Seen, group: int) -> float:
    """The share of the time of arrivals in which a group had a batch on its devices."""
    results = seen.result._results
    arrived = results.requests.arrival_ps[results.requests.arrival_ps >= 0]
    first, last = int(arrived.min()), int(arrived.max())
    steps = seen.steps_of(group)
    begin = np.clip(steps["start_ps"], first, last)
    end = np.clip(steps["end_ps"], first, last)
    return float((end - begin).sum()) / (last - first) if last > first else 0.0


def collective_share(result: "Result", group: int) -> float:
    """The share of a group's busy time in collectives."""
    from llmsim.model import AllToAll, Collective

    lowered = result._prepared.lowered.groups[group]
    names = {op.name for op in lowered.operators if isinstance(op, Collective | AllToAll)}
    mine = [one for one in result._results.time_shares if one.group == group]
    whole = sum(sum(one.ps_by_provenance) for one in mine)
    moved = sum(sum(one.ps_by_provenance) for one in mine if one.operator in names)
    return moved / whole if whole else 0.0


def launch_share(result: "Result") -> float:
    """The share of all busy time that kernel launches added to steps without CUDA graphs."""
    counters = result._results.counters
    busy = int(counters["busy_ps"].sum())
    return int(counters["launching_ps"].sum()) / busy if busy else 0.0


def gap_share(result: "Result", group: int) -> float:
    """The share of a group's busy time that its host_gap takes: each step holds it once."""
    counters = result._results.counters
    engine = result._prepared.lowered.groups[group].engine
    busy = int(counters["busy_ps"][group])
    idle = int(counters["steps"][group]) * engine.host_gap_ps
    idle += int(counters["scheduled_sequences"][group]) * engine.host_sequence_ps
    return idle / busy if busy else 0.0


def limits(seen: Seen) -> list[dict[str, Any]]:
    """For each group, the shares of its limits that it used while busy, and the largest of them."""
    by_group = {one["group"]: one for one in seen.result.summary["utilisation"]}
    rows = []
    for info in seen.result._results.groups:
        used, cache = by_group.get(info.index, {}), seen.result.summary["kv_cache"][info.index]
        steps = seen.steps_of(info.index)
        idle = steps["start_ps"][1:] - steps["end_ps"][:-1]
        waiting = (steps["decode_sequences"][1:] > 0) & (idle > 0)
        span = max(int((steps["end_ps"] - steps["start_ps"]).sum()), 1)
        shares = {
            "compute": used.get("mfu_busy"),
            "memory_bandwidth": used.get("mbu_busy"),
            "network": round(collective_share(seen.result, info.index), 6),
            "kv": cache["peak_usage"],
            "host": round(
                min(int(idle[waiting].sum()) / span + gap_share(seen.result, info.index), 1.0), 6
            ),
        }
        known = {name: share for name, share in shares.items() if share is not None}
        rows.append(
            {
                "group": info.index,
                **shares,
                "busy": used.get("busy"),
                "limit": max(known, key=lambda name: known[name]) if any(known.values()) else None,
            }
        )
    return rows
