"""A slow executor of strict rules, written from their statement alone, to compare the fast one with on random cases.

Times are whole ns. One callable per event, one dictionary per thing; nothing is shared with `astra-sim/strict`.
`slow_collectives.py` has what happens inside a collective.
"""

import heapq
import json
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from engine.slow_collectives import Collectives
from llmsim.export.chakra import COLLECTIVES, TraceNode, read_trace

Call = Callable[[], None]
CONTROL_BYTES = 8192
CONTROL_TAG = 500_000_000


class Clock:
    """The global queue, time -> list, and per NPU lists of what it schedules for itself, which run as one entry."""

    def __init__(self) -> None:
        self.now = 0
        self.lists: dict[int, deque[Call]] = {}
        self.times: list[int] = []
        self.own_lists: dict[tuple[int, int], list[Call]] = {}

    def shared(self, delay: int, call: Call) -> None:
        """For the global queue itself: arrivals and links."""
        when = self.now + delay
        if when not in self.lists:
            self.lists[when] = deque()
            heapq.heappush(self.times, when)
        self.lists[when].append(call)

    def own(self, npu: int, delay: int, call: Call) -> None:
        """What an NPU schedules for itself: joins its list of that time where there is one."""
        key = (npu, self.now + delay)
        if key in self.own_lists:
            self.own_lists[key].append(call)
            return
        self.own_lists[key] = [call]
        self.shared(delay, lambda: self._run_own(key))

    def _run_own(self, key: tuple[int, int]) -> None:
        for call in self.own_lists[key]:  # a list that grows while it runs
            call()
        del self.own_lists[key]

    def run(self) -> None:
        """Until nothing is pending."""
        while self.times:
            self.now = self.times[0]
            pending = self.lists[self.now]
            while pending:
                pending.popleft()()
            del self.lists[self.now]
            heapq.heappop(self.times)


@dataclass
class Link:
    busy: bool = False
    waiting: deque[tuple[int, Call]] = field(default_factory=deque)


class Network:
    """`deliver(from, to, bytes, call)`: the call follows when the message is there."""

    def __init__(self, clock: Clock, config: dict[str, list[Any]], aware: bool) -> None:
        self.clock, self.aware = clock, aware
        self.shapes: list[str] = config["topology"]
        self.sizes: list[int] = config["npus_count"]
        self.bytes_per_ns = [float(gb) * 2**30 / 10**9 for gb in config["bandwidth"]]
        self.latency_ns = [float(latency) for latency in config["latency"]]
        self.links: dict[tuple[int, int], Link] = defaultdict(Link)

    def deliver(self, source: int, target: int, size: int, call: Call) -> None:
        if self.aware:
            self._enter(self._route(source, target), size, call)
            return
        dimension, a, b = 0, source, target
        while a % self.sizes[dimension] == b % self.sizes[dimension]:
            a, b = a // self.sizes[dimension], b // self.sizes[dimension]
            dimension += 1
        count = self.sizes[dimension]
        hops = {"FullyConnected": 1, "Switch": 2, "Ring": min((a - b) % count, (b - a) % count)}[self.shapes[dimension]]
        self.clock.shared(int(hops * self.latency_ns[dimension] + size / self.bytes_per_ns[dimension]), call)

    def _route(self, source: int, target: int) -> list[tuple[int, int]]:
        count = self.sizes[0]
        if self.shapes[0] == "FullyConnected":
            return [(source, target)]
        if self.shapes[0] == "Switch":
            return [(source, count), (count, target)]
        back = (source - target) % count < (target - source) % count
        step, path, at = (-1 if back else 1), [], source
        while at != target:
            path.append((at, (at + step) % count))
            at = (at + step) % count
        return path

    def _enter(self, path: list[tuple[int, int]], size: int, call: Call) -> None:
        if not path:
            call()
            return
        link = self.links[path[0]]
        take = lambda: self._take(link, path, size, call)  # noqa: E731
        if link.busy:
            link.waiting.append((size, take))
        else:
            take()

    def _take(self, link: Link, path: list[tuple[int, int]], size: int, call: Call) -> None:
        link.busy = True
        serialisation = size / self.bytes_per_ns[0]
        self.clock.shared(int(self.latency_ns[0] + serialisation), lambda: self._enter(path[1:], size, call))
        self.clock.shared(int(serialisation), lambda: self._free(link))

    @staticmethod
    def _free(link: Link) -> None:
        link.busy = False
        if link.waiting:
            link.waiting.popleft()[1]()


Key = tuple[str, int, int, int, int]  # name space, tag, from, to, bytes


class Messages:
    """Sends and receives, the k-th with the k-th of a key; where asked for with a rendezvous in front of each."""

    def __init__(self, clock: Clock, network: Network, rendezvous: bool) -> None:
        self.clock, self.network, self.rendezvous = clock, network, rendezvous
        self.arrived: dict[Key, int] = defaultdict(int)
        self.posted: dict[Key, deque[Call]] = defaultdict(deque)

    def send(self, key: Key, call: Call) -> None:
        if not self.rendezvous:
            self._send(key, call)
            return
        space, tag, source, target, _ = key
        self._receive((space, tag + CONTROL_TAG, target, source, CONTROL_BYTES), lambda: self._send(key, call))

    def receive(self, key: Key, call: Call) -> None:
        if not self.rendezvous:
            self._receive(key, call)
            return
        space, tag, source, target, _ = key
        self._send((space, tag + CONTROL_TAG, target, source, CONTROL_BYTES), lambda: self._receive(key, call))

    def _send(self, key: Key, call: Call) -> None:
        def arrive() -> None:
            call()
            if self.posted[key]:
                self.posted[key].popleft()()
            else:
                self.arrived[key] += 1

        self.network.deliver(key[2], key[3], key[4], arrive)

    def _receive(self, key: Key, call: Call) -> None:
        if self.arrived[key]:
            self.arrived[key] -= 1
            self.clock.shared(0, call)
        else:
            self.posted[key].append(call)


class Memory:
    """Remote memory: a FIFO server per node of NPUs, one for all, or none in the way."""

    def __init__(self, clock: Clock, config: dict[str, Any]) -> None:
        self.clock, self.config = clock, config
        self.busy: set[int] = set()
        self.waiting: dict[int, deque[Call]] = defaultdict(deque)

    def access(self, npu: int, size: int, call: Call) -> None:
        span = self.config["remote-mem-latency"] + size // self.config["remote-mem-bw"]
        if self.config["memory-type"] == "PER_NPU_MEMORY_EXPANSION":
            self.clock.own(npu, span, call)
            return
        per_node = self.config["memory-type"] == "PER_NODE_MEMORY_EXPANSION"
        server = npu // self.config["num-npus-per-node"] if per_node else 0

        def serve() -> None:
            self.busy.add(server)
            self.clock.own(npu, span, call)
            self.clock.own(npu, span, free)

        def free() -> None:
            self.busy.discard(server)
            if self.waiting[server]:
                self.waiting[server].popleft()()

        if server in self.busy:
            self.waiting[server].append(serve)
        else:
            serve()


class Npu:
    """The nodes of one NPU and its slots."""

    def __init__(self, run: "Run", npu: int, nodes: list[TraceNode]) -> None:
        self.run, self.npu = run, npu
        self.nodes = {node.id: node for node in nodes}
        self.done: set[int] = set()
        self.issued: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.slots: set[str] = set()  # taken

    def scan(self) -> None:
        """A scheduling pass: a snapshot of what is ready, by id; each that finds its slot free is issued."""
        ready = [
            node
            for number, node in sorted(self.nodes.items())
            if number not in self.issued and self.done.issuperset([*node.data_deps, *node.ctrl_deps])
        ]
        for node in ready:
            slot = self.slot(node)
            if slot in self.slots:
                continue
            if slot:
                self.slots.add(slot)
            self.issued[node.id] = self.run.clock.now
            self.issue(node)

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
                system["local-mem-bw"] * 1e9 * (value["num_ops"] / value["tensor_size"]), system["peak-perf"] * 1e12
            )
            run.clock.own(self.npu, int(value["num_ops"] / rate * 1e9), ends)
        elif node.type == "COMP":
            run.clock.own(self.npu, duration, ends)
        elif node.type in ("MEM_LOAD", "MEM_STORE"):
            run.memory.access(self.npu, value["tensor_size"], ends)
        elif node.type == "INVALID":
            self.end(node)
        elif node.type == "COMM_SEND":
            key = ("plain", value["comm_tag"] % 500_000_000, self.npu, value["comm_dst"], value["comm_size"])
            run.messages.send(key, ends)
        elif node.type == "COMM_RECV":
            key = ("plain", value["comm_tag"] % 500_000_000, value["comm_src"], self.npu, value["comm_size"])
            run.messages.receive(key, ends)
        elif COLLECTIVES[value["comm_type"]] == "BROADCAST":
            run.clock.own(self.npu, duration, ends)
        else:
            run.collectives.start(self.npu, node, ends)


class Run:
    """A case folder (the file names of `chakra_file.write_case`), carried out. `times`: (NPU, node) -> issue, end."""

    def __init__(self, case: Path, aware: bool, flags: tuple[str, ...] = ()) -> None:
        options = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        self.system: dict[str, Any] = json.loads((case / "system.json").read_text())
        network: dict[str, list[Any]] = yaml.safe_load((case / "network.yml").read_text())
        groups_file = case / "comm_group.json"
        groups: dict[str, list[int]] = json.loads(groups_file.read_text()) if groups_file.exists() else {}
        self.clock = Clock()
        self.network = Network(self.clock, network, aware)
        self.messages = Messages(self.clock, self.network, options.get("rendezvous-protocol") == "true")
        self.memory = Memory(self.clock, json.loads((case / "memory.json").read_text()))
        queues = int(options.get("num-queues-per-dim", 1))
        delay = int(self.system.get("endpoint-delay", 10) * float(options.get("injection-scale", 1)))
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
        return {(npu.npu, node): (npu.issued[node], end) for npu in self.npus for node, end in npu.ended.items()}
