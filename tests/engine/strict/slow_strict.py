"""A slow executor of strict rules, written from their statement alone, to compare the fast one with
on random cases.

Times are whole ns. One callable per event, one dictionary per thing; nothing is shared with
`astra-sim/strict`. What is below nodes is in `slow_network.py`, what happens inside a collective in
`slow_collectives.py` and `slow_members.py`.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from engine.strict.slow_collectives import Collectives
from engine.strict.slow_network import Clock, Memory, Messages, Network
from llmsim.export.chakra import COLLECTIVES, TraceNode, read_trace


class Npu:
    """The nodes of one NPU and its slots."""

    def __init__(self, run: "Run", npu: int, nodes: list[TraceNode]) -> None:
        self.run, self.npu = run, npu
        self.nodes = {node.id: node for node in nodes}
        self.done: set[int] = set()
        self.issued: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.slots: set[str] = set()  # taken
        self.finish: int | None = None  # when last nothing was ready and nothing ran

    def scan(self) -> None:
        """A scheduling pass: a snapshot of what is ready, by id; each that finds its slot free is
        issued.
        """
        for node in self.ready():
            slot = self.slot(node)
            if slot in self.slots:
                continue
            if slot:
                self.slots.add(slot)
            self.issued[node.id] = self.run.clock.now
            self.issue(node)

    def ready(self) -> list[TraceNode]:
        """Nodes whose parents have ended, not issued yet, by id."""
        return [
            node
            for number, node in sorted(self.nodes.items())
            if number not in self.issued
            and self.done.issuperset([*node.data_deps, *node.ctrl_deps])
        ]

    @staticmethod
    def slot(node: TraceNode) -> str:
        if node.attributes.get("is_cpu_op", False):
            return "cpu"
        return {"COMP": "compute", "COMM_RECV": ""}.get(node.type, "communication")

    def end(self, node: TraceNode) -> None:
        self.slots.discard(self.slot(node))
        self.done.add(node.id)
        self.ended[node.id] = self.run.clock.now

    def end_and_scan(self, node: TraceNode) -> None:
        self.end(node)
        self.scan()
        if len(self.issued) == len(self.ended) and not self.ready():
            self.finish = self.run.clock.now

    def issue(self, node: TraceNode) -> None:
        run, system = self.run, self.run.system
        value: dict[str, Any] = dict(node.attributes)
        duration = node.duration_micros * 1000 or 1

        def ends() -> None:
            self.end_and_scan(node)

        if system.get("replay-only"):
            run.clock.own(self.npu, duration, ends)
        elif node.type == "COMP" and system.get("roofline-enabled") and not value.get("is_cpu_op"):
            if value["tensor_size"] == 0:
                self.end(node)  # at once, without a pass
                return
            rate = min(
                system["local-mem-bw"] * 1e9 * (value["num_ops"] / value["tensor_size"]),
                system["peak-perf"] * 1e12,
            )
            run.clock.own(self.npu, int(value["num_ops"] / rate * 1e9), ends)
        elif node.type == "COMP":
            run.clock.own(self.npu, duration, ends)
        elif node.type in ("MEM_LOAD", "MEM_STORE"):
            run.memory.access(self.npu, value["tensor_size"], ends)
        elif node.type == "INVALID":
            self.end(node)
        elif node.type == "COMM_SEND":
            key = (
                "plain",
                value["comm_tag"] % 500_000_000,
                self.npu,
                value["comm_dst"],
                value["comm_size"],
            )
            run.messages.send(key, ends)
        elif node.type == "COMM_RECV":
            key = (
                "plain",
                value["comm_tag"] % 500_000_000,
                value["comm_src"],
                self.npu,
                value["comm_size"],
            )
            run.messages.receive(key, ends)
        elif COLLECTIVES[value["comm_type"]] == "BROADCAST":
            run.clock.own(self.npu, duration, ends)
        else:
            run.collectives.start(self.npu, node, ends)


class Run:
    """A case folder (the file names of `chakra_file.write_case`), carried out. `times`: (NPU, node)
    -> issue, end.
    """

    def __init__(self, case: Path, aware: bool, flags: tuple[str, ...] = ()) -> None:
        options = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        self.system: dict[str, Any] = json.loads((case / "system.json").read_text())
        network: dict[str, list[Any]] = yaml.safe_load((case / "network.yml").read_text())
        groups_file = case / "comm_group.json"
        groups: dict[str, list[int]] = (
            json.loads(groups_file.read_text()) if groups_file.exists() else {}
        )
        self.clock = Clock()
        self.network = Network(self.clock, network, aware)
        self.messages = Messages(
            self.clock, self.network, options.get("rendezvous-protocol") == "true"
        )
        self.memory = Memory(self.clock, json.loads((case / "memory.json").read_text()))
        queues = int(options.get("num-queues-per-dim", 1))
        delay = int(
            self.system.get("endpoint-delay", 10) * float(options.get("injection-scale", 1))
        )
        self.collectives = Collectives(self, network["npus_count"], groups, queues, delay)
        self.npus: list[Npu] = []
        for npu in range(self.collectives.npus):
            self.npus.append(Npu(self, npu, list(read_trace(case / f"workload.{npu}.et"))))
        for npu in self.npus:
            npu.scan()
        self.clock.run()

    @property
    def times(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Of the nodes that ended, in ns."""
        return {
            (npu.npu, node): (npu.issued[node], end)
            for npu in self.npus
            for node, end in npu.ended.items()
        }
