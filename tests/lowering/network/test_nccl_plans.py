"""Collectives as NCCL plans them: inside a server by its measured protocols, over servers by rings,
trees and reducing switches on the network cards of all ranks.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs.builders import needs_database
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmsim._native import engine
from llmsim.api.busbw import BusRequest, bus_bandwidths
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.topology.file import load_topology
from llmsim.costs.nccl.constants import machine_of, measured_machine, measured_machines
from llmsim.costs.nccl.plans import Place, choose, choose_vllm, plans
from llmsim.costs.nccl.protocols import PHASES
from llmsim.lowering import LoweredDeployment, LoweringOptions, lower
from llmsim.lowering.network.nccl import ring_bytes_per_s, servers_of
from llmsim.model.hardware import data_sheet
from tests.lowering.clusters import (
    check_folded_is_expanded,
    cluster,
    lowered,
    model,
    run,
)

DOCS = Path(__file__).resolve().parents[3] / "docs" / "explanation"
GIB = np.array([float(1 << 30)])
H100 = measured_machine("h100_sxm")


def bus_gb_per_s(kind: str, place: Place, plan: str | None = None) -> float:
    """Bus bandwidth of 1 GiB among H100."""
    us = choose(H100, kind, GIB, place).us if plan is None else plans(H100, kind, GIB, place)[plan]
    factor = PHASES[kind] * (place.ranks - 1) / place.ranks
    return float(GIB[0] / us[0] / 1e3 * factor)


def test_one_gibibyte_takes_what_is_published_of_h100_on_eight_rails() -> None:
    """NVIDIA/nccl-tests 212 and 290, NVIDIA/nccl 1221 and 1649."""
    rails = {n: Place(n, n // 8, 8, 50.0, 2.0) for n in (16, 64, 256)}
    server = Place(8, 1, 8)
    assert 440 < bus_gb_per_s("all_reduce", server) < 480
    assert 350 < bus_gb_per_s("all_reduce", server, "ring Simple") < 370
    for ranks in (64, 256):
        assert 330 < bus_gb_per_s("all_reduce", rails[ranks]) < 400
    assert 400 < bus_gb_per_s("all_reduce", rails[16]) < 480  # above the cards' sum of 376
    assert 45 < bus_gb_per_s("all_to_all", rails[256]) < 50  # N / (N - 1) of a card, nccl-tests 130


def test_vllm_takes_its_own_all_reduces_among_some_numbers_of_ranks() -> None:
    """Of 2, 4, 6 and 8 ranks; others take NCCL's, which are never faster than the best of both."""
    machine, sizes = measured_machine("h100_sxm"), np.array([8192.0, 1e6])
    for ranks in range(2, 9):
        chosen = choose_vllm(machine, sizes, ranks, eager=False)
        own = [name.startswith("vLLM ") for name in chosen.used]
        assert all(own) if ranks in (2, 4, 6, 8) else not any(own)
        assert np.isfinite(chosen.us).all()


def test_a_reducing_network_sends_each_byte_once() -> None:
    plain, sharp = (Place(64, 8, 8, 50.0, 2.0, reducing) for reducing in (False, True))
    assert "CollNet" not in plans(H100, "all_reduce", GIB, plain)
    assert bus_gb_per_s("all_reduce", sharp) > 1.2 * bus_gb_per_s("all_reduce", plain)


@given(
    kind=st.sampled_from(sorted(PHASES)), nodes=st.integers(1, 64), each=st.integers(1, 8),
    size=st.integers(1, 1 << 32), system=st.sampled_from(measured_machines()),
    card=st.sampled_from([12.5, 50.0, 100.0]),
)  # fmt: skip
@settings(derandomize=True, max_examples=150)
def test_no_collective_beats_its_links_and_faster_cards_never_slow_one(
    kind: str, nodes: int, each: int, size: int, system: str, card: float
) -> None:
    if nodes * each < 2:
        return
    machine, vector = measured_machine(system), np.array([float(size), 2.0 * size])
    place, faster = (Place(nodes * each, nodes, each, rate, 1.0) for rate in (card, 2 * card))
    for name, us in plans(machine, kind, vector, place).items():
        assert (us > 0).all() and us[1] >= us[0], name
    us = choose(machine, kind, vector, place).us
    assert (choose(machine, kind, vector, faster).us <= us).all()
    if nodes > 1:
        # each server receives what its ranks lack at least; it may send as much at the same time
        lacks = size * (nodes - 1) / nodes * (1 if kind != "all_to_all" else each)
        assert us[0] >= lacks / (each * card * 1e3)


def test_a_card_that_nobody_measured_has_the_constants_of_its_class_scaled() -> None:
    sheet = data_sheet("H100")
    assert machine_of(sheet) is H100
    own = replace(sheet, silicon_system=None, intra_node_link_bytes_per_s=225 * 10**9)
    halved, simple = machine_of(replace(own, similar_to="H100")), "Simple"
    assert halved.name == "h100_sxm scaled to 225 GB/s"
    rates = [one.protocol("all_gather", simple).gb_per_s[0][1] for one in (halved, H100)]  # type: ignore[union-attr]
    assert rates[0] * 2 == rates[1]
    assert machine_of(own).name.startswith("a100_sxm scaled")
    assert machine_of(data_sheet("H100-PCIe")).name == "rtx_pro_6000_server scaled to 64 GB/s"
    amd = replace(data_sheet("MI300X"), collective_constants=None)
    assert machine_of(amd).name.startswith("h100_sxm scaled")
    assert machine_of(amd).protocol("all_reduce", "NVLS") is None


def test_devices_that_are_joined_pairwise_have_the_links_of_their_pairs() -> None:
    """A vector among two crosses one of seven links; newer cards have the same links, faster."""
    amd = machine_of(data_sheet("MI300X"))
    assert amd is measured_machine("mi300x")
    large = np.array([2.0**30])

    def bus_of(name: str, ranks: int) -> float:
        us = choose_vllm(machine_of(data_sheet(name)), large, ranks, eager=False).us
        return float(2 * (ranks - 1) / ranks * large[0] / us[0] / 1e3)

    assert bus_of("MI300X", 2) == pytest.approx(48.3, rel=0.03)
    assert bus_of("MI300X", 4) == pytest.approx(109.2, rel=0.03)  # 16 MiB
    assert bus_of("MI300X", 8) == pytest.approx(313.7, rel=0.03)
    for ranks in range(2, 9):
        assert bus_of("MI300X", ranks) < 64 * (ranks - 1)
        assert bus_of("MI325X", ranks) == bus_of("MI300X", ranks)
        assert bus_of("MI355X", ranks) == pytest.approx(1.2 * bus_of("MI300X", ranks), rel=0.02)


def test_rings_that_leave_a_server_of_pairs_cross_one_link_less_there() -> None:
    """Two of AMD's servers have more bandwidth than one (evaluation/amd_collectives.py)."""
    from evaluation.amd_collectives import BETWEEN, between_servers

    assert between_servers() in (DOCS / "collectives.md").read_text()
    machine = measured_machine("mi300x")
    vector = np.array([float(1 << 33)])
    inside = float(choose(machine, "all_reduce", vector, Place(8, 1, 8)).us[0])
    across = float(choose(machine, "all_reduce", vector, Place(16, 2, 8, 50.0, 2.0)).us[0])
    assert 14 / 8 / inside < 30 / 16 / across and len(BETWEEN) == 8


@needs_database
def test_held_out_sizes_are_within_the_published_errors() -> None:
    """The fit has not seen these sizes; the table is in docs/explanation/collectives.md."""
    from evaluation.nccl_constants import CARDS, errors_table, held_out_errors

    page = (DOCS / "collectives.md").read_text()
    assert errors_table() in page, "python evaluation/nccl_constants.py prints the table"
    by_kind: dict[str, list[Any]] = {}
    for system in CARDS:
        for kind, errors in held_out_errors(system).items():
            by_kind.setdefault(kind, []).append(errors)
            assert np.median(errors) <= 0.15, (system, kind)
    assert set(by_kind) > set(PHASES)
    for kind, parts in by_kind.items():
        errors = np.concatenate(parts)
        assert np.median(errors) <= 0.10 and np.quantile(errors, 0.9) <= 0.25, kind


def placed(spec_name: str, *groups: list[int]) -> Place:
    spec = load_topology(spec_name)
    servers = servers_of(spec, spec.build(engine))
    assert servers is not None
    return servers.place(groups[0], groups)


def test_rails_that_groups_share_carry_less_of_each() -> None:
    """Two groups whose ranks have the same cards: by hand, half of 50 GB/s for each."""
    whole = placed("h100_rails_32x8", list(range(16)))
    assert (whole.nodes, whole.per_node, whole.card_gb_per_s, whole.hop_us) == (2, 8, 50.0, 2.0)
    one, other = [0, 8], [0, 8]
    assert placed("h100_rails_32x8", one).card_gb_per_s == 50.0
    assert placed("h100_rails_32x8", one, other).card_gb_per_s == 25.0
    scattered = placed("h100_rails_32x8", [0, 8, 1, 9, 2, 10, 3, 11])  # order does not matter
    assert (scattered.nodes, scattered.per_node, scattered.card_gb_per_s) == (2, 4, 50.0)


def test_a_ring_in_a_server_takes_the_order_of_the_topology() -> None:
    """Two sockets: ranks 0, 4, 1, 5 cross them with every message, the ring of NCCL only twice."""
    native = load_topology("pcie_gen4_8").build(engine)
    assert ring_bytes_per_s(native, [0, 4, 1, 5]) == ring_bytes_per_s(native, [0, 1, 4, 5])
    assert ring_bytes_per_s(native, [0, 4, 1, 5]) == 31.5e9


def test_ranks_over_servers_take_the_card_of_the_sheet_and_never_nvlink(tmp_path: Path) -> None:
    path = model(tmp_path, heads=16, kv_heads=16)

    def reduce_ps(**changes: Any) -> Any:
        found = lowered(cluster(path, tp_size=16, num_npus=16, **changes)).groups[0]
        return next(one.cost for one in found.placed if one.cost.name == "all_reduce")

    sheet, stated, slower = (reduce_ps(links=links) for links in (450, [450, 50], [450, 5]))
    assert "NCCL model" in sheet.source and "2 servers" in sheet.source
    assert (sheet.ps == stated.ps).all() and slower.ps[-1] > sheet.ps[-1]
    size = (len(sheet.ps) - 1) * 16 * 64 * 2
    at_nvlink = size / 450e9 * 1e12
    assert sheet.ps[-1] > 2 * at_nvlink
    named = reduce_ps(links=450, all_reduce_implementation="ring")
    assert named.source == "engine, ring all_reduce on links of 450 GB/s"


@pytest.mark.parametrize("tp", [8, 16])
def test_planned_collectives_are_the_same_folded_and_expanded(tmp_path: Path, tp: int) -> None:
    path = model(tmp_path, heads=16, kv_heads=16)
    document = cluster(path, tp_size=tp, num_npus=tp, links=450)
    folded, expanded = (run(document, exact=exact, collectives="nccl") for exact in (False, True))
    assert np.array_equal(folded.requests.finish_ps, expanded.requests.finish_ps)
    document = cluster(path, tp_size=tp, num_npus=tp, topology_devices=list(range(tp)))
    on_routes = document | {"topology": "h100_rails_32x8"}
    folded, expanded = (run(on_routes, exact=exact) for exact in (False, True))
    assert np.array_equal(folded.requests.finish_ps, expanded.requests.finish_ps)


@pytest.mark.parametrize(
    "layout",
    [
        {"tp_size": 8, "num_npus": 16, "pp_size": 2},
        {"tp_size": 2, "num_npus": 2, "members": 2, "nodes": 2, "dp_group": "a", "ep_size": 8},
        {"tp_size": 4, "num_npus": 4, "members": 4, "dp_group": "a", "ep_size": 16},
    ],
    ids=["stages on two servers", "experts on two nodes", "experts on two servers of a node"],
)
def test_layouts_over_servers_are_the_same_folded_and_expanded(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    """What stages hand over takes the network card, too."""
    experts = 16 if "ep_size" in layout else 0
    document = cluster(model(tmp_path, experts=experts), links=450, **layout)
    check_folded_is_expanded(document)
    group = lowered(document).groups[0]
    sends = {one.cost.source for one in group.placed if "send" in one.cost.name}
    assert sends <= {"engine, message on links of 50 GB/s"} and bool(sends) == (group.layout.pp > 1)


@needs_database
def test_a_topology_keeps_measured_times_where_they_fit_its_links(tmp_path: Path) -> None:
    path = model(tmp_path, heads=16, kv_heads=16)

    def with_topology(topology: Any, **layout: Any) -> LoweredDeployment:
        document = cluster(path, **layout) | {"link_bw": 450, "link_latency": 1000}
        if topology is not None:
            name = tmp_path / "topology.json"
            name.write_text(json.dumps(topology))
            document["topology"] = str(name)
        deployment = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
        return lower(deployment, LoweringOptions())

    def reduction(topology: Any, **layout: Any) -> Any:
        group = with_topology(topology, **layout).groups[0]
        return next(one.cost for one in group.placed if one.cost.name == "all_reduce")

    switch = {"kind": "switch", "size": 8, "bandwidth_gb_per_s": 450, "latency_ns": 500}
    eight = {"tp_size": 8, "num_npus": 8}
    none = reduction(None, **eight)
    same = reduction({"dimensions": [switch]}, **eight)
    slower = reduction({"dimensions": [switch | {"bandwidth_gb_per_s": 100}]}, **eight)
    assert same.source == none.source and (same.ps == none.ps).all()
    assert "aiconfigurator" in none.source
    assert slower.source.startswith("engine, ring")
    ring = reduction({"dimensions": [switch | {"kind": "ring"}]}, **eight)
    assert ring.source.startswith("engine, ring")


def test_the_table_of_nccl_tests_has_the_plans_and_the_ring_of_the_engine() -> None:
    ring = bus_bandwidths(BusRequest("h100_rails_32x8", devices="64", plan="ring"))
    best = bus_bandwidths(BusRequest("h100_rails_32x8", devices="64"))
    assert (best.servers, best.devices, best.measured) == (8, 64, None)
    assert [row.size_bytes for row in best.rows] == [1 << i for i in range(10, 31)]
    for one, other in zip(best.rows, ring.rows, strict=True):
        assert one.time_us <= other.time_us and other.plan.startswith("ring")
        assert one.busbw_gb_per_s == pytest.approx(one.algbw_gb_per_s * 2 * 63 / 64)
    assert 330 < best.rows[-1].busbw_gb_per_s < 400
    unknown = bus_bandwidths(BusRequest("pcie_gen4_8", first_bytes="1G"))
    assert unknown.rows[0].plan == "ring of the engine"
    assert 31 < unknown.rows[0].busbw_gb_per_s < 31.5


@needs_database
def test_measured_times_stand_beside_where_they_fit() -> None:
    table = bus_bandwidths(BusRequest("dgx_h100", last_bytes="512M"))
    errors = [abs(row.time_us / row.measured_us - 1) for row in table.rows if row.measured_us]
    assert len(errors) == 20 and np.median(errors) < 0.05
    slower = bus_bandwidths(BusRequest("dgx_h100", hardware="A100"))
    assert slower.measured is None
