"""Plans whose attention and FFN instances need more than one server."""

import json
from typing import Any

import pytest

import llmsim
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.lowering.afd.domain import roles_of
from llmsim.lowering.afd.ports import spans_nodes
from llmsim.lowering.device_memory import sheet_memory
from llmsim.sizing.bounds import first_groups
from llmsim.sizing.plan import Plan, Pool, Shape
from llmsim.sizing.shapes import afd_over_nodes, afd_shapes

MODEL = "meta-llama/Llama-3.1-8B"
UNIT = Shape(4, dp=1, ffn=4, attentions=3, ffns=2, sequence_parallel=True, lanes=1)


def plan(*pools: Pool) -> Plan:
    """On servers of four H100."""
    return Plan(MODEL, "H100", pools, (("max_num_seqs", 32),), 4)


PLANS = {
    "one unit": plan(Pool(UNIT, 1)),
    "prompts apart": plan(Pool(Shape(1), 3, "prefill"), Pool(UNIT, 2, "decode")),
    "data-parallel": plan(Pool(Shape(2, dp=2, ffn=4, attentions=3), 2)),
    "inside a server": plan(Pool(Shape(1, ffn=1, attentions=2), 3)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_its_cluster_file(name: str) -> None:
    """The groups that a search copies are those that the written file resolves to."""
    one = PLANS[name]
    text = json.dumps(one.fields())
    cluster = parse_cluster(text, "cluster")
    written = resolve(cluster, EngineOverrides(), sheet=sheet_memory("cluster"))
    assert one.deployment() == written
    assert sum(group.num_devices for group in written.groups) == one.devices
    assert len(written.groups) == sum(pool.count * pool.shape.groups for pool in one.pools)
    roles = [written.groups[first].role for first in first_groups(one)]
    assert roles == ["prefill" if pool.role == "prefill" else "attention" for pool in one.pools]


@pytest.mark.parametrize("name", PLANS)
def test_each_role_has_servers_of_its_own_where_one_is_too_small(name: str) -> None:
    deployment = PLANS[name].deployment()
    for role in roles_of(deployment):
        attention, ffn = (
            {deployment.groups[index].node for index in side} for side in (role.attention, role.ffn)
        )
        if name == "inside a server":
            assert attention == ffn and not spans_nodes(deployment, role)
        else:
            assert not attention & ffn and spans_nodes(deployment, role)
    devices = {
        node.index: sum(deployment.groups[index].num_devices for index in node.groups)
        for node in deployment.nodes
    }
    assert max(devices.values()) <= 4


def test_rows_between_servers_take_network_cards() -> None:
    """A unit of one server takes the links inside it, one of two takes cards of 50 GB/s."""
    load = "synthetic:n=20,rate=100,input=fixed:64,output=fixed:20"
    rows: dict[int, Any] = {}
    for each in (2, 4):
        fields = plan(Pool(Shape(each, ffn=each, lanes=1), 1)).fields()
        rows[each] = llmsim.run(fields, load, launch_ns=0).summary["afd"][0]
    assert rows[4]["m2n"] > 3 * rows[2]["m2n"] > 0


def test_shapes_over_servers_are_whole_servers_that_share_rows_out() -> None:
    found = list(afd_over_nodes(MODEL, 4))
    assert all(shape.tp == shape.ffn == 4 for shape in found)
    assert all(shape.dp == 4 or shape.sequence_parallel for shape in found)
    ratios = {(shape.attentions, shape.ffns) for shape in found}
    assert ratios == {(1, 1), (2, 1), (4, 1), (1, 2), (1, 4)}
    inside = [shape for shape in afd_shapes(MODEL, 4) if shape.devices <= 4]
    assert inside and not any(shape.sequence_parallel for shape in inside)
