"""Chunks of collectives in queues and phases: a part of the slow executor (`slow_strict.py`)."""

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from engine.strict.slow_members import Automaton, Chunk, Custom, Phase, Tree
from llmsim.export.chakra import COLLECTIVES, TraceNode

if TYPE_CHECKING:
    from engine.strict.slow_strict import Run

Call = Callable[[], None]
GROUP_DELAY_NS = 10
KEYS = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
}


class Collectives:
    def __init__(
        self, run: "Run", sizes: list[int], groups: dict[str, list[int]], queues: int, delay: int
    ) -> None:
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
            self.count("stream", npu)
            Custom(
                self.run, npu, self.groups[group] if group else list(range(self.npus)), custom, ends
            )
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
            of_npu = self.count("stream", npu)  # of groups too
            tag = group * 1_000_000 + self.count("tag", npu, group) if group else of_npu
            joined = Chunk(
                npu, tag, chunk, self.plan(npu, kind, group, value.get("involved_dim")), 0, last
            )
            self.join(joined)
            self.serve(npu, joined.phase.queue)

    def plan(
        self, npu: int, kind: str, group: int, involved: tuple[bool, ...] | None
    ) -> list[Phase]:
        given: list[str] = self.run.system[KEYS[kind] + "-implementation"]
        aware = (
            kind == "ALL_REDUCE"
            and self.run.system.get("collective-optimization") == "localBWAware"
        )
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
        return [
            self.phase(npu, what, given[d], self.ring(npu, d), d, rule) for d, what, rule in steps
        ]

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
        if algorithm == "doubleBinaryTree":  # whatever it is asked for
            operation = "ALL_REDUCE"
        delay = GROUP_DELAY_NS if sub_group else self.delay
        return Phase(
            operation, algorithm, ring, (dimension, queue), backwards, tree, delay, sub_group
        )

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
