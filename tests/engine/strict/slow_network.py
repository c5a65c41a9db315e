"""Time, the two networks, messages and remote memory of the slow executor (`slow_strict.py`)."""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], None]
CONTROL_BYTES = 8192
CONTROL_TAG = 500_000_000


class Clock:
    """The global queue, time -> list, and per NPU lists of what it schedules for itself, which run
    as one entry.
    """

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
        hops = {"FullyConnected": 1, "Switch": 2, "Ring": min((a - b) % count, (b - a) % count)}[
            self.shapes[dimension]
        ]
        self.clock.shared(
            int(hops * self.latency_ns[dimension] + size / self.bytes_per_ns[dimension]), call
        )

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
        self.clock.shared(
            int(self.latency_ns[0] + serialisation), lambda: self._enter(path[1:], size, call)
        )
        self.clock.shared(int(serialisation), lambda: self._free(link))

    @staticmethod
    def _free(link: Link) -> None:
        link.busy = False
        if link.waiting:
            link.waiting.popleft()[1]()


Key = tuple[str, int, int, int, int]  # name space, tag, from, to, bytes


class Messages:
    """Sends and receives, the k-th with the k-th of a key; where asked for with a rendezvous in
    front of each.
    """

    def __init__(self, clock: Clock, network: Network, rendezvous: bool) -> None:
        self.clock, self.network, self.rendezvous = clock, network, rendezvous
        self.arrived: dict[Key, int] = defaultdict(int)
        self.posted: dict[Key, deque[Call]] = defaultdict(deque)

    def send(self, key: Key, call: Call) -> None:
        if not self.rendezvous:
            self._send(key, call)
            return
        space, tag, source, target, _ = key
        self._receive(
            (space, tag + CONTROL_TAG, target, source, CONTROL_BYTES), lambda: self._send(key, call)
        )

    def receive(self, key: Key, call: Call) -> None:
        if not self.rendezvous:
            self._receive(key, call)
            return
        space, tag, source, target, _ = key
        self._send(
            (space, tag + CONTROL_TAG, target, source, CONTROL_BYTES),
            lambda: self._receive(key, call),
        )

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
