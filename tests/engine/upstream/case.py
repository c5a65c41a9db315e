"""A case in memory: what its folder holds, as parts that can be taken away."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.strict.custom_programs import CustomProgram
from engine.strict.strict_programs import Program
from llmsim.export.chakra import TraceNode, read_trace, write_trace

FEATURES = {"programs": Program, "custom": CustomProgram}


@dataclass(frozen=True)
class Case:
    """`files` are those beside the traces, by name; every path inside is relative to the folder."""

    backend: str
    flags: tuple[str, ...]
    traces: tuple[tuple[TraceNode, ...], ...]
    system: dict[str, Any]
    groups: dict[str, list[int]]
    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Node times are logged, so that both programs tell them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        for npu, nodes in enumerate(self.traces):
            write_trace(folder / f"workload.{npu}.et", nodes)
        system = self.system | {"trace-enabled": 1}
        (folder / "system.json").write_text(json.dumps(system, indent=1), encoding="utf-8")
        if self.groups:
            (folder / "comm_group.json").write_text(json.dumps(self.groups), encoding="utf-8")

    def options(self) -> list[str]:
        """Of either program, from the case's folder; upstream ignores those that it has not."""
        groups = "comm_group.json" if self.groups else "empty"
        return [
            "--rules=strict",
            f"--network-backend=congestion-{self.backend}",
            "--workload-configuration=workload",
            "--system-configuration=system.json",
            "--network-configuration=network.yml",
            "--remote-memory-configuration=memory.json",
            f"--comm-group-configuration={groups}",
            *self.flags,
        ]

    def with_traces(self, traces: Sequence[Sequence[TraceNode]]) -> "Case":
        return replace(self, traces=tuple(map(tuple, traces)))


def draw(feature: str, seed: int, folder: Path) -> Case:
    """A random case; `folder` has to be new."""
    program = FEATURES[feature](seed, folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    here = f"{folder}/".encode()
    files = {
        name: content if name.endswith(".et") else content.replace(here, b"")
        for name, content in files.items()
    }
    count = sum(name.startswith("workload.") for name in files)
    traces = tuple(tuple(read_trace(folder / f"workload.{npu}.et")) for npu in range(count))
    system = json.loads(files["system.json"])
    groups = json.loads(files.get("comm_group.json", b"{}"))
    written = {"system.json", "comm_group.json"}
    rest = {
        name: content
        for name, content in files.items()
        if name not in written and not name.startswith("workload.")
    }
    return Case(program.backend, tuple(program.flags), traces, system, groups, rest)
