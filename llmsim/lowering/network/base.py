"""The network of a domain as lowering sees it: what its collectives cost, and on which links."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group
from llmsim.config.errors import InputError
from llmsim.core import Int64
from llmsim.costs.nccl.plans import Place, Way
from llmsim.lowering.network.algorithms import KINDS, Algorithms, described
from llmsim.lowering.network.all_to_all import ChosenExchange, Ports
from llmsim.lowering.network.nccl import NcclModel, is_planned
from llmsim.model import Collective, Hardware, Layout
from llmsim.model.layout import Among
from llmsim.model.operator import collective

NETWORKS = {
    "congestion-unaware": engine.NetworkKind.CONGESTION_UNAWARE,
    "congestion-aware": engine.NetworkKind.CONGESTION_AWARE,
    "fair-share": engine.NetworkKind.FAIR_SHARE,
}
Network = Literal["analytical", "congestion-unaware", "congestion-aware", "fair-share"]
"""`analytical` is congestion-unaware on nominal links, as in LLMServingSim, and fair-share on the
routes of a topology.
"""
NO_INCAST = engine.Incast()
MAX_SIMULATED_MESSAGES = 3_000_000
"""Simulated messages of all sizes of one operator together: a few seconds. Beyond it, sizes in
between are interpolated.
"""
FEWEST_SIZES = 64
"""Sizes that are simulated at least, however many messages each takes."""


class Priced(Struct, frozen=True, eq=False):
    """One operator's durations (ps) by size, and how they came about."""

    ps: Int64
    source: str
    sampled: bool = False
    """Sizes in between are interpolated: `--exact` takes the table, too."""
    planned: bool = False
    """A model of NCCL has given the durations: the engine has no messages of the collective."""


class MeshDescription(Struct, frozen=True):
    """A full mesh, or a switch, per dimension, as exported graphs describe the network."""

    dimensions: tuple[tuple[int, int, int], ...]
    """(devices, bytes/s, latency in ps), the first dimension varying fastest."""
    shape: Literal["FullyConnected", "Switch"] = "FullyConnected"
    """Of every dimension."""


class TopologyDescription(Struct, frozen=True):
    """The cluster's network, and where on it the ranks are, as exported graphs describe it."""

    file: Mapping[str, Any]
    """A topology file (`llmsim.config.topology.file`)."""
    num_devices: int
    devices: tuple[int, ...]
    """The device of each rank."""
    network: str
    """How messages contend, as the command `astra-sim` names it."""
    incast: str = ""
    """What bursts cost at switches, as its option `--incast` has it; "": nothing."""


class Episode(Struct, frozen=True):
    """Collectives or messages that start together on a network of their own."""

    topology: "engine.Topology"
    groups: tuple[tuple[int, ...], ...]
    """Devices of each collective in rank order; of a message, its sender and its receiver."""
    incast: "engine.Incast" = NO_INCAST
    """What bursts of many senders cost at its switches."""


class NominalNote(Struct, frozen=True):
    """A sentence on a rate of the cluster file that looks too fast."""

    sentence: str
    of_group: bool
    """Whether the groups that it is about stand before it."""


@dataclass(frozen=True, eq=False)
class NetworkView(ABC):
    """The network of a group, or of all members of its data-parallel domain.

    Devices of the domain are numbered t + stage_ranks * (stage + pp * member).
    """

    layout: Layout
    members: int
    network: "engine.NetworkKind"
    algorithms: Algorithms
    nodes: int
    """Nodes that the members are on, as many on each."""
    nccl: NcclModel | None
    """The collective library, where it prices what no option names an algorithm of."""

    @property
    @abstractmethod
    def description(self) -> MeshDescription | TopologyDescription:
        """The network as exported graphs describe it."""

    @property
    @abstractmethod
    def stages_alike(self) -> bool:
        """Whether a collective takes equally long in every pipeline stage."""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """Sentences for readers of the results on how collectives are timed."""

    @property
    def measured_notes(self) -> tuple[str, ...]:
        """What is said instead of `notes` where measured times price every collective."""
        return self.notes

    @abstractmethod
    def exact(self) -> bool:
        """Whether folded evaluation equals expanded evaluation to the picosecond."""

    def exchange(self, op: Collective, stage: int) -> Ports:
        """Between whom tokens travel, and how.

        InputError where nodes have unequal numbers of ranks.
        """
        if not self.algorithms.names("all_to_all"):
            return self._ports(op, stage)
        episodes = self._episodes(op, stage)
        return ChosenExchange(
            self.layout.ranks(op.among), self.nodes, (1, 0), (1, 0),
            partial(self._rows_ps, op, episodes), f"by {self._how(op)} {self._where(op, episodes)}",
        )  # fmt: skip

    @abstractmethod
    def _ports(self, op: Collective, stage: int) -> Ports:
        """The ports of an exchange of tokens that no option names an algorithm of."""

    @abstractmethod
    def config(self, specs: "Sequence[_native.CollectiveSpec]") -> "_native.ExpandedConfig":
        """How the engine runs the domain's nodes."""

    @abstractmethod
    def nominal_notes(
        self, deployment: Deployment, group: Group, hardware: Hardware | None
    ) -> tuple[NominalNote, ...]:
        """Where the rates of the cluster file look too fast for what they connect."""

    @abstractmethod
    def _episodes(self, op: Collective, stage: int) -> list[Episode]:
        """What runs at the same time in a stage; several where members or places differ."""

    @abstractmethod
    def _where(self, op: Collective, episodes: Sequence[Episode]) -> str:
        """The links of the episodes, for the source of a cost."""

    @abstractmethod
    def _message(self) -> str:
        """What a hand-over between two stages is called in the source of a cost."""

    def dimension(self, op: Collective) -> int:
        """The dimension of the network that a collective runs in, innermost first."""
        return self.dimension_among(op.among)

    def dimension_among(self, among: Among) -> int:
        """The dimension of the network between some ranks."""
        if among in ("members", "everyone"):
            return self.members_dimension
        return int(among == "stages")

    @property
    def members_dimension(self) -> int:
        """The dimension between data-parallel ranks on one node."""
        return 1 + (self.layout.pp > 1)

    def algorithm(self, op: Collective) -> "engine.AlgorithmChoice":
        """By which algorithm a collective runs."""
        return self.algorithms.of(op.collective, self.dimension(op))

    def price(self, op: Collective, sizes: Int64, stage: int) -> Priced:
        """Durations of a collective or hand-over of each size (bytes > 0), alone on the network.

        All ranks start together; where members differ, the slowest decides.
        """
        if self.plans(op):
            assert self.nccl is not None
            places = self._places(op, stage, self.nccl)
            if places:
                ps, source = self._library(self.nccl, op, stage).price(op, sizes, places)
                return Priced(ps, source, planned=True)
        episodes = self._episodes(op, stage)
        where = self._where(op, episodes)
        if op.collective == "broadcast":
            ps = np.maximum.reduce([_broadcasts(episode, sizes) for episode in episodes])
            return Priced(ps, f"engine, broadcasts in turn {where}")
        durations = [self._durations(op, episode, sizes) for episode in episodes]
        sampled = any(one.sampled for one in durations)
        source = f"engine, {self._how(op)} {where}"
        if sampled:
            source += ", interpolated between simulated sizes"
        return Priced(np.maximum.reduce([one.ps for one in durations]), source, sampled)

    def plans(self, op: Collective) -> bool:
        """Whether NCCL plans this kind of collective, since no option names its algorithm."""
        planned = self.nccl is not None and self.nccl.scope != "nowhere" and is_planned(op)
        return planned and not self.algorithms.names(op.collective)

    def ways(self, op: Collective, units: int, stage: int, nodes: int) -> list[tuple[int, Way]]:
        """(from how many units on, plan) of a collective of 1 to so many tokens or sequences among
        ranks on so many servers; nothing where the library has no plan.

        Tables do not say by which plan their times came about: the model's choice stands for it.
        """
        if self.nccl is None or not is_planned(op) or self.algorithms.names(op.collective):
            return []
        everywhere = replace(self.nccl, scope="everywhere")
        places = [one for one in self._places(op, stage, everywhere) if one.nodes == nodes]
        return self._library(everywhere, op, stage).ways(op, units, places) if places else []

    @abstractmethod
    def _places(self, op: Collective, stage: int, nccl: NcclModel) -> list[Place]:
        """Where NCCL plans the collective of each group of ranks; empty: the links price it."""

    def _library(self, nccl: NcclModel, op: Collective, stage: int) -> NcclModel:
        """The library on the links inside the servers of a collective."""
        return nccl

    def _rows_ps(self, op: Collective, episodes: Sequence[Episode], sizes: Int64) -> Int64:
        """Durations of an all-to-all in which each rank sends so many bytes."""
        unique, owner = np.unique(sizes, return_inverse=True)
        longest = np.maximum.reduce([self._durations(op, one, unique).ps for one in episodes])
        return np.asarray(longest[owner].reshape(sizes.shape), np.int64)

    def context_gather(self, ranks: int, sizes: Int64) -> Int64:
        """Durations of gathering so many bytes from the first ranks of a stage."""
        gather = collective("context_gather", "all_gather", "tp", 1, part="layer", repeat=1)
        return self._durations(gather, self._first_ranks(ranks), sizes).ps

    @abstractmethod
    def _first_ranks(self, ranks: int) -> Episode:
        """A collective of the first ranks of the first stage."""

    def _how(self, op: Collective) -> str:
        """The algorithm and kind of a collective, for the source of a cost."""
        if op.collective == "send":
            return self._message()
        return f"{described(self.algorithm(op))} {op.collective}"

    def _durations(self, op: Collective, episode: Episode, sizes: Int64) -> Priced:
        kind = None if op.collective == "send" else KINDS[op.collective]
        try:
            durations = engine.ConcurrentDurations(
                episode.topology, self.network, list(map(list, episode.groups)), kind,
                self.algorithm(op), episode.incast,
            )  # fmt: skip
        except engine.InvalidTopology as error:
            raise InputError(f"{op.collective}_implementation: {error}") from None
        messages = durations.num_simulated
        if messages * len(sizes) <= MAX_SIMULATED_MESSAGES:
            return Priced(np.asarray(durations.durations_ps(sizes), np.int64), "")
        most = max(MAX_SIMULATED_MESSAGES // messages, FEWEST_SIZES)
        return Priced(_interpolated(durations, sizes, most), "", sampled=True)


def _broadcasts(episode: Episode, sizes: Int64) -> Int64:
    groups = list(map(list, episode.groups))
    return np.asarray(engine.broadcasts_in_turn(episode.topology, groups, sizes), np.int64)


def _interpolated(durations: "engine.ConcurrentDurations", sizes: Int64, most: int) -> Int64:
    """Durations linear between about `most` sizes that are simulated, the ends among them; rounded
    down.
    """
    number = len(sizes)
    places = np.unique(np.geomspace(1, number, most).round().astype(np.int64)) - 1
    known = np.asarray(durations.durations_ps(sizes[places]), np.int64)
    at = np.arange(number)
    after = np.searchsorted(places, at, side="left")
    before = np.maximum(after - (places[after] > at), 0)
    span = np.maximum(places[after] - places[before], 1)
    risen = (known[after] - known[before]) * (at - places[before]) // span
    return np.asarray(known[before] + risen)
