"""Layouts that have attention and FFN on different devices, before a switch or after one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_files import LINKS
from triggers import WHENS

import llmsim

DENSE, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
LOAD = "synthetic:n=30,rate=60,input=lognormal:200,output=lognormal:80,seed=2"
FFN_BYTES = 32 * 3 * 4096 * 14336 * 2
WEIGHTS_BYTES = 16_060_522_240
DEVICE_BYTES_PER_S, LINK_BYTES_PER_S = 3_350_000_000_000, 450_000_000_000


def instance(model: str, count: int = 1, **keys: Any) -> dict[str, Any]:
    return {"count": count, "model_name": model, "hardware": "H100", **keys}


def apart(model: str, dp: int, ffn_tp: int, ffn_ep: int, **keys: Any) -> list[dict[str, Any]]:
    """Attention on `dp` devices, FFN on `ffn_tp` x `ffn_ep`."""
    group = {"afd_group": "layers", **keys}
    return [
        instance(model, pd_type="attention", attn_tp_size=1, attn_dp_size=dp, **group),
        instance(model, pd_type="ffn", ffn_tp_size=ffn_tp, ffn_ep_size=ffn_ep, **group),
    ]


def cluster(first: Any, second: Any, *whens: Any, **more: Any) -> dict[str, Any]:
    """Two layouts that alternate whenever the next trigger is met."""
    names = ["second", "first"] * len(whens)
    switch = [{"to": name, "when": when} for name, when in zip(names, whens, strict=False)]
    return {**LINKS, "layouts": {"first": first, "second": second}, "switch": switch, **more}


def run(fields: dict[str, Any], load: Any = LOAD, **options: Any) -> llmsim.Result:
    return llmsim.run(fields, load, cost_source="roofline", **options)


def test_weights_by_hand() -> None:
    """Each of two devices that hold everything keeps one side; back, each lacks the other side."""
    fields = cluster([instance(DENSE, 2)], apart(DENSE, 1, 1, 1), {"at_s": 0}, {"at_s": 0.001})
    there, back = run(fields).summary["reconfigurations"]
    assert there["weights_links_bytes"] == there["weights_network_bytes"] == 0
    assert there["weights_kept_bytes"] == pytest.approx(WEIGHTS_BYTES, rel=1e-4)
    assert there["weights_s"] == pytest.approx(2 * FFN_BYTES / DEVICE_BYTES_PER_S, rel=1e-4)
    assert back["weights_links_bytes"] == pytest.approx(WEIGHTS_BYTES, rel=1e-4)
    copied_s = 2 * FFN_BYTES / DEVICE_BYTES_PER_S
    assert back["weights_s"] == pytest.approx(FFN_BYTES / LINK_BYTES_PER_S + 1e-6 + copied_s, 1e-4)


def test_a_switch_at_the_start_is_the_second_layout_after_its_cost() -> None:
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(12)]
    sides = apart(MOE, 2, 1, 2)
    switched = run(cluster([instance(MOE, 2, tp_size=2)], sides, {"at_s": 0}), burst)
    [row] = switched.summary["reconfigurations"]
    total_ps = round(row["opened_s"] * 1e12)
    for one in sides:
        del one["count"]
    pinned = run({**LINKS, "nodes": [{"instances": sides}]}, burst)
    for name in ("scheduled_ps", "first_token_ps", "finish_ps"):
        assert (switched.requests[name] - total_ps).equals(pinned.requests[name])
    assert (switched.requests["m2n_ps"]).equals(pinned.requests["m2n_ps"])


def test_a_trigger_that_is_never_met_changes_nothing() -> None:
    sides = apart(DENSE, 2, 2, 1)
    beside = run(cluster(sides, [instance(DENSE, 2, tp_size=2)], {"at_s": 1e5}))
    for one in sides:
        del one["count"]
    alone = run({**LINKS, "nodes": [{"instances": sides}]})
    ours = beside.requests.drop(columns="reconfigure_ps")
    assert ours.equals(alone.requests[ours.columns])
    assert beside.steps.equals(alone.steps) and beside.series.equals(alone.series)
    assert beside.summary["afd"] == alone.summary["afd"]


def test_each_time_that_it_serves_has_a_balance_of_its_own() -> None:
    whens = ({"at_s": 0.1}, {"at_s": 0.3}, {"at_s": 0.5})
    fields = cluster([instance(DENSE, 2, tp_size=2)], apart(DENSE, 2, 2, 1), *whens)
    result = run(fields)
    assert [row["layout"] for row in result.summary["layouts"]] == ["first", "second"] * 2
    assert [row["attention_groups"] for row in result.summary["afd"]] == [[2, 3], [7, 8]]
    assert [row["ffn_groups"] for row in result.summary["afd"]] == [[4], [9]]
    assert all(0 < row["m2n"] < 1 for row in result.summary["afd"])
    # Members of a lock-step group agree on its end some steps after the last token of the run.
    assert all(0 < row["busy"] <= 1 for row in result.summary["layouts"][:-1])


@settings(max_examples=20, deadline=None)
@given(
    whens=st.lists(WHENS, min_size=1, max_size=4),
    kv=st.sampled_from(["move", "recompute", "drop"]),
    blocks=st.sampled_from([80, 140, 2000]),
    lanes=st.integers(1, 3), moe=st.booleans(), shared_out=st.booleans(),
    first=st.booleans(), sessions=st.booleans(), timeout=st.booleans(), depth=st.booleans(),
)  # fmt: skip
def test_nothing_is_lost(
    whens: Any, kv: str, blocks: int, lanes: int, moe: bool, shared_out: bool,
    first: bool, sessions: bool, timeout: bool, depth: bool,
) -> None:  # fmt: skip
    """Requests lose their blocks, give up, and belong to sessions; every step is checked."""
    model = MOE if moe else DENSE
    small = {"num_gpu_blocks_override": blocks, "max_model_len": 1200}
    sides = apart(model, 2, 1, 2, **small) if moe else apart(model, 2, 2, 1, **small)
    if shared_out:
        sides[0] |= {"attn_tp_size": 2, "attn_dp_size": 1, "enable_sequence_parallelism": True}
    sides[0]["afd_micro_batches"] = lanes
    layouts = [[instance(model, 2, tp_size=2, **small)], sides]
    fields = cluster(*(layouts[::-1] if first else layouts), *whens)
    fields["reconfiguration"] = {"kv": kv, "process_s": 0.05}
    load = LOAD
    if sessions:
        load = (
            "synthetic:agentic,n=8,rate=20,calls=4,system=64,prompt=50,tool=60,output=30,tool_ms=20"
        )
    options = {"request_timeout": 0.4} if timeout else {}
    result = run(fields, load, check_every_step=True, async_scheduling=depth, **options)
    assert set(result.summary["invariants"].values()) == {"ok"}
    if not timeout:
        assert result.requests["finish_ps"].notna().all()
