"""Exchanges of rows and broadcasts on the routes of a topology: ports where ports are all there is,
links by hand.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.lowering.network.all_to_all import Busiest, Ports
from llmsim.lowering.network.topology import TopologyView
from llmsim.lowering.network.topology_all_to_all import RoutedPorts
from llmsim.model import AllToAll, Collective, Operator
from llmsim.model.operator import Rows
from llmsim.model.parallel.expert_parallel import BACKENDS

from ..clusters import cluster, lowered, model, run

GB = 10**9
ROWS = {
    "straight": Rows("expert", 1000),
    "back": Rows("expert", 1000, back=True),
    "staged": Rows("rank", 1000),
}


def link(a: str, b: str, rate: float, latency_ns: int) -> dict[str, Any]:
    return {"a": a, "b": b, "bandwidth_gb_per_s": rate, "latency_ns": latency_ns}


def one_switch(devices: int) -> dict[str, Any]:
    """The nominal links of `clusters.cluster` as ports: 50 GB/s, and 2 us on the way."""
    return {"devices": devices, "switches": [{"name": "s"}],
            "links": [link(str(i), "s", 50, 1000) for i in range(devices)]}  # fmt: skip


def two_leaves() -> dict[str, Any]:
    """Devices 0 and 1, and 2 and 3, with one cable of 10 GB/s between."""
    leaves = [link(str(i), f"leaf{i // 2}", 100, 500) for i in range(4)]
    return {"devices": 4, "switches": [{"name": "leaf0"}, {"name": "leaf1"}],
            "links": [*leaves, link("leaf0", "leaf1", 10, 300)]}  # fmt: skip


def rails() -> dict[str, Any]:
    """Two nodes of two devices: a switch in each of 400 GB/s, and a switch for each number of 50
    GB/s.
    """
    inside = [link(str(i), f"node{i // 2}", 400, 500) for i in range(4)]
    across = [link(str(i), f"rail{i % 2}", 50, 2000) for i in range(4)]
    names = ("node0", "node1", "rail0", "rail1")
    return {
        "devices": 4,
        "devices_relay": True,
        "switches": [{"name": name} for name in names],
        "links": [*inside, *across],
    }


def on(folder: Path, network: dict[str, Any], backend: str, **keys: Any) -> dict[str, Any]:
    members = keys.pop("members", 2)
    document = cluster(
        model(folder, experts=8), members=members, dp_group="a", all2all_backend=backend, **keys
    )
    (folder / "network.json").write_text(json.dumps(network))
    return document | {"topology": str(folder / "network.json")}


def ports_on(folder: Path, network: dict[str, Any]) -> RoutedPorts:
    """Four ranks on four devices."""
    group = lowered(on(folder, network, "deepep_low_latency", members=4)).groups[0]
    assert isinstance(group.links, TopologyView)
    found = group.links.exchange(exchanging(group.operators), 0)
    assert isinstance(found, RoutedPorts)
    return found


def exchanging(operators: Any) -> Operator:
    return next(op for op in operators if isinstance(op, AllToAll))


@pytest.mark.parametrize("experts", ["BALANCED", "ZIPF:s=1.2"])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_switch_is_ports(tmp_path: Path, backend: str, tp: int, experts: str) -> None:
    """Every ring message crosses two links of 1 us there, every port is a link: the same to the
    picosecond.
    """
    routed = on(tmp_path, one_switch(2 * tp), backend, tp_size=tp)
    nominal = {key: value for key, value in routed.items() if key != "topology"}
    ours, theirs, exact = (
        run(routed, experts=experts),
        run(nominal, experts=experts),
        run(routed, exact=True, experts=experts),
    )
    exchanges = 2 * sum(
        op.repeat for op in lowered(routed).groups[0].operators if op.name == "dispatch"
    )
    for column in ours.steps:
        difference = np.abs(ours.steps[column] - theirs.steps[column])
        # Shares are doubles, summed by link there and by port here: a picosecond in each exchange
        # that rounds up.
        assert difference.max(initial=0) <= (
            exchanges * len(difference) if column.endswith("_ps") else 0
        ), column
        assert np.array_equal(ours.steps[column], exact.steps[column]), column
    assert set(ours.invariants.values()) == {"ok"}


@pytest.mark.parametrize("way", ["straight", "back"])
def test_the_cable_between_two_leaves_carries_every_second_pair(tmp_path: Path, way: str) -> None:
    """Two senders, two receivers, a fourth of a receiver's rows each: as much as one receiver gets,
    at 10 GB/s.
    """
    ports, each = ports_on(tmp_path, two_leaves()), np.array([0.0, 8.0, 100.0])
    rows = ROWS[way]
    took = ports.ps(rows, each * 2, ports.even(rows, Busiest(each, each * 4)))
    assert took[1:].tolist() == [
        round(rows_ * 1000 * 100) + 1_300_000 for rows_ in each[1:]
    ]  # 100 ps per byte
    sampled = ports.loads(rows, np.array([0.0, 30.0, 10.0, 2.0]), np.array([42.0]))
    # Leaf 0's devices get 30 rows, half of them from leaf 1; leaf 1's get 12, of which 6 cross.
    assert ports.ps(rows, np.array(42.0), sampled) == 15 * 1000 * 100 + 1_300_000


def test_staged_rows_on_rails_are_ports_of_both_kinds(tmp_path: Path) -> None:
    four = ports_on(tmp_path, rails())
    ports = RoutedPorts(4, 2, (400 * GB, 1_000_000), (50 * GB, 4_000_000), four.routes, four.runs)
    nominal = Ports(4, 2, (400 * GB, 1_000_000), (50 * GB, 4_000_000))
    rng = np.random.default_rng(1)
    for rows in (ROWS["staged"], Rows("rank", 1000, back=True)):
        to_node = rng.integers(500, 1000, (20, 2)).astype(np.float64)
        to_rank = np.repeat(to_node, 2, axis=1) * rng.uniform(0.5, 1, (20, 4))
        tokens = np.full(20, 1000.0)
        found = ports.ps(rows, tokens, ports.loads(rows, to_rank, to_node))
        expected = nominal.ps(rows, tokens, nominal.loads(rows, to_rank, to_node))
        assert np.abs(found - expected).max() <= 1


def test_broadcasts_in_turn_wait_for_the_thin_cable(tmp_path: Path) -> None:
    """A chain of four ranks crosses it once each way at most: 100 ps per byte, and its hops'
    latencies.
    """
    group = lowered(on(tmp_path, two_leaves(), "naive", members=4)).groups[0]
    op = next(
        op for op in group.operators if isinstance(op, Collective) and op.collective == "broadcast"
    )
    took = group.links.price(op, np.array([4000], np.int64), 0).ps
    near, far = 1_000_000, 1_300_000
    chains = [near + far + near, far + near + far, near + far + near, far + near + far]
    assert took.tolist() == [4 * 1000 * 100 + sum(chains)]
