"""Weights, attention and operators elsewhere: with stages, lock-step ranks, disaggregation and
drawn experts.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.offload.test_placement import HEAD_BYTES, LAYER_BYTES, cluster, ledger, refusal, summary

WEIGHTS = {"placement": {"default": {"weights": "cpu"}}}
MOE = {"model_name": "microsoft/Phi-mini-MoE-instruct"}
EXPERTS = {**MOE, "placement": {"layers": {"moe": {"weights": "cpu"}}}}
STAGES = {"tp_size": 1, "pp_size": 2}
ATTENTION = {"enable_attn_offloading": True}


def with_node(document: dict[str, Any], pim: bool = False, cpu: bool = False) -> dict[str, Any]:
    node = document["nodes"][0]
    if pim:
        node["cpu_mem"]["pim_config"] = "HBM2_1GB_2000_pim"
    if cpu:
        node["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    return document


def disaggregated(
    prefill: dict[str, Any], decode: dict[str, Any], devices: int = 1
) -> dict[str, Any]:
    document = cluster(devices, instances=2)
    instances = [dict(one) for one in document["nodes"][0]["instances"]]
    instances[0].update(pd_type="prefill", **prefill)
    instances[1].update(pd_type="decode", **decode)
    document["nodes"][0]["instances"] = instances
    return document


def on_cpu(*names: str, **more: Any) -> dict[str, Any]:
    return {"operator_devices": dict.fromkeys(names, "cpu"), **more}


COMBINATIONS = {
    "stages, weights": cluster(2, **STAGES, **WEIGHTS),
    "stages, memory": with_node(cluster(2, **STAGES, **ATTENTION), pim=True),
    "stages, memory, halves": with_node(
        cluster(
            2, **STAGES, **ATTENTION, enable_sub_batch_interleaving=True, sub_batch_rule="always"
        ),
        pim=True,
    ),
    "ranks, experts touched": cluster(
        2, 2, dp_group="a", tp_size=2, **EXPERTS, expert_prefetch="touched"
    ),
    "ranks, experts on demand": cluster(
        1, 2, dp_group="a", ep_size=2, **EXPERTS, expert_prefetch="demand"
    ),
    "roles, weights": disaggregated(WEIGHTS, WEIGHTS),
    "roles, memory": with_node(disaggregated({}, ATTENTION), pim=True),
    "roles, memory, two ranks": with_node(disaggregated({}, ATTENTION, devices=2), pim=True),
    "roles, attention on processors": with_node(disaggregated({}, on_cpu("attention")), cpu=True),
    "memory, weights": with_node(cluster(**ATTENTION, **WEIGHTS), pim=True),
    "attention on processors": with_node(cluster(**on_cpu("attention")), cpu=True),
    "attention on processors, halves": with_node(
        cluster(**on_cpu("attention"), enable_sub_batch_interleaving=True, sub_batch_rule="always"),
        cpu=True,
    ),
    "stages and ranks, attention on processors": with_node(
        cluster(4, tp_size=2, pp_size=2, **on_cpu("attention")), cpu=True
    ),
    "norms and head on processors": with_node(cluster(**on_cpu("norms", "head")), cpu=True),
    "experts on processors": with_node(cluster(**MOE, **on_cpu("experts")), cpu=True),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_it_runs_holds_and_is_exact(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(tmp_path, capsys, COMBINATIONS[name])
    assert found["completed"] == 10 and set(found["invariants"].values()) == {"ok"}
    assert found == summary(tmp_path, capsys, COMBINATIONS[name], "--exact")


@pytest.mark.parametrize("policy", ["touched", "demand"])
def test_uneven_experts_copy_what_their_draws_touch(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tpot(*options: str, **more: Any) -> float:
        return float(
            summary(tmp_path, capsys, cluster(**{**EXPERTS, **more}), *options)["mean_tpot_ms"]
        )

    even = tpot(expert_prefetch=policy)
    skewed = ("--expert-routing-policy", "POWER_LAW:alpha=2.5")
    few = tpot(*skewed, expert_prefetch=policy)
    assert few < even  # popular experts are touched again and again
    assert few == tpot(*skewed, "--exact", expert_prefetch=policy)
    assert (
        tpot(*skewed, expert_prefetch=policy, expert_cache=0.5)
        < few
        < tpot(*skewed, expert_prefetch="layer")
    )


def test_a_stage_keeps_buffers_of_its_own_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ledger(summary(tmp_path, capsys, COMBINATIONS["stages, weights"]))
    assert (
        lines["weights that are elsewhere"] == 16 * LAYER_BYTES + HEAD_BYTES + 2 * 4096
    )  # the last stage's
    assert lines["buffers of copied weights"] == -(HEAD_BYTES + 2 * 4096 + LAYER_BYTES)


def test_stages_share_the_link_only_while_both_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tpot(gb_per_s: float) -> float:
        document = json.loads(json.dumps(COMBINATIONS["stages, weights"]))
        document["nodes"][0]["cpu_mem"]["mem_bw"] = gb_per_s
        return float(summary(tmp_path, capsys, document)["mean_tpot_ms"])

    assert tpot(112) > tpot(168) >= tpot(224) == tpot(1000)  # two ports of 112 GB/s


def test_kv_goes_where_decodes_attend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = summary(tmp_path, capsys, disaggregated({}, {}))
    memory = summary(tmp_path, capsys, COMBINATIONS["roles, memory"])
    assert memory["kv_transfer"]["bytes"] == plain["kv_transfer"]["bytes"]
    assert memory["kv_cache"][1]["num_blocks"] == 512 * (1 << 30) // (16 * 131072)


def test_operators_on_processors_take_their_weights_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = with_node(cluster(**on_cpu("ffn")), cpu=True)
    found = summary(tmp_path, capsys, document)
    assert ledger(found)["weights that are elsewhere"] == 32 * 2 * 3 * 14336 * 4096
    read_ms = (
        32 * 2 * 3 * 14336 * 4096 / 256e9 * 1e3
    )  # cpu_mem.mem_bw, the utilisation of a roofline below that
    assert found["mean_tpot_ms"] > read_ms
    assert "act_fn, down_proj, gate_up_proj on Xeon-8592+" in found["notes"]
    pair = with_node(cluster(instances=2, **on_cpu("ffn")), cpu=True)
    halved = summary(tmp_path, capsys, pair)
    assert halved["mean_tpot_ms"] > 1.5 * found["mean_tpot_ms"]  # half of the cores each


def test_what_a_device_cannot_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cpu (hardware, sockets)" in refusal(tmp_path, capsys, cluster(**on_cpu("ffn")))
    wrong = with_node(cluster(**on_cpu("fnn")), cpu=True)
    assert 'operator_devices has "fnn", which is no operator' in refusal(tmp_path, capsys, wrong)
    gemm = with_node(cluster(operator_devices={"lm_head": "pim"}), pim=True)
    assert "has units for the attention of decodes only" in refusal(tmp_path, capsys, gemm)
    both = with_node(cluster(**on_cpu("attention"), **ATTENTION), pim=True, cpu=True)
    assert "leave one of them out" in refusal(tmp_path, capsys, both)
    unlike = cluster(1, 2, dp_group="a", ep_size=2, **EXPERTS)
    first, second = (dict(one) for one in unlike["nodes"][0]["instances"])
    del second["placement"]
    unlike["nodes"][0]["instances"] = [first, second]
    assert "another offloading than" in refusal(tmp_path, capsys, unlike)


def test_pim_as_a_device_of_attention_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    switch = summary(tmp_path, capsys, with_node(cluster(**ATTENTION), pim=True))
    device = summary(
        tmp_path, capsys, with_node(cluster(operator_devices={"attention": "pim"}), pim=True)
    )
    assert switch == device
