"""Incast in serving runs: by hand at a switch's port, folded as expanded, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim._native import engine
from llmsim.api.result import Result
from llmsim.config.cluster_file.cluster import Incast
from llmsim.config.topology.file import load_topology
from llmsim.config.topology.placement import PlacedTopology
from llmsim.lowering.network.topology import Routes
from llmsim.lowering.network.topology_all_to_all import routed_ports
from llmsim.model.operator import Rows

ROOT = Path(__file__).resolve().parents[3]
CLUSTERS = ROOT / "cluster_config"
MADE = {"buffer_bytes": 6000, "burst_bytes": 4000, "efficiency_percent": 25}
"""Two senders bring 8,000 bytes: 6,000 at the link's speed, 2,000 at a quarter of it."""
LEFT_OF_TWO = 8000 / (6000 + 2000 * 4)
TRACE = "synthetic:n=4,rate=30,input=fixed:300,output=fixed:4,seed=4"


def tp4(**keys: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CLUSTERS / "h100_llama31_70b_tp4.json").read_text())
    return {**document, "topology": "dgx_h100", **keys}


def run(cluster: dict[str, Any], **options: Any) -> Result:
    given = {"cost_source": "roofline", "collective_costs": "links", **options}
    return llmsim.run(cluster, TRACE, **given)


def test_senders_at_one_port_by_hand() -> None:
    """An all-to-all of three: two messages share each port."""
    network = engine.TopologyBuilder(3)
    hub = network.add_switch()
    for device in range(3):
        network.add_link(device, hub, 50 * 10**9, 500_000)
    made = engine.Incast(6000, 4000, 250_000)
    direct = engine.AlgorithmChoice.parse("direct")
    kinds = engine.NetworkKind.FAIR_SHARE, [[0, 1, 2]], engine.CollectiveKind.ALL_TO_ALL, direct
    topology = network.build()
    sizes = np.array([3 * 10**9])
    (alone,) = engine.ConcurrentDurations(topology, *kinds).durations_ps(sizes)
    (slowed,) = engine.ConcurrentDurations(topology, *kinds, made).durations_ps(sizes)
    latency_ps, serial_ps = 10**6, 2 * 10**9 * 20
    assert alone == latency_ps + serial_ps
    assert slowed - latency_ps == pytest.approx(serial_ps / LEFT_OF_TWO, rel=1e-6)


def test_rings_lose_nothing_and_direct_algorithms_do() -> None:
    ring, direct = {}, {"all_reduce_implementation": "direct"}
    for options, slower in ((ring, False), (direct, True)):
        plain, crowded = run(tp4(), **options), run(tp4(incast=MADE), **options)
        assert (crowded.summary["mean_tpot_ms"] > plain.summary["mean_tpot_ms"]) == slower
        if not slower:
            assert crowded.requests.equals(plain.requests)
            assert any("incast 6000:4000:25" in note for note in crowded.notes)


def test_folded_as_expanded() -> None:
    options = {"all_reduce_implementation": "direct"}
    folded, exact = (run(tp4(incast=MADE), exact=exact, **options) for exact in (False, True))
    assert folded.requests.equals(exact.requests)


def test_transfers_into_one_device() -> None:
    """Two prefill instances hand prompts of one time over to one device."""
    document = json.loads((CLUSTERS / "h100_llama31_8b_pd_2p1d.json").read_text())
    document |= {"topology": "dgx_h100", "kv_transfer": "whole"}
    document["engine"] = {"kv_read_ns": 0, "kv_descriptor_ns": 0}  # else posting hides the rest
    both = [llmsim.Request(0.0, 2000, 3), llmsim.Request(0.0, 2000, 3)]
    times_ps = []
    for incast in (None, MADE):
        cluster = document if incast is None else document | {"incast": incast}
        result = llmsim.run(cluster, both, cost_source="roofline")
        columns = result.requests
        times_ps.append((columns["kv_landed_ps"] - columns["kv_reserved_ps"]).to_numpy())
    assert len(set(times_ps[0])) == 1
    serial_ps = result.summary["kv_transfer"]["bytes"] / 450e9 * 1e12
    lost_ps = serial_ps * (1 / LEFT_OF_TWO - 1)
    # What bursts leave of a link is a whole number of 2^-20 parts of it.
    assert times_ps[1] - times_ps[0] == pytest.approx(lost_ps, rel=2e-6)


def test_exchanges_of_rows() -> None:
    """Rows of three senders at a port: their bursts, or all of their bytes where these are less."""
    spec = load_topology("dgx_h100")
    rows = Rows("expert", 1000)
    seconds = []
    for incast in (None, Incast(**MADE)):
        placed = PlacedTopology(spec, ((0, 1, 2, 3),), incast)
        ports = routed_ports(Routes(placed, spec.build(engine)), [(0, 1, 2, 3)], 1)
        received = np.array([[4.0] * 4, [8.0] * 4, [4000.0] * 4])
        seconds.append(ports.loads(rows, received, received.sum(axis=-1, keepdims=True)).rank)
    plain, crowded = seconds
    # Each rank gets three quarters of its rows from others: 3,000, 6,000 and 3,000,000 bytes.
    slower = crowded / plain
    assert slower[:2].tolist() == [1.0, 1.0]
    assert slower[2] == pytest.approx((6000 + 6000 * 4) / 12_000)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"topology": None}, "the cluster names no topology, whose switches have the buffers"),
        ({"incast": MADE | {"burst_bytes": 7000}}, "is 7000, more than buffer_bytes 6000"),
        ({"incast": MADE | {"efficiency_percent": 0}}, "efficiency_percent"),
        ({"incast": MADE | {"buffer": 1}}, "buffer"),
        ({"incast": {"buffer_bytes": 6000}}, "burst_bytes"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(llmsim.InputError) as error:
        run({name: value for name, value in tp4(incast=MADE, **keys).items() if value is not None}
            if "incast" not in keys else tp4(**keys))  # fmt: skip
    assert words in str(error.value)


def test_networks_without_rates_are_refused() -> None:
    with pytest.raises(llmsim.InputError, match="incast needs analytical or fair-share"):
        run(tp4(incast=MADE), network_backend="congestion-aware")
