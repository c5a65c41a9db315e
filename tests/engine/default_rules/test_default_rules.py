"""Default rules against closed forms (times in ps), and what must hold for them whatever the
figures are.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import Result, run_case

EP = 10_000  # endpoint-delay
LATENCY = 500_000
BYTES_PER_S = 50 * 10**9
BACKENDS = ("unaware", "aware", "fair-share")


def wire(size: int, hops: int = 1) -> int:
    """Latencies, one serialisation, and the endpoint's delay."""
    return hops * LATENCY + -(-size * 10**12 // BYTES_PER_S) + EP


def run(
    command: Path, scratch: Path, traces: list[list[bytes]], *args: Any, **kwargs: Any
) -> Result:
    backend = kwargs.pop("backend", "unaware")
    flags = kwargs.pop("flags", ())
    case = ck.write_case(scratch / "case", traces, *args, **kwargs)
    result = run_case(command, case, scratch, backend, flags, rules="default")
    assert result.exit_code == 0, result.errors
    return result


def one_collective(
    command: Path,
    scratch: Path,
    kind: int,
    size: int,
    network: dict[str, Any],
    system: dict[str, Any] | None = None,
    backend: str = "unaware",
) -> int:
    npus = math.prod(network["npus_count"])
    nodes = [ck.node(1, ck.COLL, comm_type=kind, comm_size=size)]
    times = run(command, scratch, [nodes] * npus, network, system, backend=backend).finish_ps()
    assert len(set(times)) == 1
    assert times[0] is not None
    return times[0]


@pytest.mark.parametrize("npus", [2, 3, 5, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ring_collectives(command: Path, tmp_path: Path, npus: int, backend: str) -> None:
    """Private links: the same on every network; also a ring of two, and sizes that n does not
    divide.
    """
    size, net = 1_000_003, ck.network("Ring", npus)
    step = wire(-(-size // npus))
    assert (
        one_collective(command, tmp_path, ck.ALL_REDUCE, size, net, backend=backend)
        == 2 * (npus - 1) * step
    )
    assert (
        one_collective(command, tmp_path, ck.REDUCE_SCATTER, size, net, backend=backend)
        == (npus - 1) * step
    )
    assert (
        one_collective(command, tmp_path, ck.REDUCE_SCATTER_BLOCK, size, net, backend=backend)
        == (npus - 1) * step
    )
    # comm_size of an all-gather is one NPU's input.
    assert one_collective(command, tmp_path, ck.ALL_GATHER, size, net, backend=backend) == (
        npus - 1
    ) * wire(size)


def test_direct_and_halving_doubling(command: Path, tmp_path: Path) -> None:
    size, n = 1 << 20, 8
    direct = {
        "all-to-all-implementation": ["direct"],
        "all-reduce-implementation": ["halvingDoubling"],
    }
    net = ck.network("FullyConnected", n)
    assert one_collective(command, tmp_path, ck.ALL_TO_ALL, size, net, direct) == wire(size // n)
    halving = 2 * sum(wire(size >> k) for k in (1, 2, 3))
    assert one_collective(command, tmp_path, ck.ALL_REDUCE, size, net, direct) == halving
    # No power of two: no hang.
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=size)]
    times = run(command, tmp_path, [nodes] * 6, ck.network("FullyConnected", 6), direct).finish_ps()
    assert all(time is not None and time >= 2 * wire(size) for time in times)


def test_reduction_in_the_switch(command: Path, tmp_path: Path) -> None:
    """The vector goes up once and comes down once; strict rules do not know it."""
    size, net = 1 << 20, ck.network("Switch", 4)
    system = {"all-reduce-implementation": ["inSwitch"], "endpoint-delay": 0}
    one_way = LATENCY + -(-size * 10**12 // BYTES_PER_S)
    assert (
        one_collective(command, tmp_path, ck.ALL_REDUCE, size, net, system, "fair-share")
        == 2 * one_way
    )
    case = tmp_path / "case"
    result = run_case(command, case, tmp_path)
    assert result.exit_code == 2
    assert "inSwitch is not ASTRA-sim's" in result.errors


def test_rooted_collectives_and_barriers_run(command: Path, tmp_path: Path) -> None:
    net = ck.network("FullyConnected", 4)
    for kind in (ck.REDUCE, ck.GATHER, ck.SCATTER, ck.BROADCAST):
        nodes = [ck.node(1, ck.COLL, comm_type=kind, comm_size=1 << 20, root_rank=2)]
        times = run(command, tmp_path, [nodes] * 4, net).finish_ps()
        # Binomial trees of two rounds; gather and scatter move each part once per round.
        rounds = [1 << 19, 1 << 18] if kind in (ck.GATHER, ck.SCATTER) else [1 << 20, 1 << 20]
        assert max(time or 0 for time in times) == sum(wire(size) for size in rounds)
    nodes = [ck.node(1, ck.COLL, comm_type=ck.BARRIER)]
    assert (
        run(command, tmp_path, [nodes] * 4, net).finish_ps() == [2 * wire(0)] * 4
    )  # log2(4) rounds


def test_chunks_pipeline_and_nothing_is_sent_twice(command: Path, tmp_path: Path) -> None:
    """A size that its chunks do not divide: no further chunk of full size, and the links carry the
    exact bytes.
    """
    size, n = 1_000_003, 4
    counters = tmp_path / "links.csv"
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=size)]
    splits = {"preferred-dataset-splits": 3}
    run(
        command,
        tmp_path,
        [nodes] * n,
        ck.network("Ring", n),
        splits,
        flags=(f"--link-counters={counters}",),
    )
    rows = [line.split(",") for line in counters.read_text().split()[1:]]
    assert sum(int(row[2]) for row in rows) == 2 * (n - 1) * size
    whole = one_collective(command, tmp_path, ck.ALL_REDUCE, size, ck.network("Ring", n))
    cut = one_collective(command, tmp_path, ck.ALL_REDUCE, size, ck.network("Ring", n), splits)
    assert cut <= whole


def test_messages_cross_all_dimensions(command: Path, tmp_path: Path) -> None:
    """Strict rules charge the lowest differing dimension only."""
    size = 1 << 20
    net = {
        "topology": ["Ring", "Switch"],
        "npus_count": [4, 2],
        "bandwidth": [50, 25],
        "latency": [500, 700],
    }
    traces = [[ck.node(1, ck.COMP)] for _ in range(8)]
    traces[0] = [ck.node(1, ck.SEND, comm_size=size, comm_dst=6, comm_tag=0)]
    traces[6] = [ck.node(1, ck.RECV, comm_size=size, comm_src=0, comm_tag=0)]
    slow = -(-size * 10**12 // (25 * 10**9))
    fast = -(-size * 10**12 // (50 * 10**9))
    latency = 2 * 500_000 + 2 * 700_000 + EP
    for backend, expected in (
        ("unaware", latency + slow),
        ("aware", latency + 2 * fast + 2 * slow),
    ):
        assert run(command, tmp_path, traces, net, backend=backend).finish_ps()[6] == expected


def test_a_plan_of_two_dimensions(command: Path, tmp_path: Path) -> None:
    """Reduce-scatter in dimension 0, all-reduce in 1, all-gather in 0; with `baseline` an
    all-reduce in each.
    """
    size = 1 << 20
    net = {
        "topology": ["Ring", "Ring"],
        "npus_count": [4, 2],
        "bandwidth": [50, 50],
        "latency": [500, 500],
    }
    rings = {"all-reduce-implementation": ["ring", "ring"]}
    expected = 2 * 3 * wire(size // 4) + 2 * wire(size // 8)
    assert one_collective(command, tmp_path, ck.ALL_REDUCE, size, net, rings) == expected
    baseline = {**rings, "collective-optimization": "baseline"}
    expected = 2 * 3 * wire(size // 4) + 2 * wire(size // 2)
    assert one_collective(command, tmp_path, ck.ALL_REDUCE, size, net, baseline) == expected


def test_groups_use_the_dimensions_that_they_fill(command: Path, tmp_path: Path) -> None:
    size = 1 << 20
    net = {
        "topology": ["FullyConnected", "Ring"],
        "npus_count": [4, 2],
        "bandwidth": [50, 50],
        "latency": [500, 500],
    }
    system = {"all-reduce-implementation": ["direct", "ring"]}
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=size, pg_name="1")]
    others = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=size, pg_name="2")]
    groups = {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}
    result = run(command, tmp_path, [nodes] * 4 + [others] * 4, net, system, groups=groups)
    assert result.finish_ps() == [2 * wire(size // 4)] * 8  # direct: strict rules force a ring here


def test_everything_overlaps_that_dependencies_allow(command: Path, tmp_path: Path) -> None:
    """Compute, a collective, a message and a memory access at once; strict rules have one slot for
    the last three.
    """
    size = 1 << 20
    nodes = [
        ck.node(1, ck.COMP, micros=7),
        ck.node(2, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=size),
        ck.node(3, ck.LOAD, tensor_size=1_000_000),
    ]
    traces = [list(nodes) for _ in range(4)]
    traces[0].append(ck.node(4, ck.SEND, comm_size=5, comm_dst=1, comm_tag=0))
    traces[1].append(ck.node(4, ck.RECV, comm_size=5, comm_src=0, comm_tag=0))
    memory = {
        "memory-type": "PER_NPU_MEMORY_EXPANSION",
        "remote-mem-latency": 100,
        "remote-mem-bw": 10,
    }
    times = run(command, tmp_path, traces, ck.network("FullyConnected", 4), memory=memory).times()
    assert times[0, 1] == (0, 7_000_000)
    assert times[0, 3] == (0, 100_000 + 100_000_000)
    assert times[0, 4][0] == times[0, 2][0] == 0
    assert times[0, 4][1] == wire(5)


def test_shared_memory_serves_in_order(command: Path, tmp_path: Path) -> None:
    """Latency passes while the next access moves its bytes; strict rules keep the server busy for
    both.
    """
    nodes = [
        ck.node(1, ck.LOAD, tensor_size=1_000_000),
        ck.node(2, ck.STORE, [1], tensor_size=1_000_000),
    ]
    costs = {"remote-mem-latency": 100, "remote-mem-bw": 10}
    move, latency = 100_000_000, 100_000
    kinds = {
        "PER_NPU_MEMORY_EXPANSION": ({}, [1, 1, 1, 1]),
        "PER_NODE_MEMORY_EXPANSION": ({"num-nodes": 2, "num-npus-per-node": 2}, [1, 2, 1, 2]),
        "MEMORY_POOL": ({}, [1, 2, 3, 4]),
    }
    for backend in BACKENDS:
        for kind, (more, places) in kinds.items():
            memory = {"memory-type": kind, **costs, **more}
            times = run(
                command,
                tmp_path,
                [nodes] * 4,
                ck.network("Ring", 4),
                memory=memory,
                backend=backend,
            ).times()
            assert [times[npu, 1][1] for npu in range(4)] == [
                place * move + latency for place in places
            ]
            if kind == "PER_NPU_MEMORY_EXPANSION":
                assert times[3, 2][1] == 2 * (move + latency)


@pytest.mark.parametrize("nodes", [2, 1 << 50])
def test_more_memory_servers_than_npus_are_no_fewer(
    command: Path, tmp_path: Path, nodes: int
) -> None:
    """Their product is beyond 64 bits."""
    memory = {
        "memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 0, "remote-mem-bw": 10,
        "num-nodes": nodes, "num-npus-per-node": 1 << 50,
    }  # fmt: skip
    load = [ck.node(1, ck.LOAD, tensor_size=1_000_000)]
    times = run(command, tmp_path, [load] * 2, ck.network("Ring", 2), memory=memory).times()
    assert [times[npu, 1][1] for npu in range(2)] == [100_000_000, 200_000_000]


def test_compute_takes_what_is_ready(command: Path, tmp_path: Path) -> None:
    """Node 3 waits for a collective; 4 is ready and runs meanwhile, as under strict rules."""
    nodes = [
        ck.node(1, ck.COMP, micros=1),
        ck.node(2, ck.COLL, [1], comm_type=ck.ALL_REDUCE, comm_size=1 << 20),
        ck.node(3, ck.COMP, [2], micros=1),
        ck.node(4, ck.COMP, [1], micros=5),
    ]
    times = run(command, tmp_path, [nodes] * 2, ck.network("Ring", 2)).times()
    assert times[0, 4] == (1_000_000, 6_000_000)
    assert times[0, 3][0] == times[0, 2][1]


def test_durations_in_picoseconds_and_rooflines(command: Path, tmp_path: Path) -> None:
    net = ck.network("Ring", 2)
    fine = [ck.node(1, ck.COMP, micros=9, duration_ps=1234), ck.node(2, ck.COMP, [1])]
    assert run(command, tmp_path, [fine] * 2, net).times()[1, 2] == (
        1234,
        1234,
    )  # no duration: none
    system = {"roofline-enabled": 1, "peak-perf": 100, "local-mem-bw": 1000}
    nodes = [
        ck.node(1, ck.COMP, num_ops=10**9 + 1, tensor_size=1000),  # compute bound
        ck.node(2, ck.COMP, [1], num_ops=1, tensor_size=10**9),  # memory bound
        ck.node(3, ck.COMP, [2], num_ops=10**8, tensor_size=0),
    ]
    times = run(command, tmp_path, [nodes] * 2, net, system).times()
    assert [times[0, i][1] - times[0, i][0] for i in (1, 2, 3)] == [10_000_001, 10**9, 10**6]


def test_custom_collectives(command: Path, tmp_path: Path) -> None:
    """An exchange of two ranks, twice, with several chunks asked for: strict rules refuse that."""
    for rank in (0, 1):
        peer = 1 - rank
        steps = [
            ck.node(1, ck.SEND, comm_size=1000, comm_dst=peer, comm_tag=3),
            ck.node(2, ck.RECV, comm_size=1000, comm_src=peer, comm_tag=3),
            ck.node(3, ck.COMP, [2], micros=2),
        ]
        (tmp_path / f"swap.{rank}.et").write_bytes(ck.trace(steps))
    nodes = [
        ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=7),
        ck.node(2, ck.COLL, [1], comm_type=ck.ALL_REDUCE, comm_size=7),
    ]
    system = {
        "all-reduce-implementation-custom": [str(tmp_path / "swap")],
        "preferred-dataset-splits": 4,
    }
    times = run(command, tmp_path, [nodes] * 2, ck.network("Ring", 2), system).times()
    assert times[0, 2] == (wire(1000) + 2_000_000, 2 * (wire(1000) + 2_000_000))


@pytest.mark.parametrize(
    ("traces", "parts"),
    [
        ([[ck.node(1, ck.RECV, comm_size=9, comm_src=1, comm_tag=2)], []], ["9 bytes with tag 2", "never sent"]),  # noqa: E501
        ([[ck.node(1, ck.COLL, comm_type=0, comm_size=9)], []], ["never join it"]),
        (
            [
                [
                    ck.node(1, ck.RECV, comm_size=9, comm_src=1, comm_tag=0),
                    ck.node(2, ck.COLL, [1], comm_type=0, comm_size=9),
                ],
                [
                    ck.node(5, ck.COLL, comm_type=0, comm_size=9),
                    ck.node(6, ck.SEND, [5], comm_size=9, comm_dst=0, comm_tag=0),
                ],
            ],
            ["NPU 0: node 2", "NPU 1: node 5", "4 node(s) never end"],
        ),
    ],
)  # fmt: skip
def test_what_never_ends_is_named(
    command: Path, tmp_path: Path, traces: list[list[bytes]], parts: list[str]
) -> None:
    case = ck.write_case(tmp_path / "case", traces, ck.network("Ring", 2))
    result = run_case(command, case, tmp_path, rules="default")
    assert result.exit_code == 3
    for part in parts:
        assert part in result.errors


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        ([ck.node(2, ck.COMP, [99])], "node 2 depends on node 99, which is not in the file"),
        (
            [ck.node(2, ck.COMP, [3]), ck.node(3, ck.COMP, [4]), ck.node(4, ck.COMP, [2])],
            "cycle: 2 on 3 on 4 on 2",
        ),
        ([ck.node(2, ck.COMP), ck.node(2, ck.COMP)], "node 2 appears twice"),
        ([ck.node(2, ck.COLL, comm_type=0, comm_size="big")], "comm_size is a string_val"),
        (
            [ck.node(2, ck.COLL, comm_type=0, comm_size=5, pg_name="8")],
            "no comm group of that number",
        ),
        (
            [ck.node(2, ck.COLL, comm_type=0, comm_size=6)],
            "issue the same collectives in the same order",
        ),
        ([ck.node(2, ck.LOAD, tensor_size=5)], "NO_MEMORY_EXPANSION"),
        ([ck.node(2, ck.COLL, comm_type=5, comm_size=5, root_rank=2)], "root_rank is 2"),
    ],
)
def test_wrong_nodes_are_named(
    command: Path, tmp_path: Path, nodes: list[bytes], part: str
) -> None:
    other = [ck.node(1, ck.COLL, comm_type=0, comm_size=5)]
    case = ck.write_case(tmp_path / "case", [other, nodes], ck.network("Ring", 2))
    result = run_case(command, case, tmp_path, rules="default")
    assert result.exit_code == 2
    assert part in result.errors


def test_timeline_and_lines(command: Path, tmp_path: Path) -> None:
    """Both rules: every node once, on its NPU, with its times in us; overlapping ones on tracks of
    their own.
    """
    nodes = [
        ck.node(1, ck.COMP, micros=3),
        ck.node(2, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=1000),
        ck.node(3, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=1000, pg_name="1"),
    ]
    case = ck.write_case(
        tmp_path / "case", [nodes] * 3, ck.network("Ring", 3), groups={"1": [0, 1, 2]}
    )
    for rules, per_us in (("strict", 10**3), ("default", 10**6)):
        path = tmp_path / "timeline.json"
        result = run_case(command, case, tmp_path, flags=(f"--timeline={path}",), rules=rules)
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        assert {(e["pid"], e["args"]["node"]): (e["ts"], e["ts"] + e["dur"]) for e in events} == {
            key: pytest.approx((issue / per_us, done / per_us), abs=1e-9)
            for key, (issue, done) in result.times().items()
        }
        assert {e["name"] for e in events} == {"n1", "n2", "n3"}
        for a in events:
            for b in events:
                if a is not b and (a["pid"], a["tid"]) == (b["pid"], b["tid"]):
                    assert (
                        a["ts"] + a["dur"] <= b["ts"] + 1e-9 or b["ts"] + b["dur"] <= a["ts"] + 1e-9
                    )


def test_a_rate_quantum_is_labelled(command: Path, tmp_path: Path) -> None:
    """Messages of unlike sizes over one link: rates that are put off make it idle; the sum of bytes
    is the least.
    """
    count, gb_per_s = 40, 50
    sends = [
        ck.node(tag, ck.SEND, comm_size=1000 * tag, comm_dst=1, comm_tag=tag)
        for tag in range(1, count + 1)
    ]
    case = ck.write_case(
        tmp_path / "case", [sends, []], ck.network("Ring", 2, gb_per_s, 0), {"endpoint-delay": 0}
    )
    least_ps = sum(1000 * tag for tag in range(1, count + 1)) * 1000 // gb_per_s

    def deferred_and_end(*flags: str) -> tuple[int, int]:
        result = run_case(command, case, tmp_path, "fair-share", flags, rules="default")
        assert result.report is not None, result.errors
        return result.report["rate_quantum"]["deferred"], result.finish_ps()[0] or 0

    for flags in ((), ("--rate-quantum=0",), ("--rate-quantum=20:40",)):
        deferred, end_ps = deferred_and_end(*flags)
        assert (deferred, end_ps) == (0, pytest.approx(least_ps, abs=count)), flags
    deferred, end_ps = deferred_and_end("--rate-quantum=20:1")
    assert deferred > 0
    assert least_ps < end_ps < 1.4 * least_ps
    for wrong in ("--rate-quantum=101", "--rate-quantum=1:x", "--rate-quantum="):
        assert (
            run_case(command, case, tmp_path, "fair-share", (wrong,), rules="default").exit_code
            == 2
        )
    refused = run_case(command, case, tmp_path, "aware", ("--rate-quantum=1",), rules="default")
    assert (refused.exit_code, "needs --network-backend fair-share" in refused.errors) == (2, True)


def random_program(rng: random.Random, npus: int) -> list[list[bytes]]:
    """One program for all NPUs: compute, collectives of all kinds, and a neighbour's message, with
    random parents.
    """
    kinds = (ck.ALL_REDUCE, ck.ALL_GATHER, ck.REDUCE_SCATTER, ck.ALL_TO_ALL)
    plan: list[tuple[str, list[int], int, int]] = []
    for index in range(1, rng.randint(2, 9)):
        deps = sorted(rng.sample(range(1, index), min(index - 1, rng.randint(0, 2))))
        what = rng.choice(("comp", "coll", "message"))
        plan.append((what, deps, rng.choice(kinds), rng.choice((1, 7, 4096, 100_003, 1 << 20))))
    traces = []
    for npu in range(npus):
        nodes = []
        for index, (what, deps, kind, size) in enumerate(plan, start=1):
            if what == "comp":
                nodes.append(ck.node(index, ck.COMP, deps, micros=size % 97))
            elif what == "coll":
                nodes.append(ck.node(index, ck.COLL, deps, comm_type=kind, comm_size=size))
            else:
                to, source = (npu + 1) % npus, (npu - 1) % npus
                nodes.append(
                    ck.node(index, ck.RECV, deps, comm_size=size, comm_src=source, comm_tag=index)
                )
                nodes.append(
                    ck.node(100 + index, ck.SEND, deps, comm_size=size, comm_dst=to, comm_tag=index)
                )
        traces.append(nodes)
    return traces


@pytest.mark.parametrize("seed", range(12))
def test_unseen_programs(command: Path, tmp_path: Path, seed: int) -> None:
    """Random symmetric programs, networks and plans: all ends, NPUs alike, congestion never helps,
    twice the same.
    """
    rng = random.Random(seed)
    shape = rng.choice(("Ring", "Switch", "FullyConnected"))
    npus = rng.choice((2, 3, 4, 6, 8))
    algorithm = rng.choice(("ring", "direct"))
    splits = rng.choice((1, 3, 4))
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system = {f"{kind}-implementation": [algorithm] for kind in kinds} | {
        "preferred-dataset-splits": splits
    }
    traces = random_program(rng, npus)
    net = ck.network(shape, npus, rng.choice((1, 50, 400)), rng.choice((0, 30, 500)))
    ends = {}
    for backend in BACKENDS:
        result = run(command, tmp_path, traces, net, system, backend=backend)
        again = run(command, tmp_path, traces, net, system, backend=backend)
        assert result.node_times == again.node_times
        ends[backend] = result.finish_ps()
        for (npu, node), (issue, done) in result.times().items():
            assert issue <= done, (npu, node)
        if shape != "Ring" or algorithm == "ring" or backend == "unaware":
            assert len(set(ends[backend])) == 1, (backend, ends)
    assert max(ends["unaware"]) <= max(ends["aware"])
