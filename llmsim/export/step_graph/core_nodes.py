"""The core's nodes of a step, and when they ran in its run, where the step alone does not tell: on
links that others use too, ahead of the step, or behind the work of others on the same devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llmsim import _native

Span = tuple[int, int]
"""Start and end, in ps of the run; a start of WHEN_READY follows from what the node waited for."""
WHEN_READY = -1
ALL_RANKS = -1
"""Stands for the ranks of a stage that run a node together."""
Role = _native.NodeRole
BEGINS = (Role.BEGIN.value, Role.RECEIVE.value)


class CoreNode(NamedTuple):
    """A node of the core, of all ranks of a stage."""

    unit: int
    """Stage + stages x member."""
    stream: int
    """Of the unit; below 0: none."""
    role: _native.NodeRole
    op: int
    execution: int
    lane: int
    ps: int
    end_ps: int
    """If nothing ran before the step, and nobody else used its links; in ps of the step, which
    hosts prepare before.
    """
    num_bytes: int
    after: list[int]
    """Numbers of nodes that it waits for, besides the one before it on its stream."""


class NodeKey(NamedTuple):
    """A node of the core: what it does in which stage of a member."""

    stage: int
    role: int
    """A `NodeRole`."""
    op: int = -1
    """Of the member's program; -1: none."""
    execution: int = -1
    lane: int = 0


class CorePlace(NamedTuple):
    """Where a node of a graph comes from."""

    number: int
    """Of the core's node; the ranks that run it together have the same."""
    device: int
    """Of the stage."""


@dataclass(frozen=True)
class StepSpans:
    """When nodes of one member's step ran."""

    of_nodes: Mapping[NodeKey, Mapping[int, Span]] = field(default_factory=dict)
    """Node -> rank of its stage, or ALL_RANKS -> span."""

    def begin_ps(self, stage: int) -> int | None:
        """When the stage began to work on the step; None: not known."""
        ends = [
            span[1]
            for key, by_rank in self.of_nodes.items()
            if key.stage == stage and key.role in BEGINS
            for span in by_rank.values()
        ]
        return min(ends, default=None)

    @property
    def slowed_ps(self) -> int:
        """What the power limit added to each stage."""
        spans = (
            end - start
            for key, by_rank in self.of_nodes.items()
            if key.role == Role.SLOWED.value
            for start, end in by_rank.values()
        )
        return max(spans, default=0)

    @property
    def exchanges(self) -> dict[int, tuple[Span, ...]]:
        """Operator -> start and end of each of its executions, of collectives and hand-overs on
        shared links.
        """
        found: dict[int, dict[int, Span]] = defaultdict(dict)
        for key, by_rank in self.of_nodes.items():
            if key.role == Role.OPERATOR.value and ALL_RANKS in by_rank:
                found[key.op][key.execution] = by_rank[ALL_RANKS]
        return {
            op: tuple(spans[number] for number in sorted(spans))
            for op, spans in sorted(found.items())
        }


class CoreTimes:
    """The times of a step's nodes in its run, in ps of the step."""

    def __init__(
        self,
        nodes: Sequence[CoreNode],
        stages: int,
        spans: Sequence[StepSpans],
        starts_ps: Sequence[int],
    ) -> None:
        """`spans` and `starts_ps`, in ps of the run, are those of the members' steps; no spans:
        nothing was recorded.
        """
        self._nodes, self._stages, self._spans = nodes, stages, spans
        self._starts_ps, self._origin_ps = starts_ps, min(starts_ps)
        self.begins_ps: list[int] = []
        """Of each node, when all is there that it waits for."""
        self.ends_ps: list[int] = []
        """Of each node, when the last of its ranks is done."""
        self._recorded = [self._spans_of(node) for node in nodes]
        self._run()

    def span(self, number: int, device: int) -> Span | None:
        """Of a node on a device of its stage, where it was recorded."""
        by_rank = self._recorded[number]
        found = by_rank.get(device, by_rank.get(ALL_RANKS))
        if found is None:
            return None
        start_ps, end_ps = found
        if start_ps == WHEN_READY:
            return self.begins_ps[number], end_ps - self._origin_ps
        return start_ps - self._origin_ps, end_ps - self._origin_ps

    def _spans_of(self, node: CoreNode) -> Mapping[int, Span]:
        """By rank of its stage, or ALL_RANKS; none where nothing was recorded."""
        if not self._spans:
            return {}
        member, stage = divmod(node.unit, self._stages)
        recorded = self._spans[member].of_nodes
        if not recorded:
            return {}
        key = NodeKey(stage, node.role.value, node.op, node.execution, node.lane)
        return recorded.get(key, {})

    def _run(self) -> None:
        """By the core's own rules: a node begins when what it waits for has ended and its stream
        is free, and lasts as long as its price, unless the run says when it has ended.
        """
        free: dict[tuple[int, int], int] = {}
        for number, node in enumerate(self._nodes):
            place = (node.unit, node.stream)
            waits = [self.ends_ps[before] for before in node.after]
            if node.stream >= 0 and place in free:
                waits.append(free[place])
            begin_ps = max(waits, default=node.end_ps - node.ps)
            if node.role == Role.BEGIN:
                begin_ps = self._starts_ps[node.unit // self._stages] - self._origin_ps
            recorded = self._recorded[number].values()
            self.begins_ps.append(begin_ps)
            self.ends_ps.append(
                max(end_ps for _, end_ps in recorded) - self._origin_ps
                if recorded
                else begin_ps + node.ps
            )
            free[place] = self.ends_ps[-1]
