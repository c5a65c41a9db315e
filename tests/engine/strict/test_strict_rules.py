"""Strict rules against their closed forms (times in ns), on cases of our own; no recorded data
needed.
"""

import math
import os
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import Result, run_case

EP = 10  # endpoint-delay
MEMORY_BYTES_PER_S = 1600e9
BYTES_PER_NS = 50.0 * 2**30 / 1e9
LATENCY = 500.0


def wire(size: int, hops: int = 1) -> int:
    return int(hops * LATENCY + size / BYTES_PER_NS)


def reduction(size: int) -> int:
    return 3 * int(size / MEMORY_BYTES_PER_S * 1e9)


def collective(
    command: Path,
    scratch: Path,
    kind: int,
    size: int,
    npus: int,
    shape: str,
    system: dict[str, Any] | None = None,
) -> int:
    """Finish of one collective that all NPUs start at 0."""
    nodes = [ck.node(1, ck.COLL, comm_type=kind, comm_size=size)]
    case = ck.write_case(scratch / "case", [nodes] * npus, ck.network(shape, npus), system)
    result = run_case(command, case, scratch)
    assert result.exit_code == 0, result.errors
    times = result.finish_ns()
    assert len(set(times)) == 1
    assert times[0] is not None
    return times[0]


@pytest.mark.parametrize("npus", [3, 4, 8])
@pytest.mark.parametrize("size", [1_000_003, 1 << 20])
def test_ring(command: Path, tmp_path: Path, npus: int, size: int) -> None:
    part = size // npus
    red, net, n = reduction(part), wire(part), npus
    assert collective(command, tmp_path, ck.ALL_REDUCE, size, n, "Ring") == (
        (2 * n - 1) * EP + (n - 1) * red + 2 * (n - 1) * net
    )
    assert collective(command, tmp_path, ck.REDUCE_SCATTER, size, n, "Ring") == n * EP + (n - 1) * (
        red + net
    )
    assert collective(command, tmp_path, ck.ALL_GATHER, size, n, "Ring") == n * EP + (n - 1) * wire(
        size
    )
    k = n * (n - 1) // 2
    assert collective(command, tmp_path, ck.ALL_TO_ALL, size, n, "Ring") == (k + 1) * EP + k * net


@pytest.mark.parametrize(("shape", "hops"), [("FullyConnected", 1), ("Switch", 2)])
@pytest.mark.parametrize("npus", [2, 5, 8])
def test_direct(command: Path, tmp_path: Path, shape: str, hops: int, npus: int) -> None:
    size = 1_000_003
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system = {f"{name}-implementation": ["direct"] for name in names}
    net, red = wire(size // npus, hops), reduction(size // npus)
    assert collective(command, tmp_path, ck.ALL_TO_ALL, size, npus, shape, system) == 2 * EP + net
    assert collective(command, tmp_path, ck.ALL_GATHER, size, npus, shape, system) == 2 * EP + wire(
        size, hops
    )
    assert (
        collective(command, tmp_path, ck.REDUCE_SCATTER, size, npus, shape, system)
        == 2 * EP + red + net
    )
    assert (
        collective(command, tmp_path, ck.ALL_REDUCE, size, npus, shape, system)
        == 3 * EP + red + 2 * net
    )


@pytest.mark.parametrize("window", [1, 2, 3, 7, 20])
def test_direct_with_a_window(command: Path, tmp_path: Path, window: int) -> None:
    size, npus = 1 << 20, 8
    system = {"all-to-all-implementation": [f"direct{window}"]}
    rounds = math.ceil((npus - 1) / window)
    expected = rounds * (EP + wire(size // npus)) + EP
    assert (
        collective(command, tmp_path, ck.ALL_TO_ALL, size, npus, "FullyConnected", system)
        == expected
    )


def test_direct_among_more_than_the_pairs_that_fit_is_refused(
    command: Path, tmp_path: Path
) -> None:
    npus = 16385
    names = ("all-reduce", "all-to-all")
    system = {f"{name}-implementation": ["direct"] for name in names}
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_TO_ALL, comm_size=1 << 20)]
    case = ck.write_case(tmp_path / "case", [nodes], ck.network("Switch", npus), system)
    for npu in range(1, npus):
        os.link(case / "workload.0.et", case / f"workload.{npu}.et")
    result = run_case(command, case, tmp_path)
    assert result.exit_code == 2
    assert "NPU 0, node 1: direct takes up to 16384 NPUs under strict rules" in result.errors


@pytest.mark.parametrize("npus", [2, 4, 8, 16])
def test_halving_doubling(command: Path, tmp_path: Path, npus: int) -> None:
    """Sizes c/2 ... c/n and back; the first half but its first step pays a reduction of the next
    message.
    """
    size = 1 << 20
    levels = npus.bit_length() - 1
    halves = [size >> step for step in range(1, levels + 1)]
    expected = (
        (2 * levels + 1) * EP
        + 2 * sum(wire(half) for half in halves)
        + sum(map(reduction, halves[1:]))
    )
    system = {"all-reduce-implementation": ["halvingDoubling"]}
    assert (
        collective(command, tmp_path, ck.ALL_REDUCE, size, npus, "FullyConnected", system)
        == expected
    )


def test_a_remainder_is_one_more_chunk_of_full_size(command: Path, tmp_path: Path) -> None:
    """1 MiB in 3 splits: 4 chunks of 349,525 bytes, one after another."""
    system = {"preferred-dataset-splits": 3, "active-chunks-per-dimension": 1}
    one = 7 * EP + 3 * reduction(349_525 // 4) + 6 * wire(349_525 // 4)
    assert collective(command, tmp_path, ck.ALL_REDUCE, 1 << 20, 4, "Ring", system) == 4 * one


def run_nodes(
    command: Path,
    scratch: Path,
    traces: list[list[bytes]],
    shape: str = "Switch",
    backend: str = "unaware",
    **more: Any,
) -> Result:
    case = ck.write_case(scratch / "case", traces, ck.network(shape, len(traces)), **more)
    return run_case(command, case, scratch, backend)


def test_sends_match_receives_of_tag_ends_and_size_in_order(command: Path, tmp_path: Path) -> None:
    """Two sends of one size and one of another: the receive of the other size does not
    take them.
    """

    def send(at: int, size: int) -> bytes:
        return ck.node(at, ck.SEND, comm_size=size, comm_dst=1, comm_tag=7)

    def receive(at: int, size: int) -> bytes:
        return ck.node(at, ck.RECV, comm_size=size, comm_src=0, comm_tag=7)

    result = run_nodes(
        command,
        tmp_path,
        [
            [send(1, 1000), send(2, 1000), send(3, 5)],
            [receive(n, s) for n, s in ((1, 5), (2, 1000), (3, 1000))],
        ],
    )
    once, small = wire(1000, 2), wire(5, 2)
    assert result.node_times == [
        f"0,1,0,{once}",
        f"0,2,{once},{2 * once}",
        f"0,3,{2 * once},{2 * once + small}",
        f"1,1,0,{2 * once + small}",
        f"1,2,0,{once}",
        f"1,3,0,{2 * once}",
    ]


def test_a_late_receive_ends_when_it_is_posted(command: Path, tmp_path: Path) -> None:
    sender = [ck.node(1, ck.SEND, comm_size=1000, comm_dst=1, comm_tag=0)]
    receiver = [
        ck.node(1, ck.COMP, micros=90),
        ck.node(2, ck.RECV, [1], comm_size=1000, comm_src=0, comm_tag=0),
    ]
    assert run_nodes(command, tmp_path, [sender, receiver]).finish_ns() == [wire(1000, 2), 90_000]


def test_aware_incast_queues_at_the_receivers_port(command: Path, tmp_path: Path) -> None:
    """n - 1 messages start together, and the last port serves them one by one, whole messages."""
    npus, size = 6, 1 << 20
    senders = [
        [ck.node(1, ck.SEND, comm_size=size, comm_dst=0, comm_tag=0)] for _ in range(npus - 1)
    ]
    receiver = [
        ck.node(peer, ck.RECV, comm_size=size, comm_src=peer, comm_tag=0) for peer in range(1, npus)
    ]
    times = run_nodes(command, tmp_path, [receiver, *senders], backend="aware").finish_ns()
    one = int(size / BYTES_PER_NS)
    assert times[1:] == [
        2 * int(LATENCY + size / BYTES_PER_NS) + place * one for place in range(npus - 1)
    ]


def test_one_communication_at_a_time_per_npu(command: Path, tmp_path: Path) -> None:
    """Two ready collectives run one after the other, compute beside them."""
    nodes = [ck.node(k, ck.COLL, comm_type=ck.ALL_GATHER, comm_size=1000) for k in (1, 2)]
    result = run_nodes(command, tmp_path, [[*nodes, ck.node(3, ck.COMP, micros=3)]] * 4, "Ring")
    one = 4 * EP + 3 * wire(1000)
    assert result.finish_ns() == [2 * one] * 4
    assert "0,3,0,3000" in result.node_times


def test_a_memory_pool_serves_first_come_first_served(command: Path, tmp_path: Path) -> None:
    memory = {"memory-type": "MEMORY_POOL", "remote-mem-latency": 500, "remote-mem-bw": 50}
    result = run_nodes(
        command, tmp_path, [[ck.node(1, ck.LOAD, tensor_size=1_000_000)]] * 3, memory=memory
    )
    assert result.finish_ns() == [20_500, 41_000, 61_500]


def test_groups_pay_ten_ns_and_fall_back_to_a_ring(command: Path, tmp_path: Path) -> None:
    size, groups = 400_000, {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}
    node = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=size, pg_name="1")]
    other = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=size, pg_name="2")]
    system = {"endpoint-delay": 100, "all-reduce-implementation": ["direct", "direct"]}
    result = run_nodes(
        command, tmp_path, [node] * 4 + [other] * 4, "FullyConnected", groups=groups, system=system
    )
    part = size // 4
    assert result.finish_ns() == [7 * 10 + 3 * reduction(part) + 6 * wire(part)] * 8


@pytest.mark.parametrize("backend", ["unaware", "aware"])
def test_what_never_ends_is_named(command: Path, tmp_path: Path, backend: str) -> None:
    traces = [
        [ck.node(1, ck.COMP, micros=5)],
        [
            ck.node(4, ck.RECV, comm_size=100, comm_src=0, comm_tag=9),
            ck.node(5, ck.COMP, [4], micros=1),
        ],
        [ck.node(2, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=100)],
    ]
    result = run_nodes(command, tmp_path, traces, backend=backend)
    assert result.exit_code == 3
    assert result.finish_ns() == [5000, None, None]
    for part in (
        "3 node(s) never end",
        "NPU 1: node 4 waits for 100 bytes with tag 9 from NPU 0",
        "NPU 2: node 2",
    ):
        assert part in result.errors


def test_a_cycle_beside_a_live_part_is_named(command: Path, tmp_path: Path) -> None:
    live = [
        ck.node(1, ck.COMP, micros=5),
        ck.node(2, ck.COMP, [3], micros=5),
        ck.node(3, ck.COMP, [2], micros=5),
    ]
    result = run_nodes(command, tmp_path, [live] * 2)
    assert result.exit_code == 3
    assert result.finish_ns() == [5000, 5000]
    assert "node 2 waits for 1 node(s) that never end" in result.errors


def test_npus_that_disagree_on_a_collective_are_named(command: Path, tmp_path: Path) -> None:
    traces = [
        [ck.node(1, ck.COLL, comm_type=kind, comm_size=4000)]
        for kind in (ck.ALL_REDUCE, ck.ALL_GATHER)
    ]
    result = run_nodes(command, tmp_path, traces)
    assert result.exit_code == 2
    assert "NPU 1, node 1" in result.errors
    assert "same order" in result.errors
