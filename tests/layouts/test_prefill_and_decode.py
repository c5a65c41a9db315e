"""Layouts with prefill and decode apart: roles change, KV moves or waits at the switch."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_files import LINKS, assert_refused
from triggers import WHENS

import llmsim

MODEL = "meta-llama/Llama-3.1-8B"
LOAD = "synthetic:n=30,rate=60,input=lognormal:200,output=lognormal:80,seed=2"
SESSIONS = "synthetic:agentic,n=8,rate=20,calls=4,system=64,prompt=50,tool=60,output=30,tool_ms=20"
TOKEN_BYTES = 32 * 2 * 8 * 128 * 2
"""KV of a token: layers, keys and values, heads, their width, bf16."""


def instance(tp: int, count: int = 1, role: str | None = None, **keys: Any) -> dict[str, Any]:
    fields = {"count": count, "model_name": MODEL, "hardware": "H100", "tp_size": tp, **keys}
    return fields if role is None else {**fields, "pd_type": role}


def apart(prefill: int, decode: int, tp: int = 1, **keys: Any) -> list[dict[str, Any]]:
    return [instance(tp, prefill, "prefill", **keys), instance(tp, decode, "decode", **keys)]


def cluster(first: Any, second: Any, *whens: Any, **more: Any) -> dict[str, Any]:
    """Two layouts that alternate whenever the next trigger is met."""
    names = ["second", "first"] * len(whens)
    switch = [{"to": name, "when": when} for name, when in zip(names, whens, strict=False)]
    return {**LINKS, "layouts": {"first": first, "second": second}, "switch": switch, **more}


def pinned(layout: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The layout alone, as nodes."""
    instances = [
        {key: value for key, value in one.items() if key != "count"}
        for one in layout
        for _ in range(one["count"])
    ]
    return {**LINKS, "nodes": [{"instances": instances}], **more}


def run(fields: dict[str, Any], load: Any = LOAD, **options: Any) -> llmsim.Result:
    return llmsim.run(fields, load, cost_source="roofline", **options)


LAYOUTS = {
    "colocated": [instance(2, 2)],
    "one for two": apart(1, 3),
    "three for one": apart(3, 1),
    "wide": apart(1, 1, tp=2),
}
PAIRS = [
    ("one for two", "three for one"),
    ("colocated", "wide"),
    ("wide", "colocated"),
    ("one for two", "wide"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_trigger_that_is_never_met_changes_nothing(first: str, second: str, mode: str) -> None:
    how = {"kv_transfer_mode": mode}
    layouts = LAYOUTS[first], LAYOUTS[second]
    beside = run(cluster(*layouts, {"at_s": 1e5}, **how))
    alone = run(pinned(LAYOUTS[first], **how))
    ours = beside.requests.drop(columns="reconfigure_ps")
    assert ours.equals(alone.requests[ours.columns])
    assert len(ours.columns) == len(alone.requests.columns)
    assert beside.steps.equals(alone.steps) and beside.series.equals(alone.series)
    same = alone.summary.keys() - {"notes", "blame", "workload"}
    assert all(alone.summary[key] == beside.summary[key] for key in same)


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
def test_a_switch_at_the_start_is_the_second_layout_after_its_cost(
    first: str, second: str, transfer: str
) -> None:
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(12)]
    how = {"kv_transfer": transfer}
    switched = run(cluster(LAYOUTS[first], LAYOUTS[second], {"at_s": 0}, **how), burst)
    [row] = switched.summary["reconfigurations"]
    total_ps = round(row["opened_s"] * 1e12)
    after = run(pinned(LAYOUTS[second], **how), burst)
    for name in ("scheduled_ps", "first_token_ps", "finish_ps"):
        assert (switched.requests[name] - total_ps).equals(after.requests[name])
    assert (switched.requests["reconfigure_ps"] == total_ps).all()
    if "kv_transfer_bytes" in after.requests:
        assert switched.requests["kv_transfer_bytes"].equals(after.requests["kv_transfer_bytes"])


def slow(first: Any, second: Any, at_s: float, kv: str, **more: Any) -> dict[str, Any]:
    """KV of 1,000 tokens takes 131 ms from instance to instance."""
    fields = cluster(first, second, {"at_s": at_s}, reconfiguration={"kv": kv, "fixed_s": 1.0})
    return {**fields, "link_bw": [450, 1, 1], **more}


@pytest.mark.parametrize("kv", ["move", "recompute", "drop"])
def test_kv_that_is_still_moving(kv: str) -> None:
    """The drain lasts until the KV of a prompt of 1,000 tokens has landed; then it lies where
    answers are given, and goes on in a group that does both.
    """
    prompt = [llmsim.Request(0.0, 1000, 50)]
    alone = run({**pinned(apart(1, 1)), "link_bw": [450, 1, 1]}, prompt).requests.iloc[0]
    seconds = 1000 * TOKEN_BYTES / 1e9
    assert alone["kv_landed_ps"] - alone["prefill_end_ps"] >= round(seconds * 1e12)
    at_s = (alone["prefill_end_ps"] + 20e9) / 1e12
    result = run(slow(apart(1, 1), [instance(1, 2)], at_s, kv), prompt)
    [row] = result.summary["reconfigurations"]
    drained_ps = round((row["asked_s"] + row["drain_s"]) * 1e12)
    assert drained_ps == alone["kv_landed_ps"] and row["requests"] == 1
    assert row["kv_tokens"] == 1000
    request = result.requests.iloc[0]
    assert request["emitted_tokens"] == 50
    scheduled = result.groups["scheduled_tokens"].tolist()
    assert scheduled[:2] == [1000, 0] and sum(scheduled[2:]) == (50 if kv == "move" else 1049)
    links = result._results.links
    assert max(links["bytes"]) == 1000 * TOKEN_BYTES


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("kv", ["move", "recompute", "drop"])
def test_hand_overs_that_wait_for_blocks(kv: str, mode: str) -> None:
    """The decode instance holds one request; those behind it have been prefilled (pull) or wait for
    blocks there (push), and begin again, or go on, when roles have changed.
    """
    decode = instance(1, 1, "decode", num_gpu_blocks_override=80, max_model_len=1200)
    load = [llmsim.Request(0.0, 900, 200) for _ in range(4)]
    fields = slow([instance(1, 1, "prefill"), decode], [decode, instance(1, 1, "prefill")], 0.5, kv)
    fields["kv_transfer_mode"] = mode
    result = run(fields, load, check_every_step=True)
    assert set(result.summary["invariants"].values()) == {"ok"}
    assert result.requests["emitted_tokens"].tolist() == [200] * 4
    [row] = result.summary["reconfigurations"]
    assert row["requests"] == 4 and row["kv_tokens"] >= (3600 if mode == "pull" else 900)
    prompts = result.groups["scheduled_tokens"][3]
    if kv == "move" and mode == "pull":
        assert prompts == 0
    elif kv == "drop":
        assert prompts == 3600


@settings(max_examples=40, deadline=None)
@given(
    whens=st.lists(WHENS, min_size=1, max_size=4),
    names=st.sampled_from([*PAIRS, *((b, a) for a, b in PAIRS)]),
    kv=st.sampled_from(["move", "recompute", "drop"]),
    blocks=st.sampled_from([80, 140, 2000]),
    how=st.sampled_from([("pull", "whole"), ("push", "whole"), ("push", "layerwise")]),
    sessions=st.booleans(), timeout=st.booleans(), caching=st.booleans(),
    depth=st.booleans(), slow_links=st.booleans(),
    policy=st.sampled_from([{}, {"scheduling_policy": "h2q_br:L=100,C=400,B=2"},
                            {"scheduler": "mlfq"}, {"scheduler": "sarathi"}]),
)  # fmt: skip
def test_nothing_is_lost(
    whens: Any, names: Any, kv: str, blocks: int, how: Any, sessions: bool, timeout: bool,
    caching: bool, depth: bool, slow_links: bool, policy: Any,
) -> None:  # fmt: skip
    """Requests lose their blocks, give up, and belong to sessions; every step is checked."""
    small = {"num_gpu_blocks_override": blocks, "max_model_len": 1200}
    layouts = [[{**one, **small} for one in LAYOUTS[name]] for name in names]
    fields = cluster(*layouts, *whens, reconfiguration={"kv": kv, "process_s": 0.05})
    fields |= {"kv_transfer_mode": how[0], "kv_transfer": how[1]}
    if slow_links:
        fields["link_bw"] = [450, 1, 1]
    options = {"enable_prefix_caching": caching, "async_scheduling": depth} if not policy else {}
    patience = {"request_timeout": 0.4} if timeout else {}
    load = SESSIONS if sessions else LOAD
    result = run(fields, load, check_every_step=True, **options, **policy, **patience)
    assert set(result.summary["invariants"].values()) == {"ok"}
    if not timeout:
        assert result.requests["finish_ps"].notna().all()


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"layouts": {"a": [instance(1, 2, "decode")]}}, 'no instance of meta-llama/Llama-3.1-8B has'),
    ({"node": {"devices": 0}}, "node.devices is 0"),
    ({"node": {"gpus": 4}}, "gpus"),
    ({"layouts": {"a": apart(8, 8)}}, "node is missing; layouts of 16 devices with prefill and"),
    (
        {"layouts": {"a": [instance(1, 1), instance(1, 1, topology_group="x")]}},
        "layouts.a[1].topology_group is given, but instances of layouts take the devices",
    ),
    (
        {"layouts": {"a": apart(1, 1), "b": [{**instance(1, 2), "model_name": "Qwen/Qwen3-8B"}]}},
        "layouts.b serves Qwen/Qwen3-8B, but a serves meta-llama/Llama-3.1-8B",
    ),
    (
        {"kv_transfer": "layerwise", "kv_transfer_mode": "pull", "layouts": {"a": apart(1, 1)}},
        "a decode instance that pulls",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    assert_refused({**LINKS, "layouts": {"a": apart(1, 1)}, **change}, LOAD, said, tmp_path, capsys)
