"""A node of an iteration's graph, and which ranks do what together."""

from __future__ import annotations

from dataclasses import dataclass

from llmsim.export.step_graph.record import Record
from llmsim.export.step_graph.rows import Row
from llmsim.model import Layout

PS_PER_US = 1_000_000
UW_PER_W = 1_000_000
LAUNCH = "launch"
"""Kind of a node: the host launches the kernels of a step, or of a drafter's pass."""
M2N_SEND, M2N_RECEIVE = "m2n_send", "m2n_receive"
"""Kinds of nodes: rows between attention and FFN leave a device, or come to one."""


class GraphNode(Record, frozen=True, gc=False):
    """One execution of one operator on one rank; times in ps, bytes per rank."""

    node: int
    """Unique among all ranks."""
    rank: int
    name: str
    kind: str
    """"compute", "attention", "collective", "send", "receive", "copy", LAUNCH, M2N_SEND,
    M2N_RECEIVE, or one of `llmsim.export.step_graph.transfers.KINDS`.
    """
    layer: int
    """From 0 within its part; 0 in the prologue and the head."""
    part: int
    start_ps: int
    """After the start of the iteration; below 0 for what began before: KV on its way, copies, and
    the host's work.
    """
    duration_ps: int
    flops: int
    bytes_moved: int
    """Read and written, weights included; of a collective the tensor's size, of a message its own.
    """
    power_class: str
    collective: str
    on_links: bool
    """A collective or message that the links price: its duration here is that of the engine's
    default rules.
    """
    provenance: str
    source: str
    depends_on: tuple[int, ...]
    group: tuple[int, ...] = ()
    """Ranks of a collective; sender and receiver of a message."""
    device: str = "npu"
    """The class of device that is busy: "npu", "cpu", "pim", or "link" for copies."""
    route: str = ""
    """Of a copy: from where to where, as "cxl:0 -> npu"."""
    half: int = 0
    """0: of the whole batch; 1 or 2: of one of two halves that alternate; or the lane of a batch
    between attention and FFN.
    """
    device_id: str = ""
    """What is busy, as "group0.rank1", "node0.cpu" or "link"."""
    compute_aj: int = 0
    """Attojoules of the device that is active; 0 also where nobody says what it draws."""
    memory_aj: int = 0
    """Of bytes of the device's memory, of DIMMs and of the pool."""
    link_aj: int = 0
    """Of bytes on links and network cards."""
    lost_ps: int | None = None
    """Of the duration of a collective or message in its run, what other traffic on its links cost;
    of a receive, of its message. None: nothing could meet it.
    """
    late_ps: int = 0
    """How much later it started in its run than what it waits for had ended, since its devices were
    busy with other steps.
    """
    caches: bool = False
    """KV of its layer, or a state, is there when it has ended."""
    told: bool = False
    """Of a collective or message: traces give its duration, instead of leaving it to the network
    that reads them.
    """

    @property
    def energy_aj(self) -> int:
        """Attojoules of the node."""
        return self.compute_aj + self.memory_aj + self.link_aj

    @property
    def power_w(self) -> float:
        """Mean power while the node runs."""
        return self.energy_aj / self.duration_ps / UW_PER_W if self.duration_ps else 0.0

    @property
    def end_ps(self) -> int:
        """After the start of the iteration."""
        return self.start_ps + self.duration_ps


@dataclass(frozen=True)
class Ranks:
    """The devices of a domain: t + R (s + S m) is rank t of R in stage s of S of member m, as in
    the core.
    """

    layout: Layout
    members: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.layout.stage_ranks * self.layout.pp * self.members

    def number(self, member: int, stage: int, device: int) -> int:
        """Of one device."""
        return device + self.layout.stage_ranks * (stage + self.layout.pp * member)

    def place(self, rank: int) -> tuple[int, int]:
        """Member and stage of a rank."""
        return divmod(rank // self.layout.stage_ranks, self.layout.pp)

    def device(self, rank: int) -> int:
        """Its number inside its stage."""
        return rank % self.layout.stage_ranks

    def together(self, rank: int, row: Row) -> tuple[int, ...]:
        """The ranks that do a collective together."""
        if row.kind != "collective":
            return ()
        each = self.layout.stage_ranks
        (member, stage), device = self.place(rank), self.device(rank)
        if row.among in ("members", "everyone"):
            devices = range(each) if row.among == "everyone" else (device,)
            return tuple(self.number(m, stage, d) for m in range(self.members) for d in devices)
        size, stride = self.layout.ranks(row.among), self.layout.stride(row.among)
        first = device // (size * stride) * size * stride + device % stride
        return tuple(self.number(member, stage, first + i * stride) for i in range(size))
