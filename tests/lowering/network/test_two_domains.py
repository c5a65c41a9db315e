"""Attention and FFN laid out apart: groups, products, exchanges; folded equals expanded, rules have
names.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config.cluster_file.dialect import LayoutKeys, infer_layout
from llmsim.config.errors import InputError
from llmsim.lowering.parallel_layout import stage_operators
from llmsim.model import Dtypes, Layout, load_model, operators, weight_bytes

from ..clusters import check_folded_is_expanded, cluster, lowered, model, run

LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "attn2x2_ep4": ({"experts": 8}, {"attn_tp_size": 2, "attn_dp_size": 2, "ffn_ep_size": 4}),
    "attn2x2_tp4": ({"experts": 8}, {"attn_tp_size": 2, "attn_dp_size": 2, "ffn_tp_size": 4}),
    "attn2x2_tp2_ep2": (
        {"experts": 8},
        {"attn_tp_size": 2, "attn_dp_size": 2, "ffn_tp_size": 2, "ffn_ep_size": 2},
    ),
    "attn1x4_tp4_shared": (
        {"experts": 8, "shared": 1, "dense_first": 1},
        {"attn_tp_size": 1, "attn_dp_size": 4, "ffn_tp_size": 4},
    ),
    "attn4_ep4": ({"experts": 8}, {"attn_tp_size": 4, "ffn_ep_size": 4}),
    "dense2x2_tp4": ({}, {"attn_tp_size": 2, "attn_dp_size": 2, "ffn_tp_size": 4}),
    "dense2x2_apart": (
        {},
        {"attn_tp_size": 2, "attn_dp_size": 2, "ffn_tp_size": 2, "ffn_ep_size": 2},
    ),
    "dense1x4_pairs": ({}, {"attn_tp_size": 1, "attn_dp_size": 4, "ffn_tp_size": 2}),
    "pp2": ({"experts": 8}, {"attn_tp_size": 1, "attn_dp_size": 2, "ffn_ep_size": 2, "pp_size": 2}),
}


def document(tmp_path: Path, name: str, **more: Any) -> dict[str, Any]:
    shape, keys = LAYOUTS[name]
    return cluster(model(tmp_path, **shape), **keys, **more)


@pytest.mark.parametrize("name", LAYOUTS)
def test_folded_equals_expanded(tmp_path: Path, name: str) -> None:
    check_folded_is_expanded(document(tmp_path, name))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_instance_is_as_many_engines_as_its_attention_has_ranks(
    tmp_path: Path, name: str
) -> None:
    keys = LAYOUTS[name][1]
    deployment = lowered(document(tmp_path, name))
    assert len(deployment.groups) == keys.get("attn_dp_size", 1)
    assert {group.info.tp for group in deployment.groups} == {keys["attn_tp_size"]}
    assert [group.info.index for group in deployment.groups] == list(range(len(deployment.groups)))
    sizes = {len(wave.groups) for wave in deployment.lockstep_groups}
    shared = name not in ("dense2x2_apart", "attn4_ep4")
    assert sizes == ({2 if name == "dense1x4_pairs" else keys["attn_dp_size"]} if shared else set())


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_share_the_flops_and_weights_of_one(tmp_path: Path, name: str) -> None:
    config = load_model(model(tmp_path, **LAYOUTS[name][0]))
    layout = lowered(document(tmp_path, name)).groups[0].layout

    def flops(ops: Any) -> float:
        kept = [
            op
            for op in ops
            if op.kind in ("gemm", "moe") and "_a_proj" not in op.name and op.name != "moe_gate"
        ]
        return sum(op.repeat * op.flops_per_token * op.units[0] / op.units[1] for op in kept)

    stages = stage_operators(config, layout, Dtypes())
    own = sum(flops(op for op in ops if op.feature != "gathered") for ops in stages) * layout.tp
    shared = (
        sum(flops(op for op in ops if op.feature == "gathered") for ops in stages)
        * layout.expert_ranks
    )
    assert own + shared == flops(operators(config, Layout(), Dtypes()))


def test_keys_of_two_domains_say_what_members_of_a_group_say(tmp_path: Path) -> None:
    path = model(tmp_path, experts=8)
    apart = run(cluster(path, attn_tp_size=2, attn_dp_size=2, ffn_ep_size=4))
    members = run(cluster(path, members=2, tp_size=2, dp_group="a", ep_size=4))
    assert np.array_equal(apart.requests.finish_ps, members.requests.finish_ps)


def test_an_ffn_cut_over_all_replicas_leaves_room(tmp_path: Path) -> None:
    path = model(tmp_path)
    config = load_model(path)
    alone, shared = Layout(2), lowered(document(tmp_path, "dense2x2_tp4")).groups[0].layout
    mlp = sum(
        op.weight_bytes * op.repeat
        for op in operators(config, alone, Dtypes())
        if op.name in ("gate_up_proj", "down_proj")
    )
    assert (
        weight_bytes(config, alone, Dtypes()) - weight_bytes(config, shared, Dtypes()) == mlp // 2
    )
    names = [op.name for op in operators(config, shared, Dtypes())]
    at = names.index("gate_up_proj")
    assert names[at - 1 : at + 5] == [
        "ffn_gather", "gate_up_proj", "act_fn", "down_proj", "ffn_scatter", "all_reduce",
    ]  # fmt: skip


@given(*(st.integers(1, 8) for _ in range(4)))
@settings(max_examples=200)
def test_products_agree_or_the_rule_is_named(tp: int, dp: int, ffn_tp: int, ffn_ep: int) -> None:
    given_keys: dict[str, Any] = dict.fromkeys(LayoutKeys.__struct_fields__)
    keys = LayoutKeys(
        **given_keys
        | {"attn_tp_size": tp, "attn_dp_size": dp, "ffn_tp_size": ffn_tp, "ffn_ep_size": ffn_ep}
    )
    if ffn_tp * ffn_ep == tp * dp:
        layout = infer_layout(keys)
        assert (layout.tp, layout.replicas, layout.ffn_tp, layout.ep) == (tp, dp, ffn_tp, ffn_ep)
        assert layout.num_devices == tp
    else:
        with pytest.raises(Exception, match="attn_tp_size x attn_dp_size"):
            infer_layout(keys)


@pytest.mark.parametrize(
    ("shape", "keys", "words"),
    [
        (
            {},
            {"attn_tp_size": 2, "attn_dp_size": 2, "ffn_tp_size": 2, "ffn_ep_size": 1},
            "must span the same devices",
        ),
        ({}, {"attn_tp_size": 2, "tp_size": 2}, "is given together with attn_tp_size"),
        ({}, {"attn_tp_size": 2, "dp_group": "a"}, "is given together with attn_tp_size"),
        ({}, {"num_npus": 6, "attn_tp_size": 4}, "must divide it"),
        ({}, {"attn_tp_size": 4, "ffn_tp_size": 2}, "must be a multiple of attn_tp_size"),
        (
            {"experts": 6},
            {"attn_dp_size": 4, "ffn_ep_size": 4},
            "ep must divide the number of experts 6",
        ),
        (
            {},
            {"num_npus": 8, "attn_tp_size": 2, "attn_dp_size": 2},
            "must be attn_tp_size x attn_dp_size",
        ),
    ],
)
def test_illegal_layouts_name_the_rule(
    tmp_path: Path, shape: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        lowered(cluster(model(tmp_path, **shape), **keys))
