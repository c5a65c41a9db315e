"""The energy of rows between attention and FFN: that of links in a node, of network cards between
nodes.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from afd.clusters import LINKS, attention, ffn

import llmsim

ROOT = Path(__file__).resolve().parents[2]
NODE = json.loads((ROOT / "cluster_config/single_node_power_instance.json").read_text("utf-8"))
MODEL = "Qwen/Qwen3-30B-A3B"
LOAD = "synthetic:n=4,rate=100,input=fixed:64,output=fixed:20,seed=1"
LAYERS, ROW = 48, 2048 * 2
PJ_PER_BIT = 4.0


def run(nodes: int, card: float = PJ_PER_BIT, link: float = PJ_PER_BIT) -> llmsim.Result:
    """An attention and an FFN device without collectives of their own, on one or two nodes."""
    power = NODE["nodes"][0]["power"]
    power = {
        **power,
        "npu": {"H100": power["npu"]["A6000"]},
        "link": {**power["link"], "energy_per_bit": link},
        "nic": {**power["nic"], "energy_per_bit": card},
    }
    sides = [attention(MODEL, afd_micro_batches=2), ffn(MODEL)]
    placed = [sides] if nodes == 1 else [[side] for side in sides]
    about = {"power": power, "cpu_mem": NODE["nodes"][0]["cpu_mem"]}
    fields = {**LINKS, "nodes": [{"instances": one, **about} for one in placed]}
    return llmsim.run(fields, LOAD, cost_source="roofline")


def joules(result: llmsim.Result, component: str) -> float:
    """What a component drew."""
    return float(result.summary["energy"]["components_j"][component])


def moved_j(result: llmsim.Result) -> float:
    """One bit of all rows, there and back, on one port."""
    [row] = result.summary["afd"]
    assert row["m2n_bytes"] % (LAYERS * ROW) == 0
    return int(row["m2n_bytes"]) * 8 * PJ_PER_BIT * 1e-12


@pytest.mark.parametrize(
    ("nodes", "component", "key", "ends"),
    [(1, "links", "link", 1), (2, "nics", "card", 2)],
    ids=["links", "cards"],
)
def test_by_hand(nodes: int, component: str, key: str, ends: int) -> None:
    """Each byte is charged to its sender's link, or to the network cards of both ends."""
    free: dict[str, Any] = {key: 0.0}
    with_energy, without = run(nodes), run(nodes, **free)
    found = joules(with_energy, component) - joules(without, component)
    assert found == pytest.approx(ends * moved_j(with_energy), rel=1e-6)
    assert with_energy.summary["energy"]["total_j"] > without.summary["energy"]["total_j"]
