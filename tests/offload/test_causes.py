"""What a step waits for outside of its devices is a cause of latency and a source of times of its
own: copies of weights, and memory that computes.
"""

from pathlib import Path
from typing import Any

import pytest

import llmsim

ROOT = Path(__file__).resolve().parents[2]
ALONE = "synthetic:n=1,rate=1,input=fixed:1000,output=fixed:100,seed=1"
LONG = "synthetic:n=1,rate=1,input=fixed:30000,output=fixed:50,seed=1"
PART = "attention in HBM2_1GB_2000_pim"
COPIES = "copies over the links of the cluster file"


def run(name: str, load: str, **options: Any) -> llmsim.Result:
    return llmsim.run(str(ROOT / "cluster_config" / f"{name}.json"), load, **options)


@pytest.mark.parametrize(
    ("name", "load", "source"),
    [
        ("single_node_pim_instance", LONG, PART),
        ("single_node_cxl_instance", ALONE, COPIES),
        ("single_node_moe_offload_instance", ALONE, COPIES),
    ],
)
def test_a_request_alone_waits_for_nobody_else(name: str, load: str, source: str) -> None:
    result = run(name, load)
    [waited], [offload] = result.requests["wait_ps"], result.requests["offload_ps"]
    assert offload > 0 and waited == 0
    share = result.summary["sources"]["by_source"][source]
    assert share == pytest.approx(result.summary["blame"]["offload"]["share"], abs=0.02)


def test_decodes_wait_as_long_as_their_attention_takes() -> None:
    """The second hundred of tokens attends to 30,150 on average: 4 KiB of each in a layer, on 8
    channels, in which four query heads read each KV head in turn. Scores of 32 heads cross the bus
    there and back.
    """
    offload_s = [
        float(
            run("single_node_pim_instance", LONG.replace("fixed:50", f"fixed:{tokens}"))
            .requests["offload_ps"]
            .iloc[0]
        )
        / 1e12
        for tokens in (100, 200)
    ]
    reads_s = 30_150 * 4096 / 8 * 4 / 127.4e9
    scores_s = 2 * 30_150 * 32 * 2 / 8 / 32e9
    layers = 100 * 32
    assert offload_s[1] - offload_s[0] == pytest.approx(layers * (reads_s + scores_s), rel=0.01)


def test_other_groups_have_no_such_cause() -> None:
    result = run("single_node_single_instance", ALONE)
    assert "offload" not in result.summary["blame"]
    assert PART not in result.summary["sources"]["by_source"]


def test_required_provenance_sees_it() -> None:
    measured = {"require": "scaled", "cost_source": "auto"}
    file = str(ROOT / "cluster_config" / "single_node_pim_instance.json")
    with pytest.raises(llmsim.InputError, match="analytic"):
        llmsim.run(file, LONG, **measured)


def test_why_names_copies_and_a_faster_memory() -> None:
    load = "synthetic:n=4,rate=1,input=fixed:500,output=fixed:20,seed=1"
    why = run("single_node_cxl_instance", load).why("tpot", percentile=50, what_if=2)
    [cause] = [one for one in why.causes if one.name == "slow offloading"]
    assert cause.group == 0
    assert why.to_dict()["causes"][0]["name"] == "slow offloading"
