"""Switches of layouts with KV tiers below the devices, and over the routes of a topology."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_files import LINKS
from triggers import WHENS

import llmsim

MODEL = "meta-llama/Llama-3.1-8B"
WEIGHTS = 16_060_522_240
CHUNK = 256
HOST = {"cpu_mem": {"mem_size": 64, "mem_bw": 100, "mem_latency": 0}}
TIERS: dict[str, Any] = {"prefix_storage": "CPU", "kv_chunk_size": CHUNK}
PCIE_BYTES_PER_S = 31_500_000_000


def instance(count: int, tp: int, **keys: Any) -> dict[str, Any]:
    return {"count": count, "model_name": MODEL, "hardware": "H100", "tp_size": tp, **keys}


def cluster(*whens: dict[str, Any], **more: Any) -> dict[str, Any]:
    names = ["wide", "many"] * len(whens)
    return {
        **LINKS,
        "node": HOST,
        "layouts": {"many": [instance(4, 1)], "wide": [instance(2, 2)]},
        "switch": [{"to": to, "when": when} for to, when in zip(names, whens, strict=False)],
        **more,
    }


def run(fields: dict[str, Any], load: Any, **options: Any) -> llmsim.Result:
    return llmsim.run(fields, load, cost_source="roofline", **options)


@pytest.mark.parametrize("recall", ["sync", "async"])
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_in_shared_host_memory_outlives_the_switch(shared: bool, recall: str) -> None:
    """Whole chunks of prompt and answer are recalled; the rest is computed again."""
    load = [llmsim.Request(0.0, 1000, 200)]
    options = {**TIERS, "enable_prefix_sharing": shared, "kv_tier_recall": recall}
    result = run(cluster({"at_s": 0.5}), load, **options)
    [row] = result.summary["reconfigurations"]
    assert result.requests["emitted_tokens"].tolist() == [200] and row["kv_tokens"] > 1000
    recalled = row["kv_tokens"] // CHUNK * CHUNK if shared else 0
    assert result.groups["scheduled_tokens"].sum() == 1199 + row["kv_tokens"] - recalled
    pools = result._results.kv_tiers
    assert sum(pool["hit_tokens"] for pool in pools) == recalled
    assert set(result.summary["invariants"].values()) == {"ok"}


def test_a_trigger_that_is_never_met_changes_nothing() -> None:
    load = "synthetic:agentic,n=8,rate=20,calls=4,system=64,prompt=50,tool=60,output=30,seed=2"
    options = {**TIERS, "enable_prefix_sharing": True}
    beside = run(cluster({"at_s": 1e5}), load, **options)
    one = {key: value for key, value in instance(1, 1).items() if key != "count"}
    pinned = {**LINKS, "nodes": [{**HOST, "instances": [one] * 4}]}
    alone = run(pinned, load, **options)
    ours = beside.requests.drop(columns="reconfigure_ps")
    assert ours.equals(alone.requests[ours.columns])
    assert beside.steps.equals(alone.steps)
    assert beside.summary["kv_tiers"] == alone.summary["kv_tiers"]


@settings(max_examples=15, deadline=None)
@given(
    whens=st.lists(WHENS, min_size=1, max_size=3),
    kv=st.sampled_from(["move", "recompute", "drop"]),
    blocks=st.sampled_from([80, 140, 2000]),
    shared=st.booleans(), recall=st.sampled_from(["sync", "async"]),
    write=st.sampled_from(["write-through", "write-through-selective", "write-back"]),
    apart=st.booleans(), small=st.booleans(),
)  # fmt: skip
def test_nothing_is_lost(
    whens: Any, kv: str, blocks: int, shared: bool, recall: str, write: str, apart: bool,
    small: bool,
) -> None:  # fmt: skip
    """Every step is checked, with host memory for all KV or for a part."""
    keys = {"num_gpu_blocks_override": blocks, "max_model_len": 1200}
    wide = [instance(2, 2, **keys)]
    if apart:
        wide = [instance(1, 2, pd_type=role, **keys) for role in ("prefill", "decode")]
    fields = cluster(*whens, reconfiguration={"kv": kv, "process_s": 0.02})
    fields["layouts"] = {"many": [instance(4, 1, **keys)], "wide": wide}
    if small:
        fields["node"] = {"cpu_mem": {**HOST["cpu_mem"], "mem_size": 1}}
    load = "synthetic:agentic,n=8,rate=20,calls=4,system=64,prompt=50,tool=60,output=30,tool_ms=20"
    options = {**TIERS, "kv_chunk_size": 64, "kv_tier_recall": recall, "kv_tier_write": write}
    result = run(fields, load, check_every_step=True, enable_prefix_sharing=shared, **options)
    assert set(result.summary["invariants"].values()) == {"ok"}
    assert result.requests["finish_ps"].notna().all()


def test_weights_and_kv_take_the_routes_of_the_topology() -> None:
    """Two GPUs on one PCIe switch: what each lacks crosses its own port."""
    wide = {"layouts": {"many": [instance(2, 1)], "wide": [instance(1, 2)]}}
    fields = {**cluster({"at_s": 0.2}, {"at_s": 0.4}), **wide, "topology": "pcie_gen4_8"}
    fields["reconfiguration"] = {"kv": "move"}
    del fields["node"]
    load = [llmsim.Request(0.0, 1000, 400)]
    there, back = run(fields, load).summary["reconfigurations"]
    assert there["weights_links_bytes"] == 0
    assert back["weights_links_bytes"] == pytest.approx(WEIGHTS, rel=1e-4)
    moved_s = back["weights_s"] - there["weights_s"]
    assert moved_s == pytest.approx(WEIGHTS / 2 / PCIE_BYTES_PER_S, rel=0.01)
    # Half of the heads go to the other device, and come back.
    half_s = there["kv_tokens"] * 131072 / 2 / PCIE_BYTES_PER_S
    assert there["kv_s"] == pytest.approx(half_s, rel=0.01)


def test_layouts_on_a_topology_are_those_of_nodes_on_it() -> None:
    load = "synthetic:n=30,rate=60,input=lognormal:200,output=lognormal:80,seed=2"
    layouts = {"many": [instance(4, 2)], "wide": [instance(1, 8)]}
    fields = {**cluster({"at_s": 0}), "layouts": layouts, "topology": "pcie_gen4_8"}
    del fields["node"]
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(12)]
    switched = run(fields, burst)
    [row] = switched.summary["reconfigurations"]
    total_ps = round(row["opened_s"] * 1e12)
    one = {key: value for key, value in instance(1, 8).items() if key != "count"}
    wide = {**LINKS, "topology": "pcie_gen4_8", "nodes": [{"instances": [one]}]}
    after = run(wide, burst)
    for name in ("scheduled_ps", "first_token_ps", "finish_ps"):
        assert (switched.requests[name] - total_ps).equals(after.requests[name])
    fields["switch"] = [{"to": "wide", "when": {"at_s": 1e5}}]
    beside = run(fields, load)
    two = {**one, "tp_size": 2}
    alone = run({**wide, "nodes": [{"instances": [two] * 4}]}, load)
    ours = beside.requests.drop(columns="reconfigure_ps")
    assert ours.equals(alone.requests[ours.columns])
