"""What a member does in one phase of one chunk of a collective, and the collectives that files
give.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.export.chakra import read_trace

if TYPE_CHECKING:
    from engine.strict.slow_collectives import Collectives
    from engine.strict.slow_strict import Run

Call = Callable[[], None]


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


class Member:
    """One NPU in one phase of one chunk."""

    def __init__(self, collectives: "Collectives", chunk: Chunk) -> None:
        self.all, self.chunk, self.phase = collectives, chunk, chunk.phase
        self.clock, self.ring, self.delay = (
            collectives.run.clock,
            chunk.phase.ring,
            chunk.phase.delay,
        )
        self.n = len(self.ring)
        self.me = self.ring.index(chunk.npu)

    def send(self, place: int, size: int) -> None:
        key = ("collective", self.chunk.tag, self.chunk.npu, self.ring[place], size)
        self.all.run.messages.send(key, lambda: None)

    def receive(self, place: int, size: int, call: Call) -> None:
        self.all.run.messages.receive(
            ("collective", self.chunk.tag, self.ring[place], self.chunk.npu, size), call
        )

    def own(self, delay: int, call: Call) -> None:
        self.clock.own(self.chunk.npu, delay, call)

    def reduction(self, size: int) -> int:
        gb_per_s = self.all.run.system.get("local-mem-bw", 0)
        return 3 * int(size / (gb_per_s * 1e9) * 1e9) if gb_per_s else 0


class Automaton(Member):
    """Ring, direct and halving-doubling: packets with credits."""

    def __init__(self, collectives: "Collectives", chunk: Chunk) -> None:
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
            self.steps = [
                (self.me ^ distance, self.me ^ distance, size) for distance, size in exchanges
            ]
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
            share = {
                "REDUCE_SCATTER": self.chunk.size // self.n,
                "ALL_GATHER": self.chunk.size * self.n,
            }
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
    """One of the two trees of an all-reduce: n - 1 places numbered in order in a complete tree, a
    root above it.
    """

    def __init__(self, collectives: "Collectives", chunk: Chunk) -> None:
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
            (lambda: self.own(self.delay, self.finish))
            if leaf
            else (lambda: self.after_reduction(self.down)),
        )

    def down(self) -> None:
        for child in self.children:
            self.send(child, self.chunk.size)
        self.finish()

    def finish(self) -> None:
        self.all.leave(self.chunk, self.chunk.size)


BUCKETS = (13, 29, 59, 127, 257, 541, 1109)
"""Sizes that GCC's hash set of integers takes, one after the other, as it grows."""


class HashSet:
    """Numbers in the order in which GCC's `std::unordered_set` gives them."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.buckets = 1
        self.order: list[int] = []
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        if len(self.order) == (self.buckets if self.buckets > 1 else 0):
            self.buckets = next(size for size in BUCKETS if size > self.buckets)
            old, self.order = self.order, []
            for other in old:
                self._enter(other)
        self._enter(number)

    def _enter(self, number: int) -> None:
        """In front of those of its bucket; of a new bucket in front of all."""
        places = [other % self.buckets for other in self.order]
        bucket = number % self.buckets
        self.order.insert(places.index(bucket) if bucket in places else 0, number)

    def clear(self) -> list[int]:
        """What was in it."""
        was, self.order = self.order, []
        return was


class Custom:
    """One rank of a collective given as files: no slots, plain tags; ranks are places in the sorted
    group. What may start at one time starts in the order of a hash set.
    """

    def __init__(self, run: "Run", npu: int, members: list[int], prefix: str, ends: Call) -> None:
        self.run, self.npu, self.members, self.ends = run, npu, members, ends
        rank = sorted(members).index(npu)
        self.nodes = {node.id: node for node in read_trace(Path(f"{prefix}.{rank}.et"))}
        self.waits = {
            number: {*node.data_deps, *node.ctrl_deps} for number, node in self.nodes.items()
        }
        self.children = {number: HashSet() for number in self.nodes}
        self.free = HashSet()
        for number in HashSet(self.nodes).clear():
            for parent in self.waits[number]:
                self.children[parent].add(number)
            if not self.waits[number]:
                self.free.add(number)
        self.left = len(self.nodes)
        self.issue()

    def issue(self) -> None:
        for number in self.free.clear():
            node = self.nodes[number]
            value: dict[str, Any] = dict(node.attributes)
            end = partial(self.end, number)
            tag, size = value.get("comm_tag", 0) % 500_000_000, value.get("comm_size", 0)
            if node.type == "COMM_SEND":
                self.run.messages.send(
                    ("plain", tag, self.npu, self.members[value["comm_dst"]], size), end
                )
            elif node.type == "COMM_RECV":
                self.run.messages.receive(
                    ("plain", tag, self.members[value["comm_src"]], self.npu, size), end
                )
            else:
                self.run.clock.own(self.npu, node.duration_micros * 1000 or 1, end)

    def end(self, number: int) -> None:
        for child in self.children[number].order:
            self.waits[child].discard(number)
            if not self.waits[child]:
                self.free.add(child)
        self.left -= 1
        self.issue()
        if self.left == 0:
            self.ends()
