"""SGLang's ranks with data-parallel attention schedule when the last of them has ended its step."""

import json
from pathlib import Path
from typing import Any

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.simulation.run import native_simulation

CLUSTERS = Path(__file__).resolve().parents[2] / "cluster_config"
NETWORK_CARD_PS = 2_000_000


def two_ranks_of_each_role(folder: Path) -> Prepared:
    cluster = json.loads(
        (CLUSTERS / "single_node_moe_dp_ep_instance.json").read_text(encoding="utf-8")
    )
    (node,) = cluster["nodes"]
    rank = node["instances"][0] | {"num_npus": 1, "tp_size": 1, "ep_size": 2}
    cluster["nodes"] = [
        node | {"instances": [rank | {"pd_type": role, "dp_group": role}] * 2}
        for role in ("prefill", "decode")
    ]
    cluster |= {"num_nodes": 2, "link_bw": [450, 450, 50], "link_latency": [1000, 1000, 2000]}
    path = folder / "ranks.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    words = ["--cluster-config", str(path), "--scheduler", "sglang"]
    words += ["--request-routing-policy", "LOR", "--decode-routing-policy", "LOR"]
    words += ["--dataset", "synthetic:n=8,rate=20,input=uniform:20-400,output=uniform:1-20,seed=4"]
    return prepare(checked_options(words))


def schedules(prepared: Prepared) -> list[Any]:
    groups = tuple(range(len(prepared.lowered.groups)))
    run = native_simulation(prepared.lowered, prepared.workload, prepared.simulation, groups)
    while not run.run(1 << 20, 1000):
        pass
    return [run.schedule(group) for group in groups]


def test_a_decode_rank_reserves_memory_when_the_others_have_ended_their_step(
    tmp_path: Path,
) -> None:
    """The second request comes to a rank that has nothing to do, while the other one decodes."""
    first_prefill, _, first_decode, other_decode = schedules(two_ranks_of_each_role(tmp_path))
    assert first_prefill["item_request"][1] == 1
    assert 1 in other_decode["item_request"]
    reserved_ps = first_prefill["time_ps"][1] - NETWORK_CARD_PS
    assert reserved_ps in list(first_decode["end_ps"])
