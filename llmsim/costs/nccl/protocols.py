"""The time of one collective inside a server by each protocol of NCCL, and by vLLM's own kernels.

A protocol takes floor + step x steps + volume / rate + own part / copy rate + fill x root(volume):

- the floor is launch and synchronisation; a step is a message to the next rank;
- the volume is what crosses a GPU's links, which nccl-tests calls the bus's;
- Simple copies a rank's own part between buffers, at the copy rate;
- a pipeline whose chunks balance start-up and fill adds the root of its volume.
"""

from collections.abc import Callable, Mapping
from math import inf

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often the vector goes round: an all-reduce is a reduce-scatter and an all-gather."""
ONE_SHOT, TWO_SHOT, MULTIMEM = "one-shot", "two-shot", "multimem"
"""vLLM's own all-reduces: custom, and on symmetric memory that the switch reduces."""
NVLS = "NVLS"
"""NCCL's all-reduce on NVLink switches that reduce."""
CUSTOM = (ONE_SHOT, TWO_SHOT, MULTIMEM)
QUICK = "quick two-shot"
"""vLLM's all-reduce on AMD's cards, whose messages may be quantised."""
QUICK_MESSAGES = ("FP", "INT8", "INT6", "INT4", "INT3")
"""Its protocols by what they send."""
AT_ONCE = {ONE_SHOT: 1, **dict.fromkeys((TWO_SHOT, MULTIMEM, NVLS, *QUICK_MESSAGES), 2)}
"""Protocols whose ranks send to all others, or to a switch, at once: how often one waits for a
link. Of all others each message waits for the one before.
"""
MEGABYTE = 1e6


class Protocol(Struct, frozen=True):
    """Measured constants of one protocol for one kind of collective on one machine."""

    name: str
    floor_us: float
    step_us: float
    gb_per_s: tuple[tuple[int, float], ...]
    """(ranks, GB/s of the bus), ascending; servers on PCIe differ by the number of ranks."""
    copy_gb_per_s: float = inf
    fill_us: float = 0.0
    """Microseconds for the root of each megabyte."""
    fewest_ranks: int = 2
    most_ranks: float = inf
    below_bytes: float = inf
    """Messages from here on are not sent by this protocol."""
    wait_us: float = 0.0
    """What a message waits for a link beyond the latency of the machine that was measured; below
    that, negative.
    """

    def rate_gb_per_s(self, ranks: int) -> float:
        """GB/s of the bus among so many ranks: measured with as many, or with the next number."""
        for measured, rate in self.gb_per_s:
            if ranks <= measured:
                return rate
        return self.gb_per_s[-1][1]

    def scaled(self, factor: float) -> "Protocol":
        """The same on links that are `factor` times as fast."""
        rates = tuple((ranks, rate * factor) for ranks, rate in self.gb_per_s)
        return replace(self, gb_per_s=rates)

    def waiting(self, wait_us: float) -> "Protocol":
        """The same on links of so much more latency."""
        return replace(self, wait_us=wait_us)

    @property
    def message_us(self) -> float:
        """A message of a ring to the next rank."""
        return max(0.0, self.step_us + self.wait_us)

    def start_us(self, kind: str, ranks: int) -> float:
        """What a collective of no bytes takes; no link is faster than the launch."""
        waits = AT_ONCE.get(self.name, PHASES[kind] * (ranks - 1))
        messages_us = self.step_us * steps(self.name, kind, ranks) + self.wait_us * waits
        return self.floor_us + max(0.0, messages_us)

    def us(self, kind: str, sizes: Floats, ranks: int) -> Floats:
        """Microseconds of a collective of each size (bytes) inside a server; inf where the protocol
        does not take it.
        """
        volume = crossing(self.name, kind, sizes, ranks)
        start = self.start_us(kind, ranks)
        sent = volume / (self.rate_gb_per_s(ranks) * 1e3)
        times = start + sent + self.buffers_us(volume, sizes / ranks)
        taken = self.fewest_ranks <= ranks <= self.most_ranks
        return np.where(taken & (sizes < self.below_bytes), times, inf)

    def buffers_us(self, volume: Floats, own: Floats) -> Floats:
        """What buffers cost: the copy of a rank's own part, and the fill of the pipeline."""
        return own / (self.copy_gb_per_s * 1e3) + self.fill_us * np.sqrt(volume / MEGABYTE)


class Machine(Struct, frozen=True, eq=False):
    """What was fitted on the measured collectives of one machine; `docs` has the errors."""

    name: str
    link_gb_per_s: float
    """Line rate of a GPU's links in a server, one direction."""
    kinds: Mapping[str, tuple[Protocol, ...]]
    """NCCL's protocols by kind of collective."""
    custom: tuple[Protocol, ...] = ()
    """All-reduces of vLLM in a CUDA graph: its own kernels, and NCCL beyond them."""
    eager_floor_us: float = 0.0
    """The least that vLLM's all-reduce takes outside of CUDA graphs."""
    eager_us: float = 0.0
    """What a launch outside of CUDA graphs adds."""
    eager_copy_gb_per_s: float = inf
    """Rate of the copy of the vector that vLLM makes outside of CUDA graphs."""
    quick: Mapping[str, tuple[Protocol, ...]] = field(default_factory=dict)
    """vLLM's quick all-reduce by the type of its kernels and by quantisation; empty: not there."""
    pair_links: int = 1
    """Links that the line rate is divided among, one for each peer; 1: a switch joins all."""

    def scaled(self, link_gb_per_s: float, name: str) -> "Machine":
        """The same machine with links of another rate."""
        factor = link_gb_per_s / self.link_gb_per_s
        if factor == 1.0:
            return self
        faster = self._with(lambda one: one.scaled(factor))
        return replace(faster, name=name, link_gb_per_s=link_gb_per_s)

    def waiting(self, wait_us: float) -> "Machine":
        """The same machine with links of so much more latency."""
        return self if wait_us == 0.0 else self._with(lambda one: one.waiting(wait_us))

    def _with(self, change: Callable[[Protocol], Protocol]) -> "Machine":
        """The same machine with every protocol changed."""
        kinds = {kind: tuple(map(change, protocols)) for kind, protocols in self.kinds.items()}
        quick = {kernel: tuple(map(change, protocols)) for kernel, protocols in self.quick.items()}
        return replace(self, kinds=kinds, custom=tuple(map(change, self.custom)), quick=quick)

    def without(self, names: tuple[str, ...]) -> "Machine":
        """The same machine without some protocols."""

        def kept(protocols: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
            return tuple(one for one in protocols if one.name not in names)

        kinds = {kind: kept(protocols) for kind, protocols in self.kinds.items()}
        return replace(self, kinds=kinds, custom=kept(self.custom))

    def protocol(self, kind: str, name: str) -> Protocol | None:
        """One protocol of NCCL by its name."""
        return next((one for one in self.kinds[kind] if one.name == name), None)

    def eager(self, graph_us: Floats, sizes: Floats) -> Floats:
        """vLLM's all-reduce outside of CUDA graphs, from what it takes in one."""
        copied = graph_us + self.eager_us + sizes / (self.eager_copy_gb_per_s * 1e3)
        return np.maximum(copied, self.eager_floor_us)


def crossing(name: str, kind: str, sizes: Floats, ranks: int) -> Floats:
    """Bytes that cross a GPU's links in one direction."""
    if name == ONE_SHOT:
        return sizes * (ranks - 1.0)
    return sizes * (PHASES[kind] * (ranks - 1.0) / ranks)


def steps(name: str, kind: str, ranks: int) -> int:
    """Messages of a rank, one after the other; a switch that reduces takes none."""
    return 0 if name in (NVLS, MULTIMEM) else PHASES[kind] * (ranks - 1)


def protocol_times(protocols: tuple[Protocol, ...], kind: str, sizes: Floats, ranks: int) -> Floats:
    """Microseconds by protocol and size; inf where it is not taken: NCCL's are not where vLLM has
    kernels of its own.
    """
    times = np.array([one.us(kind, sizes, ranks) for one in protocols])
    own = np.array([one.name in CUSTOM for one in protocols])
    if own.any():
        taken = np.isfinite(times[own]).any(axis=0)
        times[~own] = np.where(taken, inf, times[~own])
    return times


def fastest(protocols: tuple[Protocol, ...], kind: str, sizes: Floats, ranks: int) -> Floats:
    """Microseconds of the fastest protocol for each size."""
    return np.asarray(protocol_times(protocols, kind, sizes, ranks).min(axis=0))
