"""Times the steps of a run by another ASTRA-sim: each distinct step graph once, kept on disk.

`--network-backend strict` is the installed `astra-sim` under strict rules, `external:PATH` a binary
that takes ASTRA-sim's options, such as a stock one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from llmsim import _native
from llmsim.config import input_files
from llmsim.config.errors import InputError, NotYetError
from llmsim.costs.cache import cache_dir
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import Round, iteration_graph
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.lowering.network.base import MeshDescription
from llmsim.lowering.network.topology import TopologyView
from llmsim.model import Collective
from llmsim.rounds.recorded import members_of_round

FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles")
"""ASTRA-sim's line for an NPU; a cycle is 1 ns."""
HANGS_S = 600
"""A step takes a stock binary well below a second."""
LAST_WORDS = 300
PS_PER_CYCLE = 1000
Items = list[tuple[int, int]]
StepTimes = Callable[[Sequence[Items], int], list[int]]
"""(items of each member, number of the step) -> by how many ps each member's step is longer than
its graph.
"""


@dataclass(frozen=True)
class Backend:
    """A program that times exported step graphs."""

    name: str
    """As the user gave it."""
    command: tuple[str, ...]
    identity: str
    """Of the binary and its rules: times of another one are not its own."""


def astra_sim_command() -> Path | None:
    """The command that is installed beside llmsim."""
    installed = Path(sysconfig.get_path("scripts")) / "astra-sim"
    if installed.exists():
        return installed
    found = shutil.which("astra-sim")
    return None if found is None else Path(found)


def backend_of(name: str) -> Backend:
    """The program that `--network-backend` names: "strict" or "external:PATH".

    InputError where it does not exist or cannot be run.
    """
    kind, _, given = name.partition(":")
    path = Path(given) if kind == "external" else astra_sim_command()
    if path is None:
        raise InputError(
            "--network-backend strict: the command astra-sim is not installed beside llmsim; "
            "install llmsim with `make run` or from a wheel"
        )
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(f"--network-backend {name}: {path} is no program that can be run")
    rules = ("--rules=strict",) if kind == "strict" else ()
    content = hashlib.sha256(input_files.read_bytes(path)).hexdigest()
    return Backend(name, (str(path.resolve()), *rules), f"{content} {' '.join(rules)}")


@dataclass
class OutsideTimes:
    """The times of a deployment's steps by a backend, and how many of them were new."""

    deployment: LoweredDeployment
    backend: Backend
    steps: int = 0
    runs: int = 0
    """Of the backend; other steps were known, from this run or from one before."""
    _known: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for group in self.deployment.groups:
            _refuse(self.deployment, group.info.index)

    def of(self, group: int) -> StepTimes:
        """The callable for a group and those that run its steps with it."""
        members = members_of_round(self.deployment, group)

        domain = [self.deployment.groups[index] for index in members]
        identity = f"{self.backend.identity} {_identity(domain)}"

        def longer_ps(items: Sequence[Items], step: int) -> list[int]:
            self.steps += 1
            key = _key(identity, domain, items, step)
            found = self._known.get(key) or _load(key)
            if found is None or len(found) != len(members):
                self.runs += 1
                found = self._longer_ps(group, members, items, step)
                _store(key, found)
            self._known[key] = found
            return found

        return longer_ps

    @property
    def note(self) -> str:
        """A sentence about where the steps' times are from."""
        share = self.runs / self.steps if self.steps else 0.0
        return (
            f"network backend {self.backend.name}: it timed {self.runs} of {self.steps} steps "
            f"({share:.0%}); the others were known"
        )

    def _longer_ps(
        self, group: int, members: tuple[int, ...], items: Sequence[Items], step: int
    ) -> list[int]:
        """By how much longer each member's step is there than its graph; runs the backend."""
        batch = Round(
            step - 1,
            step,
            members,
            tuple(tuple((int(new), int(before)) for new, before in one) for one in items),
            tuple((0, 0) for _ in members),
            self.deployment.accounting,
        )
        graph = iteration_graph(self.deployment.groups, group, batch)
        if (mesh := _switch_of(self.deployment.groups[group])) is not None:
            graph = replace(graph, network=mesh)
        with tempfile.TemporaryDirectory(prefix="llmsim-step-") as name:
            write_chakra(graph, list(range(graph.ranks)), Path(name))
            ends_ps = self._run(Path(name), graph.ranks)
        share = graph.ranks // len(members)
        there_ps = [max(ends_ps[at : at + share]) for at in range(0, graph.ranks, share)]
        return [there - here for there, here in zip(there_ps, graph.member_ends_ps(), strict=True)]

    def _run(self, folder: Path, ranks: int) -> list[int]:
        """Each rank's end; InputError with the program's last words where it gives none."""
        options = {
            "workload-configuration": folder / "workload",
            "system-configuration": folder / "system.json",
            "network-configuration": folder / "network.yml",
            "remote-memory-configuration": folder / "memory.json",
            "logging-folder": folder / "log",
        }
        if (folder / "comm_group.json").exists():
            options["comm-group-configuration"] = folder / "comm_group.json"
        command = [*self.backend.command, *(f"--{key}={path}" for key, path in options.items())]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=HANGS_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._failed(f"took more than {HANGS_S} s for one step", "") from None
        except OSError as error:
            raise self._failed(f"cannot be run ({error.strerror})", "") from None
        said = f"{done.stdout}\n{done.stderr}"
        ends = {int(npu): int(cycles) for npu, cycles in FINISHED.findall(said)}
        missing = [rank for rank in range(ranks) if rank not in ends]
        if done.returncode != 0:
            raise self._failed(f"ended with exit code {done.returncode}", said)
        if missing:
            raise self._failed(f"has no line of the end of NPU {missing[0]}", said)
        return [ends[rank] * PS_PER_CYCLE for rank in range(ranks)]

    def _failed(self, what: str, said: str) -> InputError:
        words = " ".join(said.split())[-LAST_WORDS:]
        last = f'; its last words: "{words}"' if words else ""
        return InputError(
            f"--network-backend {self.backend.name}: the program {what} at step {self.steps}{last}"
        )


def _refuse(deployment: LoweredDeployment, group: int) -> None:
    """NotYetError for a group whose steps the traces do not hold, or overlap."""
    lowered = deployment.groups[group]
    reasons = {
        "has pipeline stages, whose steps overlap": lowered.layout.pp > 1,
        "keeps weights, attention or operators outside of its devices": lowered.offload is not None,
        "has a drafter with a model": lowered.draft is not None,
        "is on a topology that is more than one switch, which ASTRA-sim's network files do not "
        "describe": isinstance(lowered.links, TopologyView) and _switch_of(lowered) is None,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise NotYetError(
                f"--network-backend strict or external: group {group} {reason}; this version "
                "times its steps itself, so leave the option out"
            )


def _switch_of(lowered: LoweredGroup) -> MeshDescription | None:
    """The switch of a topology that joins all ranks of a group and its members; None: there is no
    such switch, or no topology.
    """
    view = lowered.links
    if not isinstance(view, TopologyView):
        return None
    port = view.routes.switch_among(view.domain)
    return None if port is None else MeshDescription(((len(view.domain), *port),), "Switch")


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
    return repr((len(domain), first.layout, names, collectives, links, first.memory_bytes_per_s))


def _key(identity: str, domain: Sequence[LoweredGroup], items: Sequence[Items], step: int) -> str:
    """Of all that a step's time depends on: the times and bytes of its nodes, and the sizes of its
    collectives, which follow from the rows of the tables that it reads.
    """
    batches = [list(one) for one in items]
    nodes, _, counted = _native.step_nodes(domain[0].program, None, batches, step)
    rows = [[np.flatnonzero(table).tolist() for table in one["rows"]] for one in counted]
    return hashlib.sha256(f"{identity} {nodes!r} {rows!r}".encode()).hexdigest()


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
