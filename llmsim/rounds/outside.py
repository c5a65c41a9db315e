"""Times the steps of a run by another ASTRA-sim: each distinct step graph once, kept on disk.

`--network-backend strict` is the installed `astra-sim` under strict rules, `external:PATH` a binary
that takes ASTRA-sim's options, such as a stock one.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from llmsim import _native
from llmsim.config.errors import BackendFailed, NotYetError
from llmsim.core import BackendUse
from llmsim.costs.cache import cache_dir
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import IterationGraph, Round, iteration_graph
from llmsim.export.step_graph.run_times import without_launches
from llmsim.export.step_graph.streams import Drafts
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.lowering.network.topology import TopologyView
from llmsim.model import Collective
from llmsim.rounds.backend import Backend, ProgramFailed
from llmsim.rounds.meshes import FittedMesh, fitted_mesh
from llmsim.rounds.recorded import members_of_round
from llmsim.rounds.switches import switches_of
from llmsim.simulation.options import StepTimer

Items = list[list[int]]
"""(tokens, computed before) of each sequence of a batch, and how many of the tokens are drafts, if
any are.
"""
Proposed = tuple[int, int, int]
"""Drafts that each sequence gets, and passes of the drafter before: first ones, and others."""
FILES = "bandwidths in GiB/s"
"""What the files of a step say otherwise than those of earlier versions, whose kept times are not
taken.
"""
ALONE = ", and collectives of groups that share links do not slow each other"


@dataclass
class Asked:
    """What a backend was asked in a run, and what it said."""

    steps: int = 0
    runs: int = 0
    """Of the backend; other steps were known, from this run or from one before."""
    failure: str = ""
    """How the backend has failed, which has ended the run."""
    known: dict[str, list[int]] = field(default_factory=dict, repr=False)


@dataclass
class OutsideTimes:
    """The times of a deployment's steps by a backend, and how many of them were new."""

    deployment: LoweredDeployment
    backend: Backend
    asked: Asked = field(default_factory=Asked)
    """By all layouts of a run."""
    _meshes: dict[int, FittedMesh] = field(default_factory=dict, repr=False)
    """By first member: of groups on topologies that network files do not describe."""
    _layouts: tuple[OutsideTimes, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        layouts = self.deployment.layouts
        if layouts is not None:
            self._layouts = tuple(
                OutsideTimes(plan.lowered, self.backend, self.asked) for plan in layouts.plans
            )
        for group in self.deployment.groups:
            index = group.info.index
            _refuse(self.deployment, index)
            first = members_of_round(self.deployment, index)[0]
            mesh = fitted_mesh(group) if switches_of(group) is None else None
            if mesh is not None:
                self._meshes.setdefault(first, mesh)

    def of_layout(self, layout: int) -> OutsideTimes:
        """The times of a layout, whose groups have its own numbers."""
        return self._layouts[layout]

    def of(self, group: int) -> StepTimer:
        """The callable for a group and those that run its steps with it."""
        members = members_of_round(self.deployment, group)
        domain = [self.deployment.groups[index] for index in members]
        stages = domain[0].layout.pp
        mesh = self._meshes.get(members[0])
        network = None if mesh is None else mesh.description
        identity = f"{self.backend.identity} {_identity(domain)} {network}"

        def longer_ps(items: Sequence[Items], step: int, proposed: Sequence[Proposed]) -> list[int]:
            self.asked.steps += 1
            drafts = tuple(Drafts(*one) for one in proposed)
            key = _key(identity, domain, items, step, drafts)
            found = self.asked.known.get(key) or _load(key)
            if found is None or len(found) != len(members) * stages:
                found = self._longer_ps(group, members, items, step, drafts)
                self.asked.runs += 1
                _store(key, found)
            self.asked.known[key] = found
            return found

        return longer_ps

    @property
    def use(self) -> BackendUse:
        """What the backend did, for the summary."""
        asked = self.asked
        return BackendUse(self.backend.name, asked.steps, asked.runs, asked.failure)

    @property
    def note(self) -> str:
        """A sentence about where the steps' times are from."""
        steps, runs = self.asked.steps, self.asked.runs
        share = runs / steps if steps else 0.0
        contended = any(one.deployment.contended for one in (self, *self._layouts))
        return (
            f"network backend {self.backend.name}: it timed {runs} of {steps} steps "
            f"({share:.0%}); the others were known"
            f"{ALONE if contended else ''}"
            f"{''.join(f'; {said}' for said in self._assumed)}"
        )

    @property
    def _assumed(self) -> list[str]:
        """What the meshes of the groups assume, each sentence once."""
        meshes = [mesh for one in (self, *self._layouts) for mesh in one._meshes.values()]
        return list(dict.fromkeys(mesh.note for mesh in meshes))

    def _longer_ps(
        self,
        group: int,
        members: tuple[int, ...],
        items: Sequence[Items],
        step: int,
        drafts: tuple[Drafts, ...],
    ) -> list[int]:
        """By how much later each stage is done there than in the graph; runs the backend."""
        batch = Round(
            step - 1,
            step,
            members,
            tuple(tuple(tuple(item) for item in one) for one in items),
            tuple((0, 0) for _ in members),
            self.deployment.accounting,
            drafts=drafts,
        )
        graph = without_launches(iteration_graph(self.deployment.groups, group, batch))
        graph = self._on_network(graph, members[0])
        with tempfile.TemporaryDirectory(prefix="llmsim-step-") as name:
            write_chakra(graph, list(range(graph.ranks)), Path(name))
            try:
                ends_ps = self.backend.ends_ps(Path(name), graph.ranks)
            except ProgramFailed as error:
                self.asked.failure = error.sentence(self.backend.name, self.asked.steps)
                raise BackendFailed(self.asked.failure) from None
        here_ps = graph.unit_ends_ps()
        share = graph.ranks // len(here_ps)
        there_ps = [max(ends_ps[at : at + share]) for at in range(0, graph.ranks, share)]
        return [there - here for there, here in zip(there_ps, here_ps, strict=True)]

    def _on_network(self, graph: IterationGraph, first: int) -> IterationGraph:
        """The graph on a network that ASTRA-sim's files can say."""
        switches = switches_of(self.deployment.groups[first])
        if switches is not None:
            return replace(graph, network=switches)
        mesh = self._meshes.get(first)
        return graph if mesh is None else mesh.applied(graph)


def _refuse(deployment: LoweredDeployment, group: int) -> None:
    """NotYetError for a group whose steps the traces do not hold."""
    lowered = deployment.groups[group]
    plan = lowered.native.offload
    apart = any(one.afd and group in one.groups for one in deployment.lockstep_groups)
    reasons = {
        "runs attention and FFN on devices apart": apart,
        "copies over links that other transfers use, too": plan is not None and plan.shared,
        "has a network with incast": isinstance(lowered.links, TopologyView)
        and lowered.links.routes.placed.incast is not None,
        "reduces inside a switch, on a topology that is more than one": isinstance(
            lowered.links, TopologyView
        )
        and lowered.links.algorithms.on_switch
        and switches_of(lowered) is None,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise NotYetError(
                f"--network-backend strict or external: group {group} {reason}; this version "
                "times its steps itself, so leave the option out"
            )


def _identity(domain: Sequence[LoweredGroup]) -> str:
    """What all steps of a domain have in common: its operators, its network and its memory."""
    first = domain[0]
    collectives = [
        (one.name, one.collective, one.among, one.collective_bytes_per_token)
        for one in first.operators
        if isinstance(one, Collective)
    ]
    names = [one.name for one in first.operators]
    links = (first.links.description, sorted(first.links.algorithms.words.items()))
    drafter = () if first.draft is None else (first.draft.operators, first.draft.layout)
    return repr(
        (len(domain), first.layout, names, collectives, drafter, links, first.memory_bytes_per_s)
    )


def _key(
    identity: str,
    domain: Sequence[LoweredGroup],
    items: Sequence[Items],
    step: int,
    drafts: Sequence[Drafts],
) -> str:
    """Of all that a step's time depends on: the times and bytes of its nodes, and the sizes of its
    collectives, which follow from the rows of the tables that it reads.
    """
    batches = [[tuple(item) for item in one] for one in items]
    offload = None if domain[0].offload is None else domain[0].offload.native
    nodes, _, counted = _native.step_nodes(domain[0].program, offload, batches, step)
    rows = [[np.flatnonzero(table).tolist() for table in one["rows"]] for one in counted]
    passes = []
    for lowered, batch, mine in zip(domain, batches, drafts, strict=True):
        drafter = lowered.draft
        if drafter is not None:
            counts = mine.after, mine.first_passes, mine.next_passes
            passes.append(_native.draft_nodes(drafter.native, batch, *counts))
    known = f"{FILES} {identity} {nodes!r} {rows!r} {passes!r}"
    return hashlib.sha256(known.encode()).hexdigest()


def _folder() -> Path | None:
    costs = cache_dir()
    return None if costs is None else costs.parent / "steps"


def _load(key: str) -> list[int] | None:
    """What was kept; None: there are none, or the file is damaged."""
    folder = _folder()
    if folder is None:
        return None
    try:
        found = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_list = isinstance(found, list) and all(isinstance(one, int) for one in found)
    return found if is_list else None


def _store(key: str, longer_ps: Sequence[int]) -> None:
    """Keeps times; where the folder cannot be written, the next run asks again."""
    folder = _folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{key[:16]}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(list(longer_ps), file)
        Path(name).replace(folder / f"{key}.json")
    except OSError:
        return
