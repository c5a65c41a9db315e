"""A second, naive engine for one collective: one heap, explicit keys, written from the rules and
not from the C++.

Rules: ser(b) = ceil(b * 10^12 / bandwidth); equal chunks ceil(S / n) for timing, exact chunks for
counting; a FIFO link serves in order of arrival, ties by (kind, entity); what is made at t for t
runs in the next delta cycle of t.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

ARRIVAL, HOP, START = 1, 2, 0


def serialisation_ps(num_bytes: int, bandwidth_bytes_per_s: int) -> int:
    return -(-num_bytes * 10**12 // bandwidth_bytes_per_s)


@dataclass
class Site:
    """A collective on a network of `num_devices`; `topology` is ring, switch or full."""

    topology: str
    num_devices: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    group: list[int]
    kind: str
    algorithm: str
    aware: bool
    endpoint_delay_ps: int = 0


def path(site: Site, source: int, target: int) -> list[tuple[int, int]]:
    """Links from source to target as (from, to); the switch has number num_devices."""
    n = site.num_devices
    if site.topology == "full":
        return [(source, target)]
    if site.topology == "switch":
        return [(source, n), (n, target)]
    clockwise = (target - source) % n
    step, count = (1, clockwise) if 2 * clockwise <= n else (-1, n - clockwise)
    return [((source + step * i) % n, (source + step * (i + 1)) % n) for i in range(count)]


def link_rank(site: Site, link: tuple[int, int]) -> int:
    """Order of links at ties: as the engine numbers them."""
    start, end = link
    n = site.num_devices
    if site.topology == "full":
        return start * n + end
    if site.topology == "switch":
        return n + end if start == n else start
    return start if (start + 1) % n == end else n + start


@dataclass
class Simulation:
    """State of one run."""

    site: Site
    num_bytes: int
    free_at: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    link_bytes: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    heap: list[tuple[int, int, int, int, int, Callable[[], None]]] = field(default_factory=list)
    now: int = 0
    delta: int = 0
    serial: int = 0
    running: bool = False

    def post(self, time: int, kind: int, entity: int, action: Callable[[], None]) -> None:
        self.serial += 1
        delta = self.delta + 1 if time == self.now and self.running else 0
        heapq.heappush(self.heap, (time, delta, kind, entity, self.serial, action))

    def run(self) -> None:
        self.running = True
        while self.heap:
            time, delta, _, _, _, action = heapq.heappop(self.heap)
            self.now, self.delta = time, delta
            action()

    def chunk(self, index: int) -> int:
        n = len(self.site.group)
        return self.num_bytes // n + (index % n < self.num_bytes % n)

    def send(self, source: int, target: int, exact: int, arrived: Callable[[], None]) -> int:
        """Returns when the message has left the sender."""
        site = self.site
        serialisation = serialisation_ps(
            -(-self.num_bytes // len(site.group)), site.bandwidth_bytes_per_s
        )
        links = path(site, source, target)
        if not site.aware:
            for link in links:
                self.link_bytes[link] += exact
            entity = source << 28 | target
            end = self.now + len(links) * site.latency_ps + serialisation + site.endpoint_delay_ps
            self.post(end, ARRIVAL, entity, arrived)
            return self.now + serialisation
        return self.enter(links, exact, serialisation, arrived)

    def enter(
        self,
        links: list[tuple[int, int]],
        exact: int,
        serialisation: int,
        arrived: Callable[[], None],
    ) -> int:
        link = links[0]
        left = max(self.now, self.free_at[link]) + serialisation
        self.free_at[link] = left
        self.link_bytes[link] += exact
        there = left + self.site.latency_ps
        if len(links) == 1:
            self.post(
                there + self.site.endpoint_delay_ps, ARRIVAL, link_rank(self.site, link), arrived
            )
        else:
            rest = links[1:]
            entity = link_rank(self.site, link)
            self.post(
                there, HOP, entity, lambda: void(self.enter(rest, exact, serialisation, arrived))
            )
        return left


def void(_: int) -> None:
    """Drops a result."""


class Rank:
    """One rank of a ring or direct collective, as an actor."""

    def __init__(self, simulation: Simulation, ranks: "list[Rank]", index: int) -> None:
        self.simulation, self.ranks, self.index = simulation, ranks, index
        site = simulation.site
        self.n = len(site.group)
        self.device = site.group[index]
        self.started = False
        self.outbox: list[tuple[int, int, int, int]] = []  # (needs, target rank, chunk, phase)
        self.heard = [0, 0]
        self.total = 0
        self.left_at = 0
        self.end = -1

    def schedule(self) -> list[tuple[int, int, int, int]]:
        site, n, me = self.simulation.site, self.n, self.index
        if site.algorithm == "ring":
            following = (me + 1) % n
            if site.kind == "all_to_all":
                blocks = [me - d + n - 1 - p for d in range(n - 1) for p in range(n - 1 - d)]
            else:
                steps = 2 * (n - 1) if site.kind == "all_reduce" else n - 1
                first = me - 1 if site.kind == "reduce_scatter" else me
                blocks = [first - s for s in range(steps)]
            return [(s, following, block, 0) for s, block in enumerate(blocks)]
        others = [(me + d) % n for d in range(1, n)]
        scatter = [(0, other, me if site.kind == "all_gather" else other, 0) for other in others]
        gather = [(n - 1, other, me, 1) for other in others] if site.kind == "all_reduce" else []
        return scatter + gather

    def start(self) -> None:
        self.started = True
        self.left_at = self.simulation.now
        self.outbox = self.schedule()
        self.total = len(self.outbox)
        self.progress()

    def progress(self) -> None:
        if not self.started:
            return
        while self.outbox and self.outbox[0][0] <= self.heard[0]:
            _, target, block, phase = self.outbox.pop(0)
            peer = self.ranks[target]
            hear = partial(peer.hear, phase)
            left = self.simulation.send(
                self.device, peer.device, self.simulation.chunk(block), hear
            )
            self.left_at = max(self.left_at, left)
        if not self.outbox and sum(self.heard) == self.total:
            self.end = max(self.simulation.now, self.left_at)

    def hear(self, phase: int) -> None:
        self.heard[phase] += 1
        self.progress()


def simulate(
    site: Site, num_bytes: int, starts_ps: list[int]
) -> tuple[list[int], dict[tuple[int, int], int]]:
    """Ends of all ranks and exact bytes by link."""
    simulation = Simulation(site, num_bytes)
    ranks: list[Rank] = []
    for index in range(len(site.group)):
        ranks.append(Rank(simulation, ranks, index))
    for rank, start in zip(ranks, starts_ps, strict=True):
        simulation.post(start, START, rank.device << 8, rank.start)
    simulation.run()
    return [rank.end for rank in ranks], {k: v for k, v in simulation.link_bytes.items() if v}
