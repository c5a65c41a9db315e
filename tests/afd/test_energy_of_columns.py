"""The traffic and energy of FFN groups whose ranks get rows of their own: all of them count."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from afd.clusters import attention, cluster, ffn

import llmsim
from llmsim.core import FEATURES, Provenance
from llmsim.costs import OpCost
from llmsim.lowering.energy.accounting import known_energy
from llmsim.lowering.program import Placed
from llmsim.model import Layout

ROOT = Path(__file__).resolve().parents[2]
NODE = json.loads((ROOT / "cluster_config/single_node_power_instance.json").read_text("utf-8"))
MOE, DENSE = "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B"
LOAD = "synthetic:n=8,rate=1e6,input=fixed:64,output=fixed:9,seed=1"


def moved(*instances: dict[str, Any]) -> dict[str, int]:
    """Bytes of all groups of a run."""
    power = {
        **NODE["nodes"][0]["power"],
        "npu": {"H100": NODE["nodes"][0]["power"]["npu"]["A6000"]},
    }
    fields = cluster(*instances, engine={"launch_ns": 0})
    fields["nodes"][0] |= {"power": power, "cpu_mem": NODE["nodes"][0]["cpu_mem"]}
    result = llmsim.run(fields, LOAD, cost_source="roofline", skip_prefill=True)
    groups = result.summary["energy"]["groups"]
    return {name: sum(one[name] for one in groups) for name in ("memory_bytes", "link_bytes")}


@pytest.mark.usefixtures("no_ways")
@pytest.mark.parametrize(
    ("model", "dp", "ffn_tp", "ffn_ep"), [(DENSE, 2, 2, 1), (MOE, 2, 1, 2), (MOE, 4, 1, 4)]
)
def test_both_sides_move_what_one_set_of_devices_does(
    model: str, dp: int, ffn_tp: int, ffn_ep: int
) -> None:
    """Their steps are equal, so that all devices' bytes are, too: decodes, which captured graphs
    pad to one size on all ranks.
    """
    sizes = {"attn_tp_size": 1, "attn_dp_size": dp, "ffn_tp_size": ffn_tp, "ffn_ep_size": ffn_ep}
    together = moved({"model_name": model, "hardware": "H100", **sizes})
    apart = moved(attention(model, 1, dp, afd_micro_batches=1), ffn(model, ffn_tp, ffn_ep))
    assert apart == together


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        (Layout(2), 2),
        (Layout(2, dp=4), 2),
        (Layout(2, dp=4, domain="ffn"), 8),
        (Layout(1, dp=8, domain="ffn", shared_ffn=True), 8),
    ],
)
def test_a_stated_energy_counts_on_all_ranks_of_a_group(layout: Layout, ranks: int) -> None:
    """Members of a data-parallel group are groups of their own; columns of an FFN group are not."""

    class Group:
        """As much of a lowered group as is looked at."""

        draft = None

    tokens, times = 5, np.arange(8, dtype=np.int64) * 1000
    cost = OpCost(
        "gate_up_proj",
        feature="tokens",
        part="layer",
        repeat=3,
        ps=times,
        provenance=np.full(8, int(Provenance.MEASURED), np.uint8),
        source="a table",
        power_uw=np.full(8, 7, np.int64),
    )
    rows = [np.zeros(8, np.int64) for _ in FEATURES]
    rows[FEATURES.index("tokens")][tokens] = 11
    group: Any = Group()
    group.layout, group.placed = layout, (Placed(cost, None, 3, 0, "layer"),)
    found = known_energy(group, {"rows": rows}, {0: 123})
    assert found["known_aj"] == 11 * 5000 * 7 * 3 * ranks
    assert found["known_device_ps"] == 123 * ranks
