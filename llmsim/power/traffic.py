"""How many bytes a group's devices moved: operators' bytes times how often they ran, and at how many tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.core import FEATURES, Int64, Traffic
from llmsim.model import Layout, Operator

Floats = NDArray[np.float64]
RING_FACTOR = {"all_reduce": 2}
"""Times (n - 1) S bytes that a ring over n ranks sends in all; 1 for the others (a gather or scatter of S in all)."""


@dataclass(frozen=True, eq=False)
class TrafficTable:
    """What the operators of a group move: all layers, `ranks` devices in each of `stages`, and its part
    of what it does together with `members` data-parallel groups (itself included)."""

    operators: tuple[Operator, ...]
    ranks: int
    members: int = 1
    stages: int = 1
    layout: Layout | None = None
    """None: tensor parallelism alone."""
    copies: Mapping[str, tuple[int, Int64]] = field(default_factory=dict)
    """Memory ("cpu", "cxl:<id>") -> bytes that one rank copies from it in every step, and by tokens."""

    def traffic(self, activity: Mapping[str, Any]) -> Traffic:
        """The bytes of a run, from the core's counts (`Simulation.activity`); exact but for the experts' share.

        Memory: what each operator reads and writes (`llmsim.model.operators`), its weights once per execution, of
        experts those that the tokens are expected to touch, E (1 - (1 - k/E)^t). Links: the rings of RING_FACTOR.
        """
        memory = link = 0
        for op in self.operators:
            rows = activity["rows"][_table(op)]
            computed = int(rows @ op.units_of(np.arange(len(rows), dtype=np.int64)))
            if op.kind == "collective":
                link += op.collective_bytes_per_token * computed * op.repeat * self._sent(op) // self.members
                continue
            moved = (op.read_bytes_per_token + op.write_bytes_per_token) * computed + _weights(op, rows)
            moved += op.kv_bytes_per_context_token * int(activity["kv_read_tokens"])
            moved += 2 * op.state_bytes_per_sequence * int(activity["sequences"])
            memory += moved * op.repeat * self.ranks
        host, pool = self._copied(activity["rows"][0])
        offload = activity["offload"]
        host += (offload["to_memory_bytes"] + offload["from_memory_bytes"]) * self.ranks
        return Traffic(memory_bytes=memory, link_bytes=link, host_bytes=host, pool_bytes=pool)

    def _sent(self, op: Operator) -> int:
        """How many times the size of its tensor a collective sends, all members together."""
        if op.collective == "send":
            return self.ranks * (self.stages - 1) * self.members
        if op.collective == "all_to_all":  # its size is what leaves a rank for each token of all
            return 1
        layout = self.layout or Layout(self.ranks)
        devices = self.ranks * self.members
        if op.among in ("members", "everyone"):
            size = self.members if op.among == "members" else devices
        else:
            size = layout.ranks(op.among)
        return RING_FACTOR.get(op.collective, 1) * (size - 1) * (devices // size)

    def _copied(self, rows: Int64) -> tuple[int, int]:
        """Bytes from the host and from the pool."""
        host = pool = 0
        for place, (fixed, by_tokens) in self.copies.items():
            read = np.flatnonzero(rows[: len(by_tokens)])
            size = fixed * int(rows.sum()) + sum(int(rows[row]) * int(by_tokens[row]) for row in read.tolist())
            if place == "cpu":
                host += size * self.ranks
            else:
                pool += size * self.ranks
        return host, pool


def traffic_table(
    operators: Sequence[Operator],
    tp: int,
    copies: Mapping[str, tuple[int, Int64]] | None = None,
    *,
    members: int = 1,
    stages: int = 1,
    layout: Layout | None = None,
) -> TrafficTable:
    """The table of a group of `tp` ranks in each stage, or of a layout's."""
    ranks = tp if layout is None else layout.stage_ranks
    return TrafficTable(tuple(operators), ranks, members, stages, layout, copies or {})


def _table(op: Operator) -> int:
    """Which of the core's tables counts its executions."""
    return FEATURES.index("tokens" if op.feature == "attention" else op.feature)


def _weights(op: Operator, rows: Int64) -> int:
    """Bytes of weights read in all executions of one layer's operator."""
    if op.kind != "moe" or not op.experts_total:
        return 0 if op.kind == "embedding" else op.weight_bytes * int(rows[1:].sum())
    return round(float(rows @ weight_bytes(op, np.arange(len(rows)))))


def weight_bytes(op: Operator, counts: NDArray[np.int64]) -> Floats:
    """Bytes of weights that one execution reads at each count: an embedding reads rows, experts as far as touched."""
    if op.kind == "embedding":
        return np.zeros(len(counts))
    touched = np.minimum(counts, 1).astype(float)
    if op.kind == "moe" and op.experts_total:
        touched = 1.0 - (1.0 - op.topk / op.experts_total) ** counts
    return np.asarray(op.weight_bytes * touched)
