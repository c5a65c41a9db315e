"""The shared network alone: how long transfers take alone and together, exactly, and in which order
they land.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim import _native
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.lowering.network.cluster_network import cluster_network

PS_PER_S = 10**12
Start = tuple[int, int, int, int]


def star(
    sharing: str, places: int, bytes_per_s: int, latency_ps: int, islands: int = 1
) -> "_native.NetworkConfig":
    """`places` devices spread over `islands` nodes; the latency is that of the way out."""
    config = _native.NetworkConfig(getattr(_native.Sharing, sharing))
    for place in range(places):
        near = (config.add_link(bytes_per_s, latency_ps), config.add_link(bytes_per_s, 0))
        far = (
            config.add_link(max(1, bytes_per_s // 4), 3 * latency_ps),
            config.add_link(max(1, bytes_per_s // 4), 0),
        )
        config.add_place(place % islands, near, far)
    return config


def ceil_ps(count: int, bytes_per_s: int) -> int:
    return -(-count * PS_PER_S // bytes_per_s)


@pytest.mark.parametrize("sharing", ["FAIR", "FIFO"])
@given(
    count=st.integers(1, 10**12),
    bytes_per_s=st.integers(10**6, 10**12),
    latency_ps=st.integers(0, 10**7),
)
def test_alone_it_takes_latency_and_serialisation(
    sharing: str, count: int, bytes_per_s: int, latency_ps: int
) -> None:
    landed, sent, busy = star(sharing, 2, bytes_per_s, latency_ps).probe([(5, 0, 1, count)])
    assert landed.tolist() == [5 + latency_ps + ceil_ps(count, bytes_per_s)]
    assert (
        sent.tolist()[0] == count and sum(sent.tolist()) == 2 * count
    )  # its way out and its way in
    assert busy.tolist()[0] == ceil_ps(count, bytes_per_s)


@given(n=st.integers(1, 40), count=st.integers(1, 10**9))
def test_n_on_one_link_take_n_times_as_long(n: int, count: int) -> None:
    bytes_per_s = 10**9 * n  # so that the equal share is a whole number of bytes
    starts = [(0, 0, 1 + i % 3, count) for i in range(n)]
    fair, _, _ = star("FAIR", 4, bytes_per_s, 0).probe(starts)
    assert set(fair.tolist()) == {ceil_ps(n * count, bytes_per_s)}
    fifo, _, _ = star("FIFO", 4, bytes_per_s, 0).probe(starts)
    assert fifo.tolist() == [(i + 1) * ceil_ps(count, bytes_per_s) for i in range(n)]


def test_others_far_away_do_not_matter() -> None:
    config = star("FAIR", 4, 10**9, 0)
    landed, _, _ = config.probe([(0, 0, 1, 10**6), (0, 2, 3, 10**6)])
    assert landed.tolist() == [10**9, 10**9]
    both_ways, _, _ = config.probe([(0, 0, 1, 10**6), (0, 1, 0, 10**6)])
    assert both_ways.tolist() == [10**9, 10**9]  # full duplex


def test_a_late_comer_slows_the_first_from_then_on() -> None:
    landed, _, _ = star("FAIR", 3, 10**9, 0).probe([(0, 0, 1, 10**6), (10**9 // 2, 0, 2, 10**6)])
    assert landed.tolist() == [3 * 10**9 // 2, 2 * 10**9]


def test_islands_meet_over_the_far_ports() -> None:
    landed, sent, _ = star("FAIR", 2, 4 * 10**9, 1000, islands=2).probe([(0, 0, 1, 10**6)])
    assert landed.tolist() == [10**9 + 3000]
    assert sent.tolist() == [0, 0, 10**6, 0, 0, 0, 0, 10**6]


def test_nothing_to_move_and_nowhere_to_go() -> None:
    landed, sent, _ = star("FAIR", 2, 10**9, 7).probe([(3, 0, 1, 0), (3, 1, 1, 10**9)])
    assert landed.tolist() == [10, 3] and sent.tolist()[0] == 0


def test_a_memory_shares_its_bandwidth_between_reads_and_writes() -> None:
    config = _native.NetworkConfig(_native.Sharing.FAIR)
    devices = [
        config.add_place(0, (config.add_link(10**10, 0), config.add_link(10**10, 0)), (-1, -1))
        for _ in range(2)
    ]
    memory = config.add_link(10**9, 0)
    host = config.add_place(-1, (memory, memory), (-1, -1))
    landed, _, _ = config.probe([(0, devices[0], host, 10**6), (0, host, devices[1], 10**6)])
    assert landed.tolist() == [2 * 10**9, 2 * 10**9]


def test_what_cannot_exist_is_refused() -> None:
    config = _native.NetworkConfig(_native.Sharing.FAIR)
    config.add_link(0, 0)
    with pytest.raises(ValueError, match="0 bytes/s"):
        config.probe([])
    config = _native.NetworkConfig(_native.Sharing.FAIR)
    config.add_place(0, (3, 3), (-1, -1))
    with pytest.raises(ValueError, match="unknown link"):
        config.probe([])
    config = _native.NetworkConfig(_native.Sharing.FAIR)
    for island in range(2):
        config.add_place(island, (-1, -1), (-1, -1))
    with pytest.raises(ValueError, match="no route"):
        config.probe([(0, 0, 1, 1)])


@settings(deadline=None)
@given(st.data(), st.sampled_from(["FAIR", "FIFO"]))
def test_bytes_are_conserved_and_no_link_is_faster_than_it_is(
    data: st.DataObject, sharing: str
) -> None:
    places, islands = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 3))
    place = st.integers(0, places - 1)
    starts: list[Start] = sorted(
        data.draw(
            st.lists(
                st.tuples(st.integers(0, 10**9), place, place, st.integers(0, 10**7)), max_size=30
            )
        )
    )
    config = star(sharing, places, 10**9, 1000, islands)
    landed, sent, busy = config.probe(starts)
    again, _, _ = config.probe(starts)
    assert landed.tolist() == again.tolist()
    moved = sum(count for _, a, b, count in starts if a != b)
    assert sent.sum() == 2 * moved
    for (at, a, b, count), end in zip(starts, landed.tolist(), strict=True):
        near = a % islands == b % islands
        speed, latency = (10**9, 1000) if near else (10**9 // 4, 3000)
        assert end >= at + (0 if a == b else latency + ceil_ps(count, speed))
    speeds = [10**9, 10**9, 10**9 // 4, 10**9 // 4] * places
    for link, speed in enumerate(speeds):
        assert busy[link] >= ceil_ps(int(sent[link]), speed) - 1


def test_a_cluster_file_becomes_places_and_links() -> None:
    memory = {"mem_size": 80, "mem_bw": 3350, "mem_latency": 0}
    instance = {"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100", "npu_mem": memory}
    nodes = [
        {
            "cpu_mem": {"mem_size": 512, "mem_bw": 256},
            "instances": [instance | {"num_npus": 2}, instance],
        },
        {"instances": [instance]},
    ]
    document = {"link_bw": [100, 50, 10], "link_latency": [1, 2, 3], "nodes": nodes}
    network = cluster_network(resolve(parse_cluster(json.dumps(document)), EngineOverrides()))
    (first, second), (third,), (fourth,) = network.devices
    host, none = network.hosts
    assert (
        len({first, second, third, fourth, host}) == network.config.num_places == 5 and none is None
    )
    gb = 10**9
    landed, _, _ = network.config.probe(
        [
            (0, first, third, 50 * gb),
            (0, second, fourth, 10 * gb),
            (2 * PS_PER_S, host, first, 50 * gb),
        ]
    )
    assert landed.tolist() == [
        PS_PER_S + 2000,
        PS_PER_S + 3000,
        3 * PS_PER_S,
    ]  # the host is faster than the port
