"""Instances on several nodes (`nnodes`): where their ranks are, and what their messages cross."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim.config.errors import InputError, NotYetError
from llmsim.costs.nccl.constants import machine_of
from llmsim.costs.nccl.plans import Place, choose
from llmsim.lowering.types import LoweredGroup
from llmsim.model.hardware import data_sheet
from llmsim.model.operator import Collective
from tests.lowering.clusters import check_folded_is_expanded, cluster, deployed, lowered, model, run

LINKS = [450, 450, 25]
NETWORK = 25_000_000_000


def over_nodes(path: str, nnodes: int, links: Any = LINKS, **instance: Any) -> dict[str, Any]:
    """One instance on its node and the next ones."""
    document = cluster(path, links=links, nnodes=nnodes, **instance)
    document["nodes"] += [{"instances": []}] * (nnodes - 1)
    return document


def link_of(group: LoweredGroup, among: str) -> tuple[int, int]:
    """(bytes/s, latency in ps) of the first collective among such ranks."""
    op = next(op for op in group.operators if isinstance(op, Collective) and op.among == among)
    return group.links.link(op)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("layout", "nnodes", "crossing"),
    [
        ({"tp_size": 8}, 1, ""),
        ({"tp_size": 16}, 2, "tp"),
        ({"tp_size": 8}, 2, "tp"),
        ({"tp_size": 8, "pp_size": 2}, 2, "stages"),
        ({"tp_size": 8, "pp_size": 2}, 4, "tp stages"),
        ({"tp_size": 4, "pp_size": 4}, 2, "stages"),
    ],
)
def test_the_ranks_of_several_nodes_take_the_last_entry(
    tmp_path: Path, layout: dict[str, int], nnodes: int, crossing: str
) -> None:
    path = model(tmp_path, heads=16, kv_heads=16)
    document = over_nodes(path, nnodes, **layout)
    group = lowered(document).groups[0]
    for among in ("tp", "stages") if "pp_size" in layout else ("tp",):
        expected = NETWORK if among in crossing else 450 * 10**9
        assert link_of(group, among)[0] == expected


@pytest.mark.parametrize(
    ("sizes", "nnodes", "nodes"),
    [((1, 8), 2, [0, 0, 0, 0, 1, 1, 1, 1]), ((4, 2), 2, [0, 1]), ((4, 2), 4, [0, 2])],
)
def test_data_parallel_ranks_lie_on_the_nodes_in_order(
    tmp_path: Path, sizes: tuple[int, int], nnodes: int, nodes: list[int]
) -> None:
    attention, ranks = sizes
    document = over_nodes(
        model(tmp_path, experts=8), nnodes, attn_tp_size=attention, attn_dp_size=ranks,
        ffn_tp_size=1, ffn_ep_size=8,
    )  # fmt: skip
    deployment = deployed(document)
    assert [group.node for group in deployment.groups] == nodes
    assert {group.dp_nodes for group in deployment.groups} == {nnodes}
    assert link_of(lowered(document).groups[0], "everyone" if attention > 1 else "members")[0] == (
        NETWORK
    )


@pytest.mark.parametrize(("decode_node", "crossing"), [(1, 3), (0, 2)])
def test_kv_crosses_network_cards_from_stages_on_other_nodes(
    tmp_path: Path, decode_node: int, crossing: int
) -> None:
    """Of five layers, three are on the first node and two on the second."""
    path = model(tmp_path, heads=16, kv_heads=16)
    document = over_nodes(path, 2, [450, 450, 0.001], tp_size=8, pp_size=2, pd_type="prefill")
    alone = {"pd_type": "decode", "nnodes": 1, "pp_size": 1}
    decode = {**document["nodes"][0]["instances"][0], **alone}
    document["nodes"][decode_node]["instances"].append(decode)
    load = "synthetic:n=1,rate=1,input=fixed:400,output=fixed:2"
    moved = llmsim.run(document, load, launch_ns=0).summary["kv_transfer"]
    ms = moved["bytes"] / 8 * crossing / 5 / 1e6 * 1e3
    assert moved["mean_transfer_ms"] == pytest.approx(ms, rel=1e-4)


def test_an_all_reduce_over_two_nodes_is_nccls_plan_by_hand(tmp_path: Path) -> None:
    """The plan is that of 16 ranks on two servers, whose links inside have 2 us of latency; a ring
    cannot be faster than its bytes.
    """
    path = model(tmp_path, heads=16, kv_heads=16)
    one, two = (lowered(over_nodes(path, n, tp_size=8 * n)).groups[0] for n in (1, 2))
    op = next(op for op in two.operators if isinstance(op, Collective) and op.among == "tp")
    tokens = 256
    place = Place(16, 2, 8, NETWORK / 1e9, 2.0)
    size = np.array([float(tokens * op.collective_bytes_per_token)])
    machine = machine_of(data_sheet("H100")).waiting(1.0)
    by_hand = choose(machine, "all_reduce", size, place).us[0]
    found = {
        name: next(one.cost for one in group.placed if one.cost.name == op.name).ps[tokens] / 1e6
        for name, group in (("one", one), ("two", two))
    }
    assert found["two"] == pytest.approx(by_hand, rel=1e-6)
    least = size[0] / 8 / NETWORK * 1e6  # each card carries an eighth of the vector at least
    assert found["two"] > max(least, 2 * 2.0) and found["two"] > found["one"]


def test_rings_over_nodes_are_folded_exactly(tmp_path: Path) -> None:
    path = model(tmp_path, heads=8, kv_heads=8)
    for layout in ({"tp_size": 4}, {"tp_size": 2, "pp_size": 2}):
        check_folded_is_expanded(over_nodes(path, 2, **layout), collectives="links")


def test_an_instance_over_nodes_is_slower_than_on_one(tmp_path: Path) -> None:
    path = model(tmp_path, heads=8, kv_heads=8)
    times = [
        int(run(over_nodes(path, nnodes, tp_size=4)).requests.finish_ps.max()) for nnodes in (1, 2)
    ]
    assert times[0] < times[1]


def test_a_topology_gives_devices_of_each_node(tmp_path: Path) -> None:
    path = model(tmp_path, heads=8, kv_heads=8)
    document = {**over_nodes(path, 2, tp_size=4), "topology": "h100_rails_32x8"}
    placed = deployed(document).topology
    assert placed is not None and placed.devices == ((0, 1, 8, 9),)


def test_bytes_between_nodes_pass_network_cards(tmp_path: Path) -> None:
    """A ring of four ranks leaves either node once: half of what it sends is between nodes."""
    path = model(tmp_path, heads=8, kv_heads=8)
    power = {
        "base_node_power": 0,
        "npu": {"H100": {"idle_power": 1, "standby_power": 1, "active_power": 1}
                | {"standby_duration": 1}},
        "link": {"num_links": 1, "idle_power": 0, "energy_per_bit": 1},
        "nic": {"num_nics": 1, "idle_power": 0, "energy_per_bit": 1},
    }  # fmt: skip
    joules = {}
    for nnodes in (1, 2):
        document = over_nodes(path, nnodes, tp_size=4)
        document["nodes"] = [{**node, "power": power} for node in document["nodes"]]
        parts = llmsim.run(document, "synthetic:n=1,rate=1,input=64,output=4", launch_ns=0)
        joules[nnodes] = parts.summary["energy"]["components_j"]
    assert joules[1]["nics"] == 0
    assert joules[2]["links"] == pytest.approx(joules[1]["links"] / 2, rel=1e-6)
    assert joules[2]["nics"] == pytest.approx(joules[1]["links"], rel=1e-6), "at both ends"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"nnodes": 3, "tp_size": 16}, "nnodes is 3, but 1 data-parallel ranks of 1 stages of 16"),
        ({"nnodes": 2, "tp_size": 1, "pp_size": 3}, "nnodes is 2"),
        ({"nnodes": 2, "tp_size": 2, "dp_group": "a"}, "beside dp_group"),
        ({"nnodes": 4, "tp_size": 4}, "the file has 2 nodes from this one"),
    ],
)
def test_nodes_that_do_not_share_the_devices_are_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    document = over_nodes(model(tmp_path), 2, tp_size=2)
    document["nodes"][0]["instances"][0] |= change
    with pytest.raises(InputError, match=named):
        deployed(document)


def test_a_node_without_instances_belongs_to_one_before_it(tmp_path: Path) -> None:
    document = over_nodes(model(tmp_path), 2, tp_size=2)
    document["nodes"].append({"instances": []})
    with pytest.raises(InputError, match=r"nodes\[2\]\.instances is empty"):
        deployed(document)


@pytest.mark.parametrize(
    "asked",
    [
        {"placement": {"default": {"weights": "cpu"}}},
        {"operator_devices": {"lm_head": "cpu"}},
    ],
)
def test_the_memory_of_one_node_is_not_that_of_several(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    document = over_nodes(model(tmp_path), 2, tp_size=2, **asked)
    for node in document["nodes"]:
        node["cpu_mem"] = {"mem_size": 256, "mem_bw": 200}
        node["cpu"] = {"hardware": "Xeon-8592+"}
    with pytest.raises(NotYetError, match=r"nnodes 2 and .* needs the memory of one node"):
        lowered(document)
