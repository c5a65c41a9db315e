"""Prices a group's collectives on the routes of the cluster's topology file, with all that runs at
the same time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group
from llmsim.config.topology.placement import PlacedTopology
from llmsim.core import Int64
from llmsim.lowering.network.all_to_all import Ports, check_even
from llmsim.lowering.network.collective_simulation import Run, interpolated
from llmsim.lowering.network.topology_all_to_all import routed_broadcasts_ps, routed_ports
from llmsim.model import Collective, Layout
from llmsim.model.operator import collective

PS_PER_S = 10**12
MAX_SIMULATED_MESSAGES = 3_000_000
"""For all sizes of one operator together: a few seconds. Beyond it, sizes in between are
interpolated.
"""
MAX_COMPARED_DEVICES = 64
"""Routes between all pairs of so many devices are compared in milliseconds."""

Hops = tuple[tuple[int, int], ...]
"""(bytes/s, latency in ps) of each link of a route."""


@dataclass(frozen=True, eq=False)
class Priced:
    """One operator's durations (ps) by size, and how they came about."""

    ps: Int64
    source: str
    sampled: bool = False
    """Sizes in between are interpolated: `--exact` takes the table, too."""


@dataclass(frozen=True, eq=False)
class Routes:
    """A topology in the engine, and its devices by group and rank."""

    placed: PlacedTopology
    native: "engine.Topology"

    @cached_property
    def speeds(self) -> list[tuple[int, int]]:
        """(bytes/s, latency in ps) by link."""
        return [(bandwidth, latency) for bandwidth, latency in self.native.link_speeds()]

    def domain(self, deployment: Deployment, group: Group) -> tuple[int, ...]:
        """Devices of a group, or of all members of its dp_group, by t + tp * (stage + stages *
        member).
        """
        members = [other.index for other in deployment.groups if _together(other, group)]
        return tuple(device for index in members for device in self.placed.devices[index])

    def signature(self, devices: Sequence[int]) -> tuple[object, ...]:
        """Equal for devices whose routes among each other are alike: the same speeds, shared in the
        same way.
        """
        if len(devices) > MAX_COMPARED_DEVICES:
            return tuple(devices)
        labels: dict[int, int] = {}
        routes = [
            tuple(labels.setdefault(link, len(labels)) for link in self.native.route(a, b))
            for a in devices
            for b in devices
            if a != b
        ]
        return (*routes, *(self.speeds[link] for link in labels))


def _together(other: Group, group: Group) -> bool:
    return other.index == group.index or (
        group.dp_group is not None and other.dp_group == group.dp_group
    )


def routes_of(deployment: Deployment) -> Routes | None:
    """The deployment's topology, ready for the engine; None where it has none. InputError where it
    cannot exist.
    """
    placed = deployment.topology
    return None if placed is None else Routes(placed, placed.spec.build(engine))


@dataclass(frozen=True, eq=False)
class RoutedLinks:
    """A domain on the devices of a topology; `llmsim.lowering.network.mesh.DomainLinks` is the same
    on nominal links.

    All ranks go on together when a collective's last rank, or a hand-over's last message, has
    ended; the exchanges between the members, one for each tensor-parallel rank, run side by side on
    the same network.
    """

    layout: Layout
    members: int
    routes: Routes
    domain: tuple[int, ...]
    network: "engine.NetworkKind"
    kinds: Mapping[str, "engine.CollectiveKind"]
    nodes: int = 1
    """On how many the members are, evenly."""

    def price(self, op: Collective, sizes: Int64, stage: int) -> Priced:
        """For each size (bytes > 0), nothing else on the network; of the slowest member where they
        differ.
        """
        if op.collective == "broadcast":
            ps = routed_broadcasts_ps(self.routes, self._exchanging(op, stage), sizes)
            return Priced(
                ps, f"engine, broadcasts in turn on routes of {self.routes.placed.spec.name}"
            )
        runs = self._runs(op, stage)
        ps = np.maximum.reduce([self._run_durations(op, run, sizes) for run in runs])
        sampled = any(self._is_sampled(op, run, len(sizes)) for run in runs)
        how = "messages" if op.collective == "send" else f"ring {op.collective}"
        flows = [flow for run in runs for flow in self._flows(op, run)]
        slowest = min(bandwidth for flow in flows for bandwidth, _ in self._hops(*flow))
        source = (
            f"engine, {how} on routes of {self.routes.placed.spec.name}, slowest link "
            f"{slowest / 1e9:g} GB/s"
        )
        return Priced(
            ps, source + (", interpolated between simulated sizes" if sampled else ""), sampled
        )

    def context_gather(self, ranks: int, sizes: Int64) -> Int64:
        """ps of a ring that gathers so many bytes from the first ranks of a stage."""
        gather = collective("context_gather", "all_gather", "tp", 1, part="layer", repeat=1)
        return self._run_durations(
            gather, [[self._device(rank, 0, 0) for rank in range(ranks)]], sizes
        )

    def exchange(self, op: Collective, stage: int) -> Ports:
        """Between whom tokens travel. InputError where nodes have unequal numbers of ranks."""
        check_even(self.layout, op, self.nodes)
        return routed_ports(self.routes, self._exchanging(op, stage), self.nodes)

    def _exchanging(self, op: Collective, stage: int) -> list[list[int]]:
        """Devices by rank of each exchange of tokens: of all ranks, or of each tensor-parallel rank
        with its peers.
        """
        tp, members = range(self.layout.stage_ranks), range(self.members)
        if op.among == "everyone":
            return [[self._device(rank, stage, member) for member in members for rank in tp]]
        return [[self._device(rank, stage, member) for member in members] for rank in tp]

    @property
    def dimensions(self) -> tuple[tuple[int, int, int], ...]:
        """None: the network is no grid."""
        return ()

    def config(self, specs: Sequence["_native.CollectiveSpec"]) -> "_native.ExpandedConfig":
        """How the engine runs the domain's nodes."""
        return _native.ExpandedConfig(
            self.routes.native, self.network, specs, self.members, self.domain
        )

    @property
    def network_name(self) -> str:
        """As options name it: congestion-unaware, congestion-aware or fair-share."""
        return str(self.network).rsplit(".", 1)[-1].lower().replace("_", "-")

    @cached_property
    def must_expand(self) -> str:
        """Why folded evaluation would not be exact here; empty: it is.

        Members that are not in step share a link on a network that knows contention, or their links
        differ.
        """
        if self.members == 1:
            return ""
        if (
            len({self.routes.signature(self._devices_of(member)) for member in range(self.members)})
            > 1
        ):
            return "the members' links differ"
        if self.network == engine.NetworkKind.CONGESTION_UNAWARE:
            return ""
        seen: set[int] = set()
        for member in range(self.members):
            mine = {
                link
                for flow in self._flows_of_member(member)
                for link in self.routes.native.route(*flow)
            }
            if seen & mine:
                return "its members share links while they are not in step"
            seen |= mine
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know of the network."""
        said = (
            f"topology {self.routes.placed.spec.name}: collectives on its routes "
            f"({self.network_name})"
        )
        if self.must_expand:
            said += (
                f"; every rank's nodes run in the engine, as with --exact, since {self.must_expand}"
            )
        return (said,)

    def _device(self, rank: int, stage: int, member: int) -> int:
        return self.domain[rank + self.layout.stage_ranks * (stage + self.layout.pp * member)]

    def _devices_of(self, member: int) -> tuple[int, ...]:
        each = self.layout.stage_ranks * self.layout.pp
        return self.domain[member * each : (member + 1) * each]

    def _flows_of_member(self, member: int) -> Iterable[tuple[int, int]]:
        tp = self.layout.stage_ranks
        for stage in range(self.layout.pp):
            at = [self._device(rank, stage, member) for rank in range(tp)]
            yield from ((a, b) for a, b in zip(at, at[1:] + at[:1], strict=True) if a != b)
            if stage + 1 < self.layout.pp:
                yield from ((at[rank], self._device(rank, stage + 1, member)) for rank in range(tp))

    def _runs(self, op: Collective, stage: int) -> list[list[list[int]]]:
        """What runs at once, for each member: lists of devices, each a collective (a send: sender
        and receiver).
        """
        tp, members = range(self.layout.stage_ranks), range(self.members)
        if op.among == "everyone":
            # To and fro, so that a hop of the ring stays in a member or goes to the same rank of
            # the next one.
            return [
                [
                    [
                        self._device(rank, stage, member)
                        for member in members
                        for rank in tp[:: 1 - 2 * (member % 2)]
                    ]
                ]
            ]
        if op.among == "members":
            return [[[self._device(rank, stage, member) for member in members] for rank in tp]]
        if op.collective == "send":
            ends = [
                [[self._device(t, s, member) for s in (stage, stage + 1)] for t in tp]
                for member in members
            ]
            return self._distinct(ends)
        groups = self._groups(op)
        return self._distinct(
            [
                [[self._device(rank, stage, member) for rank in group] for group in groups]
                for member in members
            ]
        )

    def _groups(self, op: Collective) -> list[list[int]]:
        """The ranks of a stage that do a collective together, group by group."""
        size, stride = self.layout.ranks(op.among), self.layout.stride(op.among)
        firsts = [rank for rank in range(self.layout.stage_ranks) if rank // stride % size == 0]
        return [[first + i * stride for i in range(size)] for first in firsts]

    def _distinct(self, runs: list[list[list[int]]]) -> list[list[list[int]]]:
        """Without members whose routes are those of another."""
        found = {
            self.routes.signature([device for part in run for device in part]): run
            for run in reversed(runs)
        }
        return list(found.values())

    def _flows(self, op: Collective, run: list[list[int]]) -> list[tuple[int, int]]:
        if op.collective == "send":
            return [(a, b) for a, b in run]
        return [pair for group in run for pair in zip(group, group[1:] + group[:1], strict=True)]

    def _hops(self, a: int, b: int) -> Hops:
        return tuple(self.routes.speeds[link] for link in self.routes.native.route(a, b))

    def _steps(self, op: Collective, run: list[list[int]]) -> int:
        """Messages of a rank, one after another."""
        if op.collective == "send":
            return 1
        return (len(run[0]) - 1) * (2 if op.collective == "all_reduce" else 1)

    def _step_route(self, op: Collective, run: list[list[int]]) -> Hops | None:
        """The route of every message, where all take routes of the same speeds and none waits for
        another: then all messages of a step end together, and a collective takes its steps times
        one. None: it has to be simulated.
        """
        flows = self._flows(op, run)
        hops = {self._hops(*flow) for flow in flows}
        if len(hops) > 1:
            return None
        if self.network != engine.NetworkKind.CONGESTION_UNAWARE:
            used = [link for flow in flows for link in self.routes.native.route(*flow)]
            if len(set(used)) < len(used):
                return None
        return hops.pop()

    def _messages(self, op: Collective, run: list[list[int]]) -> int:
        return self._steps(op, run) * sum(len(group) for group in run)

    def _is_sampled(self, op: Collective, run: list[list[int]], sizes: int) -> bool:
        return (
            self._step_route(op, run) is None
            and sizes * self._messages(op, run) > MAX_SIMULATED_MESSAGES
        )

    def _run_durations(self, op: Collective, run: list[list[int]], sizes: Int64) -> Int64:
        hops = self._step_route(op, run)
        if hops is not None:
            parts = 1 if op.collective == "send" else len(run[0])
            return self._steps(op, run) * self._message_ps(hops, -(-sizes // parts))
        simulate = Run(self.routes.native, self.network, op, run, self.kinds)
        if not self._is_sampled(op, run, len(sizes)):
            return np.array([simulate.duration_ps(int(size)) for size in sizes], np.int64)
        return interpolated(simulate, sizes, MAX_SIMULATED_MESSAGES // self._messages(op, run))

    def _message_ps(self, hops: Hops, chunks: Int64) -> Int64:
        latency = sum(latency for _, latency in hops)
        if self.network == engine.NetworkKind.CONGESTION_AWARE:
            return sum(
                (_serialisation_ps(chunks, bandwidth) for bandwidth, _ in hops),
                np.full(len(chunks), latency),
            )
        return latency + _serialisation_ps(chunks, min(bandwidth for bandwidth, _ in hops))


def _serialisation_ps(sizes: Int64, bytes_per_s: int) -> Int64:
    """ceil(bytes * 10^12 / bandwidth), the engine's one rounding; in Python's integers where 64
    bits do not hold it.
    """
    if int(sizes.max(initial=0)) < (1 << 62) // PS_PER_S:
        return -(-sizes * PS_PER_S // bytes_per_s)
    return np.array([-(-int(size) * PS_PER_S // bytes_per_s) for size in sizes], np.int64)
