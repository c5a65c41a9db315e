"""Rows between attention and FFN on the routes of a topology: what they take alone, and whom they
meet.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.config.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PCIE = json.loads((ROOT / "cluster_config" / "l40s_llama31_8b_tp4_pcie.json").read_text("utf-8"))
ONE = {key: PCIE["nodes"][0]["instances"][0][key] for key in ("model_name", "hardware", "npu_mem")}
LOAD = "synthetic:n=8,rate=100,input=fixed:500,output=fixed:30,seed=1"
NO_HOST = {"host_gap_ns": 0, "host_sequence_ns": 0, "launch_ns": 0}


def pair(name: str, attends: int, computes: int) -> list[dict[str, Any]]:
    """An attention and an FFN device."""
    common = {**ONE, **NO_HOST, "num_npus": 1, "afd_group": name}
    return [
        {**common, "pd_type": "attention", "topology_devices": [attends], "afd_micro_batches": 1},
        {**common, "pd_type": "ffn", "topology_devices": [computes]},
    ]


def colocated(devices: list[int]) -> dict[str, Any]:
    """An instance that all-reduces over the sockets."""
    size = {"num_npus": len(devices), "tp_size": len(devices)}
    return {**ONE, **NO_HOST, **size, "topology_devices": devices}


def run(*instances: dict[str, Any], load: str = LOAD, **options: Any) -> llmsim.Result:
    fields = {**PCIE, "nodes": [{**PCIE["nodes"][0], "instances": list(instances)}]}
    fields["nodes"][0]["num_instances"] = len(instances)
    options = {"cost_source": "roofline", "request_routing_policy": "RR", **options}
    return llmsim.run(fields, load, **options)


def waited_ms(result: llmsim.Result) -> float:
    """For rows, of a mean request."""
    return float(result.summary["blame"]["m2n"]["mean_ms"])


def test_by_hand() -> None:
    """Ten steps of one token: in each of 32 layers 8,192 bytes cross the server there and back, at
    31.5 GB/s, over two switches (0.3 us a link) and between the sockets (0.2 us).
    """
    result = run(
        *pair("one", 0, 4), load="synthetic:n=1,rate=1,input=fixed:1,output=fixed:10,seed=1"
    )
    hop_ps = -(-8192 * 10**12 // 31_500_000_000) + 4 * 300_000 + 200_000
    assert result.requests["m2n_ps"].tolist() == [10 * 32 * 2 * hop_ps]


def test_alone_is_folded() -> None:
    """Without company nothing is on the network, and every step is as with --exact."""
    folded, exact = run(*pair("one", 0, 4)), run(*pair("one", 0, 4), exact=True)
    assert folded.requests.equals(exact.requests)
    assert folded.series.get("links") is None or folded.series["links"].empty


def test_two_groups_on_the_same_uplinks_slow_each_other() -> None:
    """Devices 0 and 1 share a switch, and 2 has one of its own; all routes are equally long."""
    apart, together = (run(*pair("one", 0, 4), *pair("two", *other)) for other in ((2, 6), (1, 5)))
    assert waited_ms(together) > waited_ms(apart)


@pytest.mark.parametrize("exact", [False, True])
def test_rows_and_collectives_slow_each_other(exact: bool) -> None:
    both = run(*pair("one", 0, 4), colocated([1, 5]), exact=exact)
    quiet = run(*pair("one", 0, 4), colocated([2, 3]), exact=exact)
    assert both.summary["communication"]["lost_s"] > 0
    assert quiet.summary["communication"]["lost_s"] == 0
    rows = [one.requests["m2n_ps"][one.requests["group"] == 0].sum() for one in (both, quiet)]
    assert rows[0] > rows[1]


def test_folded_equals_exact_on_shared_links() -> None:
    first, second = (
        run(*pair("one", 0, 4), *pair("two", 1, 5), exact=exact) for exact in (False, True)
    )
    assert first.requests.equals(second.requests)


def test_data_parallel_ranks_have_devices_of_their_own() -> None:
    """Two attention ranks and one FFN device: the next free ones, or those that are named."""
    common = {**ONE, **NO_HOST, "afd_group": "one"}
    sides = [
        {**common, "num_npus": 2, "pd_type": "attention", "attn_tp_size": 1, "attn_dp_size": 2},
        {**common, "num_npus": 1, "pd_type": "ffn"},
    ]
    free = run(*sides)
    named = run({**sides[0], "topology_devices": [0, 1]}, {**sides[1], "topology_devices": [2]})
    assert free.requests.equals(named.requests) and len(free.groups) == 3
    apart = run({**sides[0], "topology_devices": [0, 4]}, {**sides[1], "topology_devices": [2]})
    assert waited_ms(apart) > waited_ms(named)
    with pytest.raises(InputError, match="has 1 entries, but there are 2 devices"):
        run({**sides[0], "topology_devices": [0]}, sides[1])
