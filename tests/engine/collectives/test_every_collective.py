"""Every collective in every algorithm and size of group against its messages by definition
(textbook.py).
"""

import random
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

from engine.collectives import textbook

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
CELLS = {
    "ring": KINDS,
    "direct": KINDS,
    "halving_doubling": tuple(kind for kind in KINDS if kind != "all_to_all"),
    "double_binary_tree": ("all_reduce", "broadcast", "reduce", "barrier"),
    "in_switch": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier"),
}
NETWORKS = ("CONGESTION_UNAWARE", "CONGESTION_AWARE", "FAIR_SHARE")
EP_PS = 7_001


class Case:
    """A plan on a topology, and what one run of it gave."""

    def __init__(
        self, engine: ModuleType, topology: Any, group: list[int], kind: str, dims: list[int]
    ) -> None:
        self.engine, self.topology, self.group, self.kind, self.dims = (
            engine,
            topology,
            group,
            kind,
            dims,
        )
        self.algorithms = ["ring"] * len(dims)
        self.windows = [0] * len(dims)
        self.root = 0

    def run(
        self, network: str, num_bytes: int, starts_ps: list[int]
    ) -> tuple[list[int], list[int]]:
        """Ends by rank, and bytes by link."""
        engine = self.engine
        names = [getattr(engine.Algorithm, name.upper()) for name in self.algorithms]
        shape = engine.CollectiveShape(
            dims=self.dims,
            algorithms=names,
            root=self.root,
            topology=self.topology,
            windows=self.windows,
        )
        builder = engine.GraphBuilder(self.topology.num_devices)
        kind = getattr(engine.CollectiveKind, self.kind.upper())
        plan = builder.add_plan(kind, names[-1], builder.add_group(self.group), shape=shape)
        for device, start_ps in zip(self.group, starts_ps, strict=True):
            builder.compute(device, start_ps, stream=engine.Stream.NONE)
        for rank, device in enumerate(self.group):
            builder.collective(device, plan, 0, num_bytes, [rank])
        run = engine.Engine(
            self.topology, getattr(engine.NetworkKind, network), endpoint_delay_ps=EP_PS
        )
        graph = run.submit(builder.build(), 0)
        run.run()
        return run.times(graph)[1].tolist()[len(self.group) :], run.link_counters()[
            "bytes"
        ].tolist()

    def plan(self) -> list[textbook.Message]:
        return textbook.messages(
            self.kind, self.dims, self.algorithms, self.root, self.windows, switch=len(self.group)
        )

    def links(self, source: int, target: int) -> list[int]:
        """Of a message between ranks, or to and from the switch (rank n): the first or last of a
        route.
        """
        n = len(self.group)
        if n in (source, target):
            rank = min(source, target)
            other = self.group[(rank + 1) % n]
            route = self.topology.route(
                *((self.group[rank], other) if target == n else (other, self.group[rank]))
            )
            return [route[0] if target == n else route[-1]]
        return list(self.topology.route(self.group[source], self.group[target]))

    def way(self, source: int, target: int, num_bytes: int) -> tuple[int, int]:
        speeds = self.topology.link_speeds()
        crossed = [speeds[link] for link in self.links(source, target)]
        slowest_ps = max(-(-num_bytes * 10**12 // bandwidth) for bandwidth, _ in crossed)
        return slowest_ps, sum(latency for _, latency in crossed) + EP_PS

    def check(self, num_bytes: int, starts_ps: list[int]) -> dict[str, list[int]]:
        """Unaware: the textbook's times. Everywhere: its bytes on every link; parts of a byte go
        with a neighbour's (a message that goes on at the beginning of a vector has two such
        places). Returns the ends by network.
        """
        plan = self.plan()
        expected: dict[int, Fraction] = {}
        count: dict[int, int] = {}
        for message in plan:
            for link in self.links(message.source, message.target):
                expected[link] = expected.get(link, Fraction(0)) + message.part * num_bytes
                count[link] = count.get(link, 0) + 1
        ends = {}
        for network in NETWORKS:
            ends[network], counted = self.run(network, num_bytes, starts_ps)
            for link, bytes_on_it in enumerate(counted):
                assert abs(bytes_on_it - expected.get(link, 0)) <= 2 * count.get(link, 0), (
                    network,
                    link,
                )
        assert ends["CONGESTION_UNAWARE"] == textbook.ends_ps(plan, num_bytes, starts_ps, self.way)
        return ends


def sizes(n: int, rng: random.Random) -> int:
    return rng.choice((0, 1, n - 1, n, 2 * n + 1, 100_003, 5_000_000_029))


@pytest.mark.parametrize("algorithm", CELLS)
def test_every_cell_in_every_size(engine: ModuleType, algorithm: str) -> None:
    """Skewed starts, any root and window; ranks in any order. Where no two messages are on one link
    at a time, no network makes a difference; two trees, and the pairs of halving-doubling, may send
    one close behind another.
    """
    rng = random.Random(algorithm)
    for kind in CELLS[algorithm]:
        most = 9 if (kind, algorithm) == ("all_to_all", "ring") else 33
        for n in range(1, most + 1):
            own_links = algorithm != "in_switch" and rng.random() < 0.7
            make = engine.Topology.fully_connected if own_links else engine.Topology.switch
            spread = rng.choice((0, 0, 10**6, 10**9))
            group = rng.sample(range(n + 2), n)
            case = Case(
                engine, make(n + 2, rng.choice((10**9, 450 * 10**9 + 1)), 500_003), group, kind, [n]
            )
            case.algorithms, case.root = [algorithm], rng.randrange(n)
            if algorithm == "direct" and kind in KINDS[:4]:
                case.windows = [rng.randint(0, n)]
            ends = case.check(sizes(n, rng), [rng.randint(0, spread) for _ in range(n)])
            unaware, *others = ends.values()
            for end in others:
                assert all(a <= b for a, b in zip(unaware, end, strict=True))
                if (
                    own_links
                    and spread == 0
                    and (
                        algorithm in ("ring", "direct")
                        or (algorithm, n & (n - 1)) == ("halving_doubling", 0)
                    )
                ):
                    assert end == unaware


@pytest.mark.parametrize("seed", range(60))
def test_plans_of_several_dimensions(engine: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    dims = [rng.randint(1, 4) for _ in range(rng.choice((2, 2, 3)))]
    shapes = (
        engine.TopologyKind.RING,
        engine.TopologyKind.SWITCH,
        engine.TopologyKind.FULLY_CONNECTED,
    )
    speeds = [rng.choice((10**9, 50 * 10**9, 450 * 10**9)) for _ in dims]
    topology = engine.Topology.grid(
        [
            (rng.choice(shapes), size, speed, rng.choice((0, 500_003)), 0)
            for size, speed in zip(dims, speeds, strict=True)
        ]
    )
    kind = rng.choice(KINDS)
    case = Case(engine, topology, list(range(topology.num_devices)), kind, dims)
    for dim in range(len(dims)):
        last = kind != "all_reduce" or dim + 1 == len(dims)
        able = [name for name in CELLS if name != "in_switch" and kind in CELLS[name]]
        case.algorithms[dim] = rng.choice(
            [name for name in able if last or name != "double_binary_tree"]
        )
        if case.algorithms[dim] == "direct" and kind in KINDS[:4]:
            case.windows[dim] = rng.choice((0, 1, 2))
    ranks = len(case.group)
    case.root = rng.randrange(ranks)
    spread = rng.choice((0, 10**6, 10**9))
    case.check(sizes(ranks, rng), [rng.randint(0, spread) for _ in range(ranks)])


def listed_topology(engine: ModuleType, rng: random.Random) -> Any:
    """Leaves and spines with limits, spread and two cables here and there; or devices
    that relay.
    """
    n = rng.randint(2, 8)

    def speed() -> tuple[int, int]:
        return rng.choice((10**9, 50 * 10**9, 450 * 10**9)), rng.choice((0, 30_001, 500_003))

    if rng.random() < 0.3:
        builder = engine.TopologyBuilder(n, True)
        for device in range(1, n):
            builder.add_link(device, rng.randrange(device), *speed())
        for _ in range(rng.randint(0, 3)):
            builder.add_link(*rng.sample(range(n), 2), *speed())
        return builder.build()
    builder = engine.TopologyBuilder(n)
    leaves, spines = (
        [
            builder.add_switch(rng.choice((0, 0, 20 * 10**9)), rng.choice((0, 0, 1, 2)))
            for _ in range(rng.randint(1, 3))
        ]
        for _ in range(2)
    )
    for device in range(n):
        builder.add_link(device, rng.choice(leaves), *speed())
    for leaf in leaves:
        for spine in spines:
            for _ in range(rng.choice((1, 1, 2))):
                builder.add_link(leaf, spine, *speed())
    return builder.build()


@pytest.mark.parametrize("seed", range(60))
def test_explicit_networks(engine: ModuleType, seed: int) -> None:
    """Relays, equal-cost routes and limits of switches; nothing ends before its busiest link is
    done.
    """
    rng = random.Random(seed)
    topology = listed_topology(engine, rng)
    group = rng.sample(range(topology.num_devices), rng.randint(1, topology.num_devices))
    algorithm = rng.choice([name for name in CELLS if name != "in_switch"])
    case = Case(engine, topology, group, rng.choice(CELLS[algorithm]), [len(group)])
    case.algorithms, case.root = [algorithm], rng.randrange(len(group))
    num_bytes = sizes(len(group), rng)
    spread = rng.choice((0, 10**6, 10**9))
    case.check(num_bytes, [rng.randint(0, spread) for _ in group])
    for network in NETWORKS[1:]:
        ends, counted = case.run(network, num_bytes, [0] * len(group))
        for (bandwidth, _), bytes_on_it in zip(topology.link_speeds(), counted, strict=True):
            assert bytes_on_it * 10**12 <= max(ends) * bandwidth


@pytest.mark.parametrize("seed", range(20))
def test_sizes_per_pair(engine: ModuleType, seed: int) -> None:
    """Zeros send nothing. On a mesh all flows are alone; on a switch none beats its
    fullest port.
    """
    rng = random.Random(seed)
    n = rng.randint(2, 12)
    units = [rng.choice((0, 0, 1, 5, 977)) for _ in range(n * n)]
    scale, bandwidth, latency_ps = rng.choice((1, 4096, 7_000_001)), 50 * 10**9, 500_003
    for make, alone in ((engine.Topology.fully_connected, True), (engine.Topology.switch, False)):
        topology = make(n, bandwidth, latency_ps)
        for network in NETWORKS:
            builder = engine.GraphBuilder(n)
            shape = engine.CollectiveShape(pair_units=units)
            kind, direct = engine.CollectiveKind.ALL_TO_ALL, engine.Algorithm.DIRECT
            plan = builder.add_plan(kind, direct, builder.add_group(list(range(n))), shape=shape)
            for device in range(n):
                builder.collective(device, plan, 0, scale)
            run = engine.Engine(topology, getattr(engine.NetworkKind, network))
            graph = run.submit(builder.build(), 0)
            run.run()
            ends = run.times(graph)[1].tolist()
            counted = dict(
                zip(topology.links(), run.link_counters()["bytes"].tolist(), strict=True)
            )
            out = [scale * sum(units[i * n + j] for j in range(n) if j != i) for i in range(n)]
            into = [scale * sum(units[i * n + j] for i in range(n) if j != i) for j in range(n)]
            if not alone:
                assert [counted[i, n] for i in range(n)] == out
                assert [counted[n, j] for j in range(n)] == into
            for i in range(n):
                single = [units[i * n + j] * scale for j in range(n) if j != i]
                heard = [units[j * n + i] * scale for j in range(n) if j != i]
                hops = 1 if alone else 2
                least = max(
                    [-(-size * 10**12 // bandwidth) for size in single]
                    + [-(-size * 10**12 // bandwidth) + hops * latency_ps for size in heard if size]
                )
                if alone or network == "CONGESTION_UNAWARE":
                    assert ends[i] == least
                else:
                    fullest = -(-max(out[i], into[i]) * 10**12 // bandwidth)
                    assert ends[i] >= max(least, fullest)
