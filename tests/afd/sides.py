"""Attention and FFN groups of the native core, built by hand or drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simulations import router, simulation

from llmsim import _native

PROLOGUE, LAYER, HEAD = 0, 1, 2
TOKENS, SEQUENCES = 64, 8
FEATURE, KIND = _native.Feature, _native.NodeKind


@dataclass
class Side:
    """The operators of one side's program, in order."""

    sizes: dict[Any, int]
    ops: list[Any] = field(default_factory=list)

    def add(
        self,
        name: str,
        feature: Any,
        repeat: int,
        *,
        table: Any,
        part: int = LAYER,
        stage: int = 0,
        kind: Any = KIND.COMPUTE,
        sampled: Any = None,
    ) -> int:
        """Appends an operator; `table` is its time from one unit on, or a list of times."""
        times = np.full(self.sizes[feature] + 1, table, np.int64)
        times[0] = 0
        marks = np.zeros(len(times), np.uint8)
        named = {} if sampled is None else {"sampled": sampled}
        self.ops.append(
            _native.Operator(name, kind, feature, part, repeat, times, marks, stage, **named)
        )
        return len(self.ops) - 1

    def attention(self, repeat: int, stage: int = 0) -> int:
        """Appends the operator of attention."""
        nothing = (np.empty(0, np.int64), np.empty(0, np.uint8), stage)
        self.ops.append(
            _native.Operator("attention", KIND.ATTENTION, FEATURE.TOKENS, LAYER, repeat, *nothing)
        )
        return len(self.ops) - 1

    def program(self, attention_ps: Any = 0, gap: int = 0, padded: Any = None) -> Any:
        """The native program; attention costs `attention_ps` at each corner of its grid."""
        axis = np.array([0, 64], np.int64)
        cells = np.full(16, attention_ps, np.int64)
        cost = _native.Attention.mixed([axis] * 4, cells, 0)
        if padded is None:
            padded = np.arange(self.sizes[FEATURE.TOKENS] + 1)
        return _native.Program(
            self.ops, cost, padded.astype(np.int32), _native.LowerBound(), gap, 0
        )


def side(members: int = 1) -> Side:
    """An empty program whose tables hold the tokens of so many members."""
    tokens = TOKENS * members
    return Side(
        {
            FEATURE.TOKENS: tokens,
            FEATURE.SEQUENCES: SEQUENCES,
            FEATURE.GATHERED: tokens * 4,
            FEATURE.DECODES: tokens,
            FEATURE.PREFILLS: tokens,
        }
    )


def port(bytes_per_row: int, units: int = 1, feature: Any = FEATURE.TOKENS) -> Any:
    """Bytes over a device's port."""
    return _native.PortBytes(feature, bytes_per_row, units)


def hop(*bytes_per_row: int) -> Any:
    """A hop with so many bytes per row out of attention, into FFN, out of it, and back in."""
    return _native.M2nHop(*(port(size) for size in bytes_per_row))


def run(
    programs: Sequence[Any],
    config: Any,
    attention: int,
    requests: Any,
    *,
    depth: int = 1,
    exact: bool = False,
    scheduled: int = TOKENS,
    ports: Sequence[Any] = (),
    **parts: Any,
) -> Any:
    """A simulation to its end; the first `attention` programs are those of attention groups, and
    `ports` those that other transfers use, too.
    """
    groups = []
    for index, program in enumerate(programs):
        group = _native.GroupConfig()
        group.index, group.depth = index, depth
        scheduler = limits(scheduled, depth)
        if index >= attention:
            group.role, scheduler = _native.Role.FFN, None
        groups.append(_native.GroupSpec(group, scheduler, program, record_steps=True))
    interval = 4 if attention > 1 else 1
    members = list(range(len(programs)))
    lockstep = [_native.LockstepSpec(members, interval, config, exact, list(ports))]
    if attention > 1:
        parts["router"] = router("RR")
    sim = simulation(requests, groups, lockstep=lockstep, **parts)
    while not sim.run(10_000):
        pass
    return sim


def limits(scheduled: int, depth: int) -> Any:
    """The limits of an attention group's scheduler."""
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = SEQUENCES, scheduled
    scheduler.async_scheduling = depth == 2
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.max_model_len = 60, 10_000
    scheduler.kv = kv
    return scheduler
