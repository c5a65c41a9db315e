"""Collectives and hand-over on the routes of a topology file that a cluster names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.errors import InputError
from llmsim.core import Results
from llmsim.lowering import LoweringOptions, lower
from llmsim.routing import parse_router
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import simulate
from llmsim.workload import load_dataset
from tests.lowering import clusters

FEW = "synthetic:n=12,rate=200,input=lognormal:120,output=lognormal:8,seed=5"
SWITCHED = {
    "devices": 4,
    "switches": [{"name": "switch"}],
    "links": [
        {"a": str(i), "b": "switch", "bandwidth_gb_per_s": 50, "latency_ns": 1000} for i in range(4)
    ],
}


def written(folder: Path, document: dict[str, Any], name: str = "topology.json") -> str:
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def mesh(*sizes: int) -> dict[str, Any]:
    """Full meshes of the links that `clusters.cluster` has."""
    entry = {"kind": "fully_connected", "bandwidth_gb_per_s": 50, "latency_ns": 2000}
    return {"name": "mesh", "dimensions": [{**entry, "size": size} for size in sizes]}


def lowered(document: dict[str, Any], **options: Any) -> Any:
    deployment = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    return lower(deployment, LoweringOptions(cost_source="roofline", **options))


def run(document: dict[str, Any], trace: str = FEW, **options: Any) -> Results:
    deployment = lowered(document, **options)
    workload = load_dataset(
        trace, known_models=deployment.models, granularity=deployment.granularity
    )
    return simulate(
        deployment, workload, SimulationOptions(router=parse_router("RR"), record_steps=True)
    )


def same(a: Results, b: Results) -> bool:
    steps = all(np.array_equal(a.steps[column], b.steps[column]) for column in a.steps)
    return steps and np.array_equal(a.requests.finish_ps, b.requests.finish_ps)


LAYOUTS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"tp_size": 4}, (4,)),
    ({"tp_size": 2, "pp_size": 2}, (2, 2)),
    ({"tp_size": 2, "members": 2, "experts": 8}, (2, 2)),
]


def in_layout(folder: Path, layout: dict[str, Any]) -> dict[str, Any]:
    rest = dict(layout)
    experts, members = rest.pop("experts", 0), rest.pop("members", 1)
    name = {"dp_group": "all"} if members > 1 else {}
    return clusters.cluster(
        clusters.model(folder, experts=experts), members=members, **name, **rest
    )


@pytest.mark.parametrize(("layout", "sizes"), LAYOUTS)
@pytest.mark.parametrize("network", ["analytical", "congestion-aware", "congestion-unaware"])
def test_nominal_links_as_a_topology_give_the_same_to_the_picosecond(
    tmp_path: Path, layout: dict[str, Any], sizes: tuple[int, ...], network: str
) -> None:
    nominal = in_layout(tmp_path, layout)
    named = {**nominal, "topology": written(tmp_path, mesh(*sizes))}
    assert same(run(nominal), run(named, network=network))


@pytest.mark.parametrize(("layout", "_"), LAYOUTS)
@pytest.mark.parametrize("network", ["fair-share", "congestion-aware", "congestion-unaware"])
@pytest.mark.parametrize("place", ["pcie_gen4_8", "mixed_h100_a100"])
def test_folded_equals_expanded_where_routes_are_uneven_and_shared(
    tmp_path: Path, layout: dict[str, Any], _: tuple[int, ...], network: str, place: str
) -> None:
    document = {**in_layout(tmp_path, layout), "topology": place}
    # Rank 1 is far from rank 0, and routes of several ranks cross the same links.
    devices = [[0, 4, 1, 5], [2, 6]] if place == "pcie_gen4_8" else [[7, 8, 0, 9], [1, 10]]
    instances = document["nodes"][0]["instances"]
    for index in range(len(instances)):
        chosen = devices[index] if len(instances) == 1 else [devices[0][:2], devices[1]][index]
        instances[index] = {**instances[index], "topology_devices": chosen}
    assert same(run(document, network=network), run(document, network=network, exact=True))


def test_a_thin_link_is_slower_as_computed_by_hand(tmp_path: Path) -> None:
    """Four ranks on a switch: a message takes two links of 1 us and one serialisation, a ring
    all-reduce six.
    """
    document = clusters.cluster(clusters.model(tmp_path), tp_size=4)
    thin = json.loads(json.dumps(SWITCHED))
    thin["links"][2]["bandwidth_gb_per_s"] = 5
    tables = []
    for network in (SWITCHED, thin):
        group = lowered({**document, "topology": written(tmp_path, network)}).groups[0]
        costs = [cost for cost in group.program_costs if cost.name == "all_reduce"]
        tables.append((costs[0].ps, group))
    (plain, group), (slow, _) = tables
    size = next(op.collective_bytes_per_token for op in group.operators if op.name == "all_reduce")
    tokens = np.arange(1, len(plain))
    chunk = -(-tokens * size // 4)
    assert np.array_equal(plain[1:], 6 * (2_000_000 + chunk * 20))  # 20 ps per byte at 50 GB/s
    # Into and out of rank 2 a byte takes 200 ps. Small chunks: the longest way of a chunk is six
    # steps, four of them over thin links. Large ones: six messages keep the link into rank 2 busy
    # without a break, and the last that rank 2 sends leaves with the sixth, one latency later, and
    # arrives after one more.
    few = 6 * 2_000_000 + chunk * (4 * 200 + 2 * 20)
    many = 2 * 2_000_000 + chunk * 6 * 200
    assert few[0] > many[0] and few[-1] < many[-1]
    assert np.array_equal(slow[1:], np.maximum(few, many))


def test_a_thin_link_slows_the_run(tmp_path: Path) -> None:
    document = clusters.cluster(clusters.model(tmp_path), tp_size=4)
    thin = json.loads(json.dumps(SWITCHED))
    thin["links"][2]["bandwidth_gb_per_s"] = 5
    ends = [
        run({**document, "topology": written(tmp_path, network)}).requests.finish_ps.max()
        for network in (SWITCHED, thin)
    ]
    assert ends[1] > ends[0]


def test_members_that_share_links_run_in_the_engine_and_say_so(tmp_path: Path) -> None:
    document = {**in_layout(tmp_path, LAYOUTS[2][0]), "topology": "pcie_gen4_8"}
    instances = document["nodes"][0]["instances"]
    document["nodes"][0]["instances"] = [
        {**entry, "topology_devices": devices}
        for entry, devices in zip(instances, ([0, 4], [1, 5]), strict=True)
    ]
    shared = lowered(document)
    assert shared.lockstep_groups[0].expanded is not None
    assert any("since its members share links" in note for note in shared.notes)
    assert lowered(document, network="congestion-unaware").lockstep_groups[0].expanded is None


def test_groups_of_equal_routes_share_their_tables(tmp_path: Path) -> None:
    document = clusters.cluster(clusters.model(tmp_path), members=4, tp_size=2) | {
        "topology": "dgx_h100"
    }
    groups = lowered(document).groups
    assert len({id(group.program) for group in groups}) == 1


def test_a_node_takes_the_devices_of_its_own(tmp_path: Path) -> None:
    document = clusters.cluster(clusters.model(tmp_path), nodes=2, tp_size=2) | {
        "topology": "h100_rails_32x8"
    }
    deployment = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    assert deployment.topology is not None
    assert deployment.topology.devices == ((0, 1), (8, 9))
    first, second = (node["instances"][0] for node in document["nodes"])
    document["nodes"] = [
        {"instances": [first]},
        {"instances": [{**second, "topology_group": "rail1"}]},
    ]
    deployment = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    assert deployment.topology is not None and deployment.topology.devices == ((0, 2), (1, 9))


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"topology": "dgx_h10"},
        {},
        r':1: topology: there is no topology "dgx_h10" \(did you mean "dgx_h100"',
    ),
    ({"topology": "absent.json"}, {}, r"topology: absent.json does not exist"),
    (
        {},
        {"topology_devices": [0, 1]},
        r"\[0\].topology_devices is given, but the cluster names no topology",
    ),
    (
        {"topology": "dgx_h100"},
        {"topology_devices": [0, 8]},
        r"names device 8; DGX H100 has the devices 0 to 7",
    ),
    (
        {"topology": "dgx_h100"},
        {"topology_devices": [0, 0]},
        r"topology_devices names device 0 twice",
    ),
    (
        {"topology": "dgx_h100"},
        {"topology_devices": [0]},
        r"topology_devices has 1 entries, but there are 2 devices",
    ),
    (
        {"topology": "dgx_h100"},
        {"topology_group": "node1"},
        r'is "node1", no group of DGX H100 \(did you mean "node0"',
    ),
    (
        {"topology": "dgx_h100"},
        {"topology_group": "a", "topology_devices": [0, 1]},
        r"keep one of them",
    ),
]


@pytest.mark.parametrize(("head", "place", "sentence"), WRONG)
def test_what_does_not_fit_is_refused_with_its_place(
    tmp_path: Path, head: dict[str, Any], place: dict[str, Any], sentence: str
) -> None:
    document = clusters.cluster(clusters.model(tmp_path), tp_size=2) | head
    document["nodes"][0]["instances"][0].update(place)
    with pytest.raises(InputError, match=sentence):
        resolve(parse_cluster(json.dumps(document)), EngineOverrides())


def test_too_small_and_twice_claimed(tmp_path: Path) -> None:
    document = clusters.cluster(clusters.model(tmp_path), members=3, tp_size=4) | {
        "topology": "dgx_h100"
    }
    with pytest.raises(
        InputError,
        match=r"node0 has 8 devices, of which 0 are left for the 4 of nodes\[0\].instances",
    ):
        resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    document = clusters.cluster(clusters.model(tmp_path), members=2, tp_size=2) | {
        "topology": "dgx_h100"
    }
    document["nodes"][0]["instances"] = [
        {**entry, "topology_devices": [0, index]}
        for index, entry in enumerate(document["nodes"][0]["instances"], 1)
    ]
    with pytest.raises(
        InputError, match=r"names device 0, which nodes\[0\].instances\[0\] has already"
    ):
        resolve(parse_cluster(json.dumps(document)), EngineOverrides())


def test_kv_is_handed_over_on_the_routes(tmp_path: Path) -> None:
    """A thin link of the decode device delays what is handed over, and nothing else."""
    document = clusters.cluster(clusters.model(tmp_path), members=2)
    at_once = {"kv_read_ns": 0, "kv_descriptor_ns": 0}  # else posting hides a part of it
    document["nodes"][0]["instances"] = [
        {**entry, **at_once, "pd_type": role}
        for entry, role in zip(
            document["nodes"][0]["instances"], ("prefill", "decode"), strict=True
        )
    ]
    thin = json.loads(json.dumps(SWITCHED))
    thin["links"][1]["bandwidth_gb_per_s"] = 0.5
    one = "synthetic:n=1,rate=1,input=fixed:100,output=fixed:3,seed=1"
    results = [
        run({**document, "topology": written(tmp_path, network)}, one)
        for network in (SWITCHED, thin)
    ]
    kv_bytes = 100 * 5 * 2 * 8 * 64 * 2  # tokens, layers, K and V, heads, width, bytes
    moved = [end.requests.finish_ps[0] for end in results]
    assert moved[1] - moved[0] == kv_bytes * 2000 - kv_bytes * 20


def test_kv_and_the_collectives_of_ranks_share_the_routes_links(tmp_path: Path) -> None:
    """Two ranks prefill, two decode, all behind one switch: a prompt handed over slows the decodes
    down, and is slowed down by their all-reduces; folded is expanded, and without anybody else
    nothing changes.
    """
    document = clusters.cluster(clusters.model(tmp_path), members=2, tp_size=2)
    both = json.loads(json.dumps(document))
    document["nodes"][0]["instances"] = [
        {**entry, "pd_type": role}
        for entry, role in zip(
            document["nodes"][0]["instances"], ("prefill", "decode"), strict=True
        )
    ]
    network = json.loads(json.dumps(SWITCHED))
    for link in network["links"]:
        link["bandwidth_gb_per_s"] = 1
    path = written(tmp_path, network)
    trace = "synthetic:n=12,rate=40,input=fixed:400,output=fixed:60,seed=1"
    found = lowered({**document, "topology": path})
    assert [domain.groups for domain in found.contended] == [(0,), (1,)]
    assert lowered({**both, "topology": path}).contended == ()
    shared = run({**document, "topology": path}, trace)
    exact = run({**document, "topology": path}, trace, exact=True)
    assert set(shared.invariants.values()) == set(exact.invariants.values()) == {"ok"} and same(
        shared, exact
    )
    mine = shared.steps["group"] == 1
    decodes = mine & (shared.steps["tokens"] == shared.steps["decode_sequences"])
    took = (shared.steps["end_ps"] - shared.steps["start_ps"])[
        decodes & (shared.steps["tokens"] == 1)
    ]
    assert took.max() > 1.04 * took.min()  # mostly latency; a longer context adds less than 0.1 %
    one = "synthetic:n=1,rate=1,input=fixed:100,output=fixed:9,seed=1"
    monolith = run({**both, "topology": path}, one)
    apart = run({**document, "topology": path}, one)
    alone = (apart.steps["end_ps"] - apart.steps["start_ps"])[apart.steps["group"] == 1]
    usual = (monolith.steps["end_ps"] - monolith.steps["start_ps"])[1:]
    assert (alone[1:] == usual[: len(alone) - 1]).all()
