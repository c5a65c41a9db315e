"""Which links a step shared with other traffic, and what that cost it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from llmsim import _native
from llmsim.export.step_graph.core_nodes import Span
from llmsim.export.step_graph.graph import IterationGraph, Round
from llmsim.export.step_graph.run_times import lost_in_exchanges_ps
from llmsim.export.step_graph.transfers import Places
from llmsim.lowering import LoweredGroup


@dataclass(frozen=True)
class SharedLink:
    """A link on which flows of a step met others."""

    link: int
    """Its number on the network of the cluster."""
    bytes_per_s: int
    others: tuple[str, ...]
    """Who else was on it: groups, memories such as "cpu", or KV and other steps of its own."""
    met_ps: int
    """Time of the step with flows of its own and of others on the link."""
    lost_ps: int
    """Its share, by that time, of what the step took beyond its graph."""


OWN_KV, OWN_STEPS = "its own KV", "its other steps"
KV = (_native.Purpose.KV_HANDOVER.value, _native.Purpose.KV_TIER.value)


def shared_links(
    batch: Round, graph: IterationGraph, groups: Sequence[LoweredGroup], host_gap_ps: int
) -> list[SharedLink]:
    """The links on which the step's flows met others, those with the most time first.

    The shares add up to the time by which the step of the run was longer than its graph and
    `host_gap_ps`; with pipeline stages, by which its collectives and hand-overs were longer. None
    where nothing was recorded or met.
    """
    if batch.network is None or not len(batch.transfers.get("bytes", ())):
        return []
    starts, ends = zip(*batch.times_ps, strict=True)
    window = (min(starts), max(ends))
    mine, others = _spans_by_link(batch, window, _is_own_step(batch, groups))
    met = {link: _overlap_ps(spans, others[link].values()) for link, spans in mine.items()}
    met = {link: ps for link, ps in met.items() if ps > 0}
    if groups[batch.members[0]].layout.pp > 1:
        lost_ps = lost_in_exchanges_ps(graph, batch)
    else:
        lost_ps = max(0, window[1] - window[0] - host_gap_ps - graph.duration_ps)
    whole_ps = sum(met.values())
    found = []
    for link in sorted(met, key=lambda one: (-met[one], one)):
        share_ps = lost_ps * met[link] // whole_ps
        rate = batch.network.config.bytes_per_s(link)
        names = tuple(sorted(others[link]))
        found.append(SharedLink(link, rate, names, met[link], share_ps))
    if found:  # what does not divide
        first, rest_ps = found[0], lost_ps - sum(one.lost_ps for one in found)
        found[0] = SharedLink(**{**vars(first), "lost_ps": first.lost_ps + rest_ps})
    return found


Spans = dict[int, list[Span]]
SpansByOwner = dict[int, dict[str, list[Span]]]


Ends = tuple[int, int, int]
"""Sender, receiver and start of a flow."""


def _is_own_step(batch: Round, groups: Sequence[LoweredGroup]) -> Callable[[Ends], bool]:
    """Whether a flow of the step's groups is the step's: their stages may work on others, too."""
    layout = groups[batch.members[0]].layout
    if layout.pp == 1 or batch.network is None:
        return lambda ends: True
    places = Places(batch.network)
    starts: set[Ends] = set()
    for member, exchanges in zip(batch.members, batch.exchanges, strict=True):
        placed = groups[member].placed
        for op, spans in exchanges.items():
            stage, sends = placed[op].stage, placed[op].cost.name == "stage_send"
            starts |= {(stage, stage + sends, start) for start, _ in spans}

    def stage_of(place: int) -> int:
        return places.device[place][1] // layout.stage_ranks

    return lambda ends: (stage_of(ends[0]), stage_of(ends[1]), ends[2]) in starts


def _spans_by_link(
    batch: Round, window: Span, is_own_step: Callable[[Ends], bool]
) -> tuple[Spans, SpansByOwner]:
    """When flows of the step, and of each other owner, were on each link inside the window."""
    assert batch.network is not None, "the caller looked"
    transfers, places = batch.transfers, Places(batch.network)
    ends = np.where(transfers["end_ps"] < 0, window[1], transfers["end_ps"])
    moving = (transfers["bytes"] > 0) & (transfers["start_ps"] < window[1]) & (ends > window[0])
    routes: dict[tuple[int, int], Sequence[int]] = {}
    mine: Spans = defaultdict(list)
    others: SpansByOwner = defaultdict(lambda: defaultdict(list))
    for row in np.flatnonzero(moving).tolist():
        pair = int(transfers["sender"][row]), int(transfers["receiver"][row])
        if pair not in routes:
            routes[pair] = batch.network.config.route(*pair)
        span = max(window[0], int(transfers["start_ps"][row])), min(window[1], int(ends[row]))
        group, name = _owner(places, *pair)
        own = group in batch.members
        if own and int(transfers["purpose"][row]) in KV:
            own, name = False, OWN_KV
        elif own and not is_own_step((*pair, int(transfers["start_ps"][row]))):
            own, name = False, OWN_STEPS
        for link in routes[pair]:
            if own:
                mine[link].append(span)
            else:
                others[link][name].append(span)
    return mine, others


def _owner(places: Places, sender: int, receiver: int) -> tuple[int, str]:
    """The group whose flow it is, and its name; of KV from a memory, the group that gets it."""
    for place in (sender, receiver):
        if place in places.device:
            group = places.device[place][0]
            return group, f"group {group}"
    return -1, places.memory.get(sender, "memory")


def _overlap_ps(mine: Sequence[Span], others: Iterable[Sequence[Span]]) -> int:
    """Time in which at least one span of each side is open."""
    changes: list[tuple[int, int, int]] = []
    for side, spans in enumerate((mine, list(chain.from_iterable(others)))):
        for start, end in spans:
            changes += [(start, side, 1), (end, side, -1)]
    open_now, since, total = [0, 0], 0, 0
    for time, side, change in sorted(changes):
        if min(open_now) > 0:
            total += time - since
        open_now[side] += change
        since = time
    return total
