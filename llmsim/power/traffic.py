"""How many bytes a group's devices moved: operators' bytes times how often they ran, and at how
many tokens.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.core import FEATURES, Int64, Traffic
from llmsim.exact import exact_sum
from llmsim.model import (
    AdapterCopy,
    Attention,
    Collective,
    Embedding,
    Layout,
    Moe,
    Operator,
    StateSpace,
)

Floats = NDArray[np.float64]
RING_FACTOR = {"all_reduce": 2}
"""Times (n - 1) S bytes that a ring over n ranks sends in all; 1 for the others (a gather or
scatter of S in all).
"""


class Copied(Struct, frozen=True, eq=False):
    """What one rank copies from a memory ("cpu", "cxl:<id>"): bytes by the feature, or (`feature`
    "") of every step.

    `experts`: expected sizes, which what the run counted replaces where it drew them.
    """

    place: str
    feature: str
    rows: Int64
    experts: bool = False


class TrafficTable(Struct, frozen=True, eq=False):
    """What the operators of a group move: all layers, `ranks` devices in each of `stages`, and its
    part of what it does together with `members` data-parallel groups (itself included).

    An FFN group beside attention groups is `own` such members itself: its columns of ranks.
    """

    operators: tuple[Operator, ...]
    ranks: int
    members: int = 1
    stages: int = 1
    layout: Layout | None = None
    """None: tensor parallelism alone."""
    copies: tuple[Copied, ...] = ()
    hosted: frozenset[str] = frozenset()
    """Operators that the node's processors run, out of its memory."""
    nodes: int = 1
    """Over which the members are spread, one after the other and evenly."""
    own: int = 1
    """Members that the group itself is."""
    node_devices: int = 0
    """Devices of a member on each of its nodes; 0: they are on one."""

    def traffic(self, activity: Mapping[str, Any]) -> Traffic:
        """The bytes of a run, from the core's counts (`Simulation.activity`); exact but for the
        experts' share.

        Memory: what each operator reads and writes (`llmsim.model.operators`), its weights once per
        execution, of experts those that the tokens are expected to touch, E (1 - (1 - k/E)^t), and
        what comes from other memories or goes there. Links: the rings of RING_FACTOR; what of them
        is between nodes passes a network card at each end.
        """
        memory = link = nic = host = loaded = 0
        ran = [executions(rows) for rows in activity["rows"]]
        for op in self.operators:
            counts, times = ran[_table(op)]
            computed = exact_sum(op.units_of(counts), times)
            if isinstance(op, Collective):
                sent = (
                    op.collective_bytes_per_token
                    * computed
                    * op.repeat
                    * self._sent(op)
                    * self.own
                    // self.members
                )
                crossing = sent * self._crossing(op).numerator // self._crossing(op).denominator
                link += sent - crossing
                nic += 2 * crossing
                continue
            if isinstance(op, AdapterCopy):  # of all ranks of a stage, to their slots or from files
                size = op.adapter_bytes * computed * self.ranks * self.own
                if op.feature == "adapter_loads":
                    memory, loaded = memory + size, loaded + size
                else:
                    host += size
                continue
            moved = (op.read_bytes_per_token + op.write_bytes_per_token) * computed
            moved += weights_read(op, ran[_table(op)])
            moved += _context_bytes(op, activity)
            if op.name in self.hosted:
                host += moved * op.repeat * self.ranks * self.own
            else:
                memory += moved * op.repeat * self.ranks * self.own
        copied, pool = self._copied(activity["rows"], int(activity["offload"]["drawn_bytes"]))
        offload = activity["offload"]
        sent = sum(
            int(offload[name]) for name in ("to_memory_bytes", "from_memory_bytes", "host_bytes")
        )
        sent *= self.ranks
        return Traffic(
            memory_bytes=memory + copied + pool + sent,
            link_bytes=link,
            host_bytes=copied + sent + loaded,
            pool_bytes=pool,
            nic_bytes=nic,
            processor_bytes=host,
        )

    def _crossing(self, op: Collective) -> Fraction:
        """The part of what a collective sends that goes to another node: a ring leaves each node
        once.
        """
        ranks, nodes = self._spread(op)
        if nodes == 1:
            return Fraction(0)
        if op.collective == "send":
            return Fraction(nodes - 1, ranks - 1)
        if op.collective == "all_to_all":
            return Fraction(ranks - ranks // nodes, ranks - 1)
        return Fraction(nodes, ranks)

    def _spread(self, op: Collective) -> tuple[int, int]:
        """(ranks of a collective, or stages that hand on; nodes that they are on)."""
        if op.among in ("members", "everyone") and self.members > 1:
            ranks = self.members * (self.ranks if op.among == "everyone" else 1)
            return ranks, min(self.nodes, ranks)
        if op.collective == "send":
            ranks, devices = self.stages, self.ranks * self.stages
        else:
            ranks, devices = (self.layout or Layout(self.ranks)).ranks(op.among), self.ranks
        filled = -(-devices // self.node_devices) if self.node_devices else 1
        return ranks, min(filled, ranks)

    def _sent(self, op: Collective) -> int:
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

    def _copied(self, tables: Sequence[Int64], sampled: int) -> tuple[int, int]:
        """Bytes from the host and from the pool."""
        host = pool = 0
        for one in self.copies:
            rows = tables[FEATURES.index(one.feature or "tokens")]
            if one.experts and sampled:
                size = sampled
            elif one.feature:
                read = np.flatnonzero(rows[: len(one.rows)])
                size = sum(int(rows[row]) * int(one.rows[row]) for row in read.tolist())
            else:
                size = int(one.rows[0]) * exact_sum(rows)
            if one.place == "cpu":
                host += size * self.ranks
            else:
                pool += size * self.ranks
        return host, pool


def traffic_table(
    operators: Sequence[Operator],
    tp: int,
    copies: Sequence[Copied] = (),
    *,
    members: int = 1,
    stages: int = 1,
    layout: Layout | None = None,
    hosted: frozenset[str] = frozenset(),
    nodes: int = 1,
    node_devices: int = 0,
) -> TrafficTable:
    """The table of a group of `tp` ranks in each stage, or of a layout's; the processors run the
    `hosted` operators. A layout of FFNs alone is one of all members.
    """
    ranks = tp if layout is None else layout.stage_ranks
    own = 1 if layout is None else layout.own_members
    return TrafficTable(
        tuple(operators),
        ranks,
        members * own,
        stages,
        layout,
        tuple(copies),
        hosted,
        nodes,
        own,
        node_devices,
    )


def _table(op: Operator) -> int:
    """Which of the core's tables counts its executions."""
    return FEATURES.index("tokens" if op.feature == "attention" else op.feature)


def _context_bytes(op: Operator, activity: Mapping[str, Any]) -> int:
    """Bytes of what attention or a recurrence keeps of the tokens before."""
    sequences = int(activity["sequences"])
    match op:
        case Attention():
            kv_tokens, tokens = int(activity["kv_read_tokens"]), int(activity["scheduled_tokens"])
            seen = kv_tokens_read(op, kv_tokens, sequences, tokens)
            near = 0
            if op.beside is not None:
                near = min(kv_tokens, op.beside.window * sequences + tokens)
                near *= op.beside.kv_bytes_per_token
            return op.kv_bytes_per_context_token * seen + near
        case StateSpace():
            return 2 * op.state_bytes_per_sequence * sequences
        case _:
            return 0


class Executions(NamedTuple):
    """How often an operator ran at each number of tokens at which it ran, those of none included;
    a step ran at one of thousands.
    """

    counts: Int64
    times: Int64


def executions(rows: Int64) -> Executions:
    """Of a table of the core's: `rows[n]` executions had n tokens."""
    counts = np.flatnonzero(rows)
    return Executions(counts, rows[counts])


def weights_read(op: Operator, ran: Executions) -> int:
    """Bytes of weights read in all executions of one layer's operator."""
    match op:
        case Embedding():
            return 0
        case Moe(experts_total=experts) if experts:
            return round(fsum(ran.times * weight_bytes(op, ran.counts)))
        case _:
            return op.weight_bytes * exact_sum(ran.times[ran.counts > 0])


def kv_tokens_read(op: Attention, kv_tokens: int, sequences: int, tokens: int) -> int:
    """Tokens of KV that one layer reads, of `kv_tokens` that its sequences had: with a window at
    most the window before each scheduled sequence and what is scheduled (sequences that are shorter
    see less).
    """
    return min(kv_tokens, op.window * sequences + tokens) if op.window else kv_tokens


def weight_bytes(op: Operator, counts: NDArray[np.int64]) -> Floats:
    """Bytes of weights that one execution reads at each count: an embedding reads rows, experts as
    far as touched.
    """
    if isinstance(op, Embedding):
        return np.zeros(len(counts))
    if isinstance(op, Moe) and op.held:
        return np.asarray(op.weight_bytes / op.held * op.touched(counts.astype(float)))
    return np.asarray(op.weight_bytes * np.minimum(counts, 1).astype(float))
