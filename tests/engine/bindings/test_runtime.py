"""The engine under a caller that submits, stops, looks and cancels at random, against one that does
it all at once.
"""

import random
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

NETWORKS = ("CONGESTION_UNAWARE", "CONGESTION_AWARE", "FAIR_SHARE")
CLASS_MW = [0, 3, 250, 1_000]


@dataclass
class World:
    """A network with two kinds of memory."""

    engine: ModuleType
    topology: Any
    memory: Any

    def run(self, network: str) -> Any:
        return self.engine.Engine(
            self.topology, getattr(self.engine.NetworkKind, network), memory=self.memory
        )


def world(engine: ModuleType, rng: random.Random) -> World:
    n = rng.randint(2, 6)
    make = rng.choice(
        (engine.Topology.ring, engine.Topology.switch, engine.Topology.fully_connected)
    )
    topology = make(n, rng.choice((10**9, 10**12 + 7)), rng.choice((0, 1_003)))
    latency_ps, channels, sharing = rng.choice((0, 501)), rng.randint(1, 2), engine.TierSharing.FIFO
    fifo = engine.Tier(
        "fifo",
        engine.one_for_all(n),
        10**11,
        latency_ps=latency_ps,
        channels=channels,
        sharing=sharing,
    )
    held = engine.Tier("held", engine.one_for_all(n), 10**12, held_by=[rng.randrange(n)])
    return World(engine, topology, engine.MemorySystem.make(topology, [fifo, held]))


def random_graph(engine: ModuleType, rng: random.Random, n: int) -> Any:
    """Every kind of node but messages with both ends; collectives of all devices, in one order on
    all of them.
    """
    builder = engine.GraphBuilder(n)
    kinds = (
        engine.CollectiveKind.ALL_REDUCE,
        engine.CollectiveKind.ALL_TO_ALL,
        engine.CollectiveKind.BROADCAST,
    )
    algorithm = rng.choice((engine.Algorithm.RING, engine.Algorithm.DIRECT))
    plans = [builder.add_plan(kind, algorithm, builder.add_group(list(range(n)))) for kind in kinds]
    made: list[list[int]] = [[] for _ in range(n)]
    calls = 0
    for _ in range(rng.randint(1, 10)):
        device = rng.randrange(n)
        after = rng.sample(made[device], min(len(made[device]), rng.randint(0, 2)))
        what = rng.choice(("compute", "transfer", "access", "collective"))
        stream = rng.choice((engine.Stream.COPY_IN, engine.Stream.PIM, engine.Stream.NONE))
        if what == "compute":
            made[device].append(
                builder.compute(
                    device, rng.randint(0, 5_000), after, power_class=rng.randrange(len(CLASS_MW))
                )
            )
        elif what == "transfer":
            to = (device + rng.randint(1, n - 1)) % n
            made[device].append(
                builder.transfer(device, to, rng.choice((0, 1, 700, 9_001)), after, stream)
            )
        elif what == "access":
            kind = rng.choice((engine.NodeKind.MEMORY_LOAD, engine.NodeKind.MEMORY_STORE))
            made[device].append(
                builder.add(
                    kind, stream, device, rng.choice((0, 300, 4_001)), rng.randrange(2), 0, after
                )
            )
        else:
            size, plan = rng.choice((0, 13, 6_000)), rng.choice(plans)
            for member in range(n):
                parents = made[member][-1:]
                made[member].append(builder.collective(member, plan, calls, size, parents))
            calls += 1
    return builder.build()


def check_counters(run: Any, network: str, before: dict[str, Any]) -> dict[str, Any]:
    """Consistent with themselves, with the clock, and with what they were."""
    links, devices = run.link_counters(), run.device_counters()
    energy = run.energy_nj(CLASS_MW, 7, [5] * len(links["bytes"]))
    assert energy["total_nj"] == energy["idle_nj"] + int(energy["class_nj"].sum()) + int(
        energy["link_nj"].sum()
    )
    assert energy["idle_nj"] == 7 * run.now_ps * len(devices["busy_ps"]) // 10**6
    assert (energy["link_nj"] == links["bytes"] * 5 // 10**6).all()
    assert (devices["busy_ps"].sum(axis=1) == devices["class_ps"].sum(axis=1)).all()
    assert (
        devices["busy_ps"][:, :-1] <= run.now_ps
    ).all()  # all streams but none run one node at a time
    if network != "CONGESTION_UNAWARE":
        assert (links["busy_ps"] <= run.now_ps).all()
    assert (links["busy_ps"] >= 0).all()
    tiers = run.tier_counters()
    now = {
        "messages": links["messages"],
        "devices": devices["busy_ps"],
        "loads": tiers["loads"],
        "busy": links["busy_ps"],
    }
    for name, counts in before.items():
        assert (now[name] >= counts).all(), name
    return now


def random_work(engine: ModuleType, rng: random.Random, n: int) -> list[tuple[int, Any]]:
    """(time, graph, or a transfer, or an access), in the order of times."""
    wanted: list[tuple[int, Any]] = []
    for _ in range(rng.randint(1, 12)):
        at_ps = rng.randint(0, 40) * rng.choice((1, 500, 10_007))
        what: Any = random_graph(engine, rng, n)
        if rng.random() < 0.3:
            what = ("transfer", 0, rng.randint(1, n - 1), rng.randint(0, 9_000))
        elif rng.random() < 0.3:
            what = (
                "access",
                rng.randrange(2),
                rng.randrange(n),
                rng.randint(0, 9_000),
                rng.random() < 0.5,
            )
        wanted.append((at_ps, what))
    return sorted(wanted, key=lambda item: item[0])


def hand_over(run: Any, what: Any, at_ps: int) -> int:
    """Its number."""
    if isinstance(what, tuple):
        return int(getattr(run, what[0])(*what[1:], at_ps))
    return int(run.submit(what, at_ps))


def in_pieces(
    run: Any, network: str, wanted: list[tuple[int, Any]], rng: random.Random
) -> dict[int, int]:
    """Ends by place in `wanted`; hands items over late, stops anywhere, and cancels others before
    they begin.
    """
    place: dict[int, int] = {}
    decoys: list[tuple[int, int]] = []
    counters: dict[str, Any] = {}
    ends: dict[int, int] = {}
    left = list(enumerate(wanted))
    while left or place or decoys:
        if left and (rng.random() < 0.4 or not place):
            index, (at_ps, what) = left.pop(0)
            place[hand_over(run, what, at_ps)] = index
            if rng.random() < 0.5:
                at_ps = max(run.now_ps, at_ps) + rng.randint(1, 50_000)
                decoys.append((hand_over(run, rng.choice(wanted)[1], at_ps), at_ps))
        limit = min([left[0][1][0] - 1 if left else 10**15, *(at_ps - 1 for _, at_ps in decoys)])
        limit = min(limit, (run.next_event_ps() or run.now_ps) + rng.randint(0, 30_000))
        if limit >= run.now_ps and (done := run.advance_until(limit)) is not None:
            ends[place.pop(done[0])] = done[1]
        counters = check_counters(run, network, counters)
        told_later = (
            len(place) + len(decoys) - run.num_in_flight
        )  # ended with the one that was told
        assert told_later == 0 or (told_later > 0 and run.next_event_ps() == run.now_ps)
        for decoy in [one for one in decoys if rng.random() < 0.3]:
            decoys.remove(decoy)
            run.cancel(decoy[0])
    return ends


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("seed", range(25))
def test_stopping_looking_and_cancelling_change_nothing(
    engine: ModuleType, network: str, seed: int
) -> None:
    """What is cancelled before its time has never been; all else ends as if it had been handed over
    at once.
    """
    rng = random.Random(seed)
    here = world(engine, rng)
    wanted = random_work(engine, rng, here.topology.num_devices)
    plain = here.run(network)
    numbers = [hand_over(plain, what, at_ps) for at_ps, what in wanted]
    ends = {}
    while (done := plain.advance()) is not None:
        ends[numbers.index(done[0])] = done[1]
    assert len(ends) == len(wanted)
    run = here.run(network)
    assert in_pieces(run, network, wanted, rng) == ends
    assert run.next_event_ps() is None
    assert run.fair_share_counters()["flows"] == 0
    for name, columns in run.link_counters().items():
        assert np.array_equal(columns, plain.link_counters()[name]), name
    assert np.array_equal(run.device_counters()["class_ps"], plain.device_counters()["class_ps"])
    for name, columns in run.tier_counters().items():
        assert np.array_equal(columns, plain.tier_counters()[name]), name


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("seed", range(10))
def test_after_a_cancel_in_the_middle_all_is_free(
    engine: ModuleType, network: str, seed: int
) -> None:
    """Whatever was cut off, counters stay sound, and the same again takes as long as on a new
    engine.
    """
    rng = random.Random(seed)
    here = world(engine, rng)
    graphs = [random_graph(engine, rng, here.topology.num_devices) for _ in range(4)]
    run, counters = here.run(network), {}
    for _ in range(3):
        alive = {run.submit(graph, run.now_ps + rng.randint(0, 3_000)) for graph in graphs}
        while alive:
            done = run.advance_until((run.next_event_ps() or run.now_ps) + rng.randint(0, 4_000))
            if done is not None:
                alive.discard(done[0])
            counters = check_counters(run, network, counters)
            if alive and rng.random() < 0.4:
                victim = rng.choice(sorted(alive))
                try:
                    run.cancel(victim)
                except engine.InvalidGraph:  # it has ended, and will be reported next
                    continue
                alive.remove(victim)
        assert run.num_in_flight == 0
    # A message on its way when it is cancelled keeps its link to the link's end.
    begin_ps = run.now_ps + 10**9
    again, fresh = run.submit(graphs[0], begin_ps), here.run(network)
    once = fresh.submit(graphs[0], 0)
    assert run.run() - begin_ps == fresh.run()
    for here_ps, there_ps in zip(run.times(again), fresh.times(once), strict=True):
        assert np.array_equal(here_ps - begin_ps, there_ps)
