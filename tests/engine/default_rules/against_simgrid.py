"""Fair shares against SimGrid (CM02, zero latencies, no cross-traffic): random networks, routes,
flows and starts.

From tests/, where SimGrid's Python module is installed,

    python -m engine.default_rules.against_simgrid CASES

prints the largest relative difference of the times that flows take. SimGrid keeps one simulation
per process, so that every case is computed in a forked child.
"""

import json
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from engine import chakra_file as ck
from engine.command import build_command, run_case


@dataclass(frozen=True)
class Flow:
    """A message along `path` (vertices); devices come before switches in their numbers."""

    path: tuple[int, ...]
    num_bytes: int
    start_ps: int


@dataclass(frozen=True)
class Case:
    """Cables are (a, b, bytes/s), full duplex."""

    devices: int
    switches: int
    cables: tuple[tuple[int, int, int], ...]
    flows: tuple[Flow, ...]


def random_case(seed: int) -> Case:
    """A connected network of at most 14 places, at most 24 flows on random simple paths, one path
    per pair of ends.
    """
    rng = random.Random(seed)
    devices, switches = rng.randint(2, 8), rng.randint(0, 6)
    places = devices + switches
    speeds = [
        rng.choice((10**8, 10**9, 25 * 10**9, 50 * 10**9)) * rng.randint(1, 9) for _ in range(4)
    ]
    joined = {(place, rng.randrange(place)) for place in range(1, places)}
    joined |= {
        tuple(sorted(rng.sample(range(places), 2), reverse=True))
        for _ in range(rng.randint(0, places))
    }
    cables = tuple((a, b, rng.choice(speeds)) for a, b in sorted(joined))
    paths: dict[tuple[int, int], tuple[int, ...]] = {}
    flows = []
    late = rng.choice((0, 10**9, 10**12))
    for _ in range(rng.randint(1, 24)):
        ends = rng.sample(range(devices), 2)
        path = paths.setdefault((ends[0], ends[1]), _random_path(rng, joined, ends[0], ends[1]))
        flows.append(Flow(path, rng.randint(10**5, 10**9), rng.randint(0, late)))
    return Case(devices, switches, cables, tuple(flows))


def _random_path(
    rng: random.Random, joined: set[tuple[int, int]], start: int, end: int
) -> tuple[int, ...]:
    """A walk without its loops."""
    path = [start]
    while path[-1] != end:
        here = path[-1]
        step = rng.choice(sorted({b if a == here else a for a, b in joined if here in (a, b)}))
        path = path[: path.index(step) + 1] if step in path else [*path, step]
    return tuple(path)


def ours_ps(case: Case, command: Path, scratch: Path) -> list[int]:
    """When each flow ends, from the command under default rules."""
    traces = []
    node_of: dict[int, tuple[int, int]] = {}
    for device in range(case.devices):
        own = sorted((f.start_ps, i) for i, f in enumerate(case.flows) if f.path[0] == device)
        nodes, clock = [], 0
        for place, (start, index) in enumerate(own):
            waits = ck.node(
                2 * place, ck.COMP, [2 * place - 2] if place else [], duration_ps=start - clock
            )
            flow = case.flows[index]
            sends = ck.node(
                2 * place + 1,
                ck.SEND,
                [2 * place],
                comm_size=flow.num_bytes,
                comm_dst=flow.path[-1],
                comm_tag=index,
            )
            nodes += [waits, sends]
            node_of[index] = (device, 2 * place + 1)
            clock = start
        traces.append(nodes)
    folder = ck.write_case(
        scratch / "case", traces, ck.network("Ring", case.devices), {"endpoint-delay": 0}
    )
    names = [str(device) for device in range(case.devices)] + [
        f"s{i}" for i in range(case.switches)
    ]
    network = {
        "devices": case.devices,
        "devices_relay": True,
        "switches": [{"name": name} for name in names[case.devices :]],
        "links": [
            {"a": names[a], "b": names[b], "bandwidth_gb_per_s": speed / 1e9}
            for a, b, speed in case.cables
        ],
        "routes": [
            list(route)
            for route in sorted({tuple(names[p] for p in flow.path) for flow in case.flows})
        ],
    }
    (folder / "network.json").write_text(json.dumps(network))
    flags = (f"--network-configuration={folder}/network.json",)
    result = run_case(command, folder, scratch, "fair-share", flags, rules="default")
    assert result.exit_code == 0, result.errors
    times = result.times()
    return [times[node_of[index]][1] for index in range(len(case.flows))]


def simgrid_seconds(case: Case) -> list[float]:
    """When each flow ends, from SimGrid."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            with os.fdopen(writer, "w") as pipe:
                json.dump(_simulate(case), pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(text)
    assert isinstance(found, list)
    return found


def _simulate(case: Case) -> list[float]:
    import simgrid

    options = ["network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:1e30"]
    engine = simgrid.Engine(
        ["case", *(f"--cfg={option}" for option in options), "--log=root.thres:critical"]
    )
    zone = simgrid.NetZone.create_full_zone("all")
    hosts = [zone.create_host(str(device), 1e9).seal() for device in range(case.devices)]
    links = {}
    for a, b, speed in case.cables:
        for one, other in ((a, b), (b, a)):
            links[one, other] = (
                zone.create_link(f"{one}-{other}", float(speed)).set_latency(0.0).seal()
            )
    for path in sorted({flow.path for flow in case.flows}):
        route = [simgrid.LinkInRoute(links[hop]) for hop in pairwise(path)]
        zone.add_route(hosts[path[0]].netpoint, hosts[path[-1]].netpoint, None, None, route, False)
    zone.seal()
    ends = [0.0] * len(case.flows)

    def send(index: int) -> None:
        flow = case.flows[index]
        simgrid.this_actor.sleep_until(flow.start_ps / 1e12)
        simgrid.Comm.sendto(hosts[flow.path[0]], hosts[flow.path[-1]], flow.num_bytes)
        ends[index] = simgrid.Engine.clock

    for index, flow in enumerate(case.flows):
        simgrid.Actor.create(str(index), hosts[flow.path[0]], send, index)
    engine.run()
    return ends


def largest_difference(case: Case, command: Path, scratch: Path) -> float:
    """Of the times that flows take, relative to SimGrid's."""
    worst = 0.0
    for flow, end_ps, end_s in zip(
        case.flows, ours_ps(case, command, scratch), simgrid_seconds(case), strict=True
    ):
        took = end_s - flow.start_ps / 1e12
        worst = max(worst, abs((end_ps - flow.start_ps) / 1e12 - took) / took)
    return worst


def main(cases: int) -> None:
    command = build_command()
    with tempfile.TemporaryDirectory() as scratch:
        found = [
            (largest_difference(random_case(seed), command, Path(scratch)), seed)
            for seed in range(cases)
        ]
    flows = sum(len(random_case(seed).flows) for seed in range(cases))
    worst, seed = max(found)
    print(f"{cases} cases, {flows} flows: largest difference {worst:.2e} (seed {seed})")


if __name__ == "__main__":
    main(int(sys.argv[1]))
