"""The part of `slow_strict.py` inside a collective: chunks in queues, phases, and what each member does in a phase."""

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from llmsim.export.chakra import COLLECTIVES, TraceNode, read_trace

if TYPE_CHECKING:
    from engine.slow_strict import Run

Call = Callable[[], None]
GROUP_DELAY_NS = 10
KEYS = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
}


@dataclass
class Phase:
    """One step of a chunk's way: `operation` among `ring`, in the queue (dimension, number)."""

    operation: str
    algorithm: str
    ring: list[int]
    queue: tuple[int, int]
    backwards: bool
    root_first: bool  # the double tree's other tree
    delay: int
    sub_group: bool


@dataclass
class Chunk:
    npu: int
    tag: int
    size: int
    phases: list[Phase]
    at: int
    last: Call

    @property
    def phase(self) -> Phase:
        return self.phases[self.at]


class Collectives:
    def __init__(self, run: "Run", sizes: list[int], groups: dict[str, list[int]], queues: int, delay: int) -> None:
        self.run, self.sizes, self.queues, self.delay = run, sizes, queues, delay
        self.groups = {int(key): members for key, members in groups.items()}
        self.npus = math.prod(sizes)
        self.limit = math.ceil(run.system.get("active-chunks-per-dimension", 1) / queues)
        self.running: dict[tuple[int, tuple[int, int]], int] = defaultdict(int)
        self.waiting: dict[tuple[int, tuple[int, int]], deque[Chunk]] = defaultdict(deque)
        self.counters: dict[tuple[Any, ...], int] = defaultdict(int)

    def count(self, *key: Any) -> int:
        """0, 1, 2, ... for each key."""
        self.counters[key] += 1
        return self.counters[key] - 1

    def start(self, npu: int, node: TraceNode, ends: Call) -> None:
        system = self.run.system
        value: dict[str, Any] = dict(node.attributes)
        kind = COLLECTIVES[value["comm_type"]]
        group = int(value.get("pg_name", "") or 0)
        size: int = value["comm_size"]
        by_node = system.get("per-node-custom-implementation")
        custom = yaml.safe_load(Path(by_node).read_text()).get(node.id) if by_node else None
        custom = custom or (system.get(KEYS[kind] + "-implementation-custom") or [None])[0]
        if custom:
            Custom(self.run, npu, self.groups[group] if group else list(range(self.npus)), custom, ends)
            return
        splits: int = system["preferred-dataset-splits"]
        chunk = size // splits
        if kind != "ALL_GATHER" and chunk < self.npus:
            chunk, size = self.npus, splits * self.npus
        count = math.ceil(size / chunk)
        left = [count]

        def last() -> None:
            left[0] -= 1
            if left[0] == 0:
                ends()

        for _ in range(count):
            tag = group * 1_000_000 + self.count("tag", npu, group)
            joined = Chunk(npu, tag, chunk, self.plan(npu, kind, group, value.get("involved_dim")), 0, last)
            self.join(joined)
            self.serve(npu, joined.phase.queue)

    def plan(self, npu: int, kind: str, group: int, involved: tuple[bool, ...] | None) -> list[Phase]:
        given: list[str] = self.run.system[KEYS[kind] + "-implementation"]
        aware = kind == "ALL_REDUCE" and self.run.system.get("collective-optimization") == "localBWAware"
        first = "first" if aware else "all"
        if group and len(self.groups[group]) < self.npus:
            algorithm = given[0] if len(given) == 1 else "ring"
            return [self.phase(npu, kind, algorithm, self.groups[group], 0, first, sub_group=True)]
        if given[0].startswith("one"):
            return [self.phase(npu, kind, given[0], list(range(self.npus)), 0, first)]
        flags = [True] * len(self.sizes) if group or involved is None else list(involved)
        dims = [d for d in range(min(len(given), len(self.sizes))) if flags[d]]
        if kind == "ALL_GATHER":
            dims.reverse()
        steps = [(d, kind, first) for d in dims]
        if aware:
            up, top = dims[:-1], dims[-1]
            steps = [(d, "REDUCE_SCATTER", "first") for d in up] + [(top, "ALL_REDUCE", "first")]
            steps += [(d, "ALL_GATHER", "last") for d in reversed(up)]
        return [self.phase(npu, what, given[d], self.ring(npu, d), d, rule) for d, what, rule in steps]

    def ring(self, npu: int, dimension: int) -> list[int]:
        stride, count = math.prod(self.sizes[:dimension]), self.sizes[dimension]
        base = npu - npu // stride % count * stride
        return [base + place * stride for place in range(count)]

    def phase(
        self,
        npu: int,
        operation: str,
        algorithm: str,
        ring: list[int],
        dimension: int,
        rule: str,
        sub_group: bool = False,
    ) -> Phase:
        number, queues = self.count("queue", npu, dimension, rule), self.queues
        half = max(1, queues // 2)
        if rule == "all":
            queue = number % queues
            backwards = queues > 1 and queue >= queues // 2
        elif rule == "first":
            queue, backwards = number % half, False
        else:
            queue = 0 if queues == 1 else half + number % (queues - half)
            backwards = True
        algorithm = re.sub("^one(.)", lambda found: found[1].lower(), algorithm)
        tree = algorithm == "doubleBinaryTree" and self.count("tree", npu, dimension) % 2 == 1
        delay = GROUP_DELAY_NS if sub_group else self.delay
        return Phase(operation, algorithm, ring, (dimension, queue), backwards, tree, delay, sub_group)

    def join(self, chunk: Chunk) -> None:
        self.waiting[chunk.npu, chunk.phase.queue].append(chunk)

    def serve(self, npu: int, queue: tuple[int, int]) -> None:
        if not self.waiting[npu, queue] or self.running[npu, queue] >= self.limit:
            return
        self.running[npu, queue] += 1
        chunk = self.waiting[npu, queue].popleft()
        member = Tree if chunk.phase.algorithm == "doubleBinaryTree" else Automaton
        member(self, chunk)

    def leave(self, chunk: Chunk, size: int) -> None:
        """The chunk has ended a phase, after which it has `size` bytes."""
        old = chunk.phase.queue
        chunk.at += 1
        chunk.size = size
        last = chunk.at == len(chunk.phases)
        if last:
            chunk.last()
        else:
            self.join(chunk)
        self.running[chunk.npu, old] -= 1
        self.serve(chunk.npu, old)
        if not last:
            self.serve(chunk.npu, chunk.phase.queue)


class Member:
    """One NPU in one phase of one chunk."""

    def __init__(self, collectives: Collectives, chunk: Chunk) -> None:
        self.all, self.chunk, self.phase = collectives, chunk, chunk.phase
        self.clock, self.ring, self.delay = collectives.run.clock, chunk.phase.ring, chunk.phase.delay
        self.n = len(self.ring)
        self.me = self.ring.index(chunk.npu)

    def send(self, place: int, size: int) -> None:
        key = ("collective", self.chunk.tag, self.chunk.npu, self.ring[place], size)
        self.all.run.messages.send(key, lambda: None)

    def receive(self, place: int, size: int, call: Call) -> None:
        self.all.run.messages.receive(("collective", self.chunk.tag, self.ring[place], self.chunk.npu, size), call)

    def own(self, delay: int, call: Call) -> None:
        self.clock.own(self.chunk.npu, delay, call)

    def reduction(self, size: int) -> int:
        gb_per_s = self.all.run.system.get("local-mem-bw", 0)
        return 3 * int(size / (gb_per_s * 1e9) * 1e9) if gb_per_s else 0


class Automaton(Member):
    """Ring, direct and halving-doubling: packets with credits."""

    def __init__(self, collectives: Collectives, chunk: Chunk) -> None:
        super().__init__(collectives, chunk)
        n, kind = self.n, self.phase.operation
        self.direct = self.phase.algorithm.startswith("direct")
        self.halving = self.phase.algorithm == "halvingDoubling"
        window = int(self.phase.algorithm.removeprefix("direct") or n - 1) if self.direct else 1
        self.parallel = min(window, n - 1)
        both = 2 if kind == "ALL_REDUCE" else 1
        if self.halving:
            levels = n.bit_length() - 1
            assert n == 2**levels
            down = [(2**k, chunk.size // 2 ** (k + 1)) for k in range(levels)]
            turn = chunk.size // 2 ** (levels + 1)  # one halving more, then doubled again
            back = [(n // 2 ** (k + 1), turn * 2 ** (k + 1)) for k in range(levels)]
            way = {"ALL_REDUCE": down + back, "REDUCE_SCATTER": down}
            up = [(n >> (k + 1), chunk.size << k) for k in range(levels)]
            exchanges = way.get(kind, up)
            self.steps = [(self.me ^ distance, self.me ^ distance, size) for distance, size in exchanges]
            self.repeat = levels - 1
        else:
            size = chunk.size if kind == "ALL_GATHER" else chunk.size // n
            turn = -1 if self.phase.backwards else 1
            others = [(turn * (k % (n - 1) + 1) if self.direct else turn) for k in range(n * n)]
            self.steps = [((self.me + k) % n, (self.me - k) % n, size) for k in others]
            self.repeat = n - 1
            if self.direct:
                self.repeat = (n - 1) * self.parallel if self.phase.sub_group else self.parallel
        self.sends = len(self.steps) if self.halving else (n - 1) * both
        if kind == "ALL_TO_ALL" and not self.direct:
            self.sends = n * (n - 1) // 2
        self.credits = self.arrivals = self.zero_left = self.repeat_left = 0
        self.toggle = self.over = False
        self.packets: deque[tuple[int, int, int]] = deque()
        self.inserted = 0
        for _ in range(self.parallel):
            self.insert()

    def insert(self) -> None:
        if self.zero_left == 0 and self.repeat_left == 0:
            self.zero_left, self.repeat_left = self.parallel, self.repeat
            self.toggle = not self.toggle
        pays = False
        if self.zero_left:
            self.zero_left -= 1
        else:
            self.repeat_left -= 1
            kind = self.phase.operation
            pays = kind == "REDUCE_SCATTER" or (kind == "ALL_REDUCE" and self.toggle)
        packet = self.steps[self.inserted % len(self.steps)]
        self.inserted += 1
        self.packets.append(packet)
        if pays:
            self.own(self.delay, lambda: self.own(self.reduction(packet[2]), self.credit))
        else:
            self.own(self.delay, self.credit)

    def credit(self) -> None:
        assert not self.over
        self.credits += 1
        if self.direct and self.phase.operation == "ALL_REDUCE" and self.sends <= self.n - 1:
            if self.arrivals >= self.n - 1:
                for _ in range(self.parallel):
                    self.ready()
        else:
            self.ready()
        if self.sends == 0 and self.credits == self.parallel:
            self.over = True
            share = {"REDUCE_SCATTER": self.chunk.size // self.n, "ALL_GATHER": self.chunk.size * self.n}
            self.all.leave(self.chunk, share.get(self.phase.operation, self.chunk.size))

    def ready(self) -> None:
        if self.packets and self.credits and self.sends:
            target, source, size = self.packets.popleft()
            self.sends -= 1
            self.credits -= 1
            self.send(target, size)
            self.receive(source, size, self.arrive)

    def arrive(self) -> None:
        self.arrivals += 1
        self.insert()


class Tree(Member):
    """One of the two trees of an all-reduce: n - 1 places numbered in order in a complete tree, a root above it."""

    def __init__(self, collectives: Collectives, chunk: Chunk) -> None:
        super().__init__(collectives, chunk)
        first = 1 if self.phase.root_first else 0
        root = 0 if self.phase.root_first else self.n - 1
        parents: dict[int, int] = {}
        children: dict[int, list[int]] = {place: [] for place in range(self.n)}

        def grow(low: int, high: int, parent: int) -> None:
            if low < high:
                middle = (low + high) // 2
                parents[middle] = parent
                children[parent].append(middle)
                grow(low, middle, middle)
                grow(middle + 1, high, middle)

        grow(first, first + self.n - 1, root)
        self.parent, self.children = parents.get(self.me), children[self.me]
        self.left = len(self.children)
        if not self.children:
            self.own(self.delay, self.up)
        for child in self.children:
            self.receive(child, chunk.size, lambda: self.after_reduction(self.child_done))

    def after_reduction(self, call: Call) -> None:
        self.own(self.delay, lambda: self.own(self.reduction(self.chunk.size), call))

    def child_done(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.parent is None:
                self.down()
            else:
                self.up()

    def up(self) -> None:
        assert self.parent is not None
        self.send(self.parent, self.chunk.size)
        leaf = not self.children
        self.receive(
            self.parent,
            self.chunk.size,
            (lambda: self.own(self.delay, self.finish)) if leaf else (lambda: self.after_reduction(self.down)),
        )

    def down(self) -> None:
        for child in self.children:
            self.send(child, self.chunk.size)
        self.finish()

    def finish(self) -> None:
        self.all.leave(self.chunk, self.chunk.size)


class Custom:
    """One rank of a collective given as files: no slots, plain tags; ranks are places in the sorted group."""

    def __init__(self, run: "Run", npu: int, members: list[int], prefix: str, ends: Call) -> None:
        self.run, self.npu, self.members, self.ends = run, npu, members, ends
        rank = sorted(members).index(npu)
        self.nodes = {node.id: node for node in read_trace(Path(f"{prefix}.{rank}.et"))}
        self.issued: set[int] = set()
        self.done: set[int] = set()
        self.issue()

    def issue(self) -> None:
        for number, node in sorted(self.nodes.items()):
            if number in self.issued or not self.done.issuperset([*node.data_deps, *node.ctrl_deps]):
                continue
            self.issued.add(number)
            value: dict[str, Any] = dict(node.attributes)
            end = partial(self.end, number)
            tag, size = value.get("comm_tag", 0) % 500_000_000, value.get("comm_size", 0)
            if node.type == "COMM_SEND":
                self.run.messages.send(("plain", tag, self.npu, self.members[value["comm_dst"]], size), end)
            elif node.type == "COMM_RECV":
                self.run.messages.receive(("plain", tag, self.members[value["comm_src"]], self.npu, size), end)
            else:
                self.run.clock.own(self.npu, node.duration_micros * 1000 or 1, end)

    def end(self, number: int) -> None:
        self.done.add(number)
        self.issue()
        if len(self.done) == len(self.nodes):
            self.ends()
