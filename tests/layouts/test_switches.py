"""Switches between layouts: what they cost, what becomes of requests, and that nothing is lost."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_files import assert_refused
from triggers import WHENS

import llmsim
from llmsim.config.errors import InputError, NotYetError

MODEL = "meta-llama/Llama-3.1-8B"
LOAD = "synthetic:n=40,rate=200,input=lognormal:300,output=lognormal:60,seed=1"
WEIGHTS = 16_060_522_496  # bytes of the model's parameters in bf16
DEVICE_BYTES_PER_S, LINK_BYTES_PER_S = 3_350_000_000_000, 450_000_000_000


def instance(count: int, tp: int, **more: Any) -> dict[str, Any]:
    return {"count": count, "model_name": MODEL, "hardware": "H100", "tp_size": tp, **more}


def cluster(when: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    switch = [] if when is None else [{"to": "wide", "when": when}]
    return {
        "link_bw": [450, 450, 50],
        "link_latency": [1000, 1000, 2000],
        "layouts": {"many": [instance(4, 1)], "wide": [instance(1, 4)]},
        "switch": switch,
        **more,
    }


def pinned(count: int, tp: int) -> dict[str, Any]:
    fields = cluster()
    for key in ("layouts", "switch"):
        del fields[key]
    one = instance(count, tp)
    del one["count"]
    return {**fields, "nodes": [{"instances": [one] * count}]}


def run(fields: dict[str, Any], load: Any = LOAD, **options: Any) -> llmsim.Result:
    return llmsim.run(fields, load, cost_source="roofline", **options)


@pytest.mark.parametrize("scheduler", ["vllm_v1", "sglang"])
@pytest.mark.parametrize("when", [None, {"at_s": 1e5}, {"active_share_below": 1e-6}])
def test_a_trigger_that_is_never_met_changes_nothing(when: Any, scheduler: str) -> None:
    alone = run(pinned(4, 1), scheduler=scheduler)
    beside = run(cluster(when), scheduler=scheduler)
    ours = beside.requests.drop(columns="reconfigure_ps")
    assert ours.equals(alone.requests[ours.columns]) and len(ours.columns) == len(
        alone.requests.columns
    )
    assert beside.steps.equals(alone.steps) and beside.series.equals(alone.series)
    assert beside.summary["reconfigurations"] == [] and "layouts" not in alone.summary
    assert beside.summary["layouts"][0]["groups"] == 4
    same = alone.summary.keys() - {"notes", "blame", "workload"}
    assert all(alone.summary[key] == beside.summary[key] for key in same)


def test_a_switch_at_the_start_is_the_second_layout_after_its_cost() -> None:
    cost = {"process_s": 1.5, "weights": "links"}
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(30)]
    switched = run(cluster({"at_s": 0}, reconfiguration=cost), burst)
    [row] = switched.summary["reconfigurations"]
    total_ps = round(row["opened_s"] * 1e12)
    assert row["drain_s"] == row["kv_s"] == 0 and row["held_requests"] in (0, 30)
    assert total_ps == round(1e12 * (row["weights_s"] + row["process_s"]))
    after = run(pinned(1, 4), burst)
    for name in ("scheduled_ps", "first_token_ps", "finish_ps"):
        assert (switched.requests[name] - total_ps).equals(after.requests[name])
    assert (switched.requests["reconfigure_ps"] == total_ps).all()


def test_the_cost_of_weights_by_hand() -> None:
    """A device of four copies holds everything: of its quarter nothing moves, and it is copied once
    inside its memory. Back, each device gets three quarters over its link, in one direction.
    """
    fields = cluster({"at_s": 0})
    fields["switch"].append({"to": "many", "when": {"at_s": 0.001}})
    there, back = run(fields).summary["reconfigurations"]
    assert (there["weights_links_bytes"], there["weights_network_bytes"]) == (0, 0)
    assert there["weights_kept_bytes"] == pytest.approx(WEIGHTS, rel=1e-4)
    assert there["weights_s"] == pytest.approx(2 * WEIGHTS / 4 / DEVICE_BYTES_PER_S, rel=1e-4)
    assert back["weights_links_bytes"] == pytest.approx(3 * WEIGHTS, rel=1e-4)
    port_s = 3 * WEIGHTS / 4 / LINK_BYTES_PER_S
    copy_s = 2 * WEIGHTS / 4 / DEVICE_BYTES_PER_S
    assert back["weights_s"] == pytest.approx(port_s + 1e-6 + copy_s, rel=1e-4)
    assert back["asked_s"] == there["opened_s"]


def test_norms_are_on_every_device_already() -> None:
    """Two norms of a layer and the last one, bf16, whole on each rank of each layout; of all other
    matrices one of four ranks has a quarter.
    """
    norms = (2 * 32 + 1) * 4096 * 2
    fields = cluster({"at_s": 0})
    fields["switch"].append({"to": "many", "when": {"at_s": 0.001}})
    there, back = run(fields).summary["reconfigurations"]
    assert there["weights_links_bytes"] == 0
    assert there["weights_kept_bytes"] == WEIGHTS - norms + 4 * norms
    assert back["weights_kept_bytes"] == WEIGHTS - norms + 4 * norms
    assert back["weights_links_bytes"] == 3 * (WEIGHTS - norms)


def test_projections_to_a_latent_are_on_every_device_already() -> None:
    """Of DeepSeek-V2-Lite each rank has 27 projections of 2,048 elements to 576, their norms of
    512, 55 norms and 26 routers of 64 experts; from four ranks to one the rest is fetched.
    """
    model = "deepseek-ai/DeepSeek-V2-Lite"
    whole = 2 * (27 * (2048 * 576 + 512) + 55 * 2048 + 26 * 64 * 2048)
    fields = cluster({"at_s": 0})
    for name, count, tp in (("many", 1, 4), ("wide", 4, 1)):
        fields["layouts"][name] = [{**instance(count, tp), "model_name": model}]
    [row] = run(fields).summary["reconfigurations"]
    moved, kept = row["weights_links_bytes"], row["weights_kept_bytes"]
    assert kept / 4 - moved / 4 / 3 == pytest.approx(whole, rel=1e-3)


def test_weights_from_the_host_and_kept_copies_by_hand() -> None:
    for how, seconds in (("host", WEIGHTS / 4 / 50e9), ("cached", 0.0)):
        [row] = run(cluster({"at_s": 0}, reconfiguration={"weights": how})).summary[
            "reconfigurations"
        ]
        assert row["weights_s"] == pytest.approx(seconds, rel=1e-4)
    alone, cached = (
        run(cluster(reconfiguration={"weights": how}))._results.groups[0].num_blocks
        for how in ("links", "cached")
    )
    block = 16 * 131072
    assert (alone - cached) * block == pytest.approx(WEIGHTS / 4, abs=2 * block)


@pytest.mark.parametrize("kv", ["recompute", "move", "drop"])
def test_a_request_in_the_middle_of_its_answer(kv: str) -> None:
    """One request of 1,000 + 200 tokens; the switch comes after some of its tokens."""
    load = [llmsim.Request(0.0, 1000, 200)]
    cost = {"kv": kv, "process_s": 0.25}
    alone = run(pinned(4, 1), load)
    result = run(cluster({"at_s": 0.5}, reconfiguration=cost), load)
    [row] = result.summary["reconfigurations"]
    [request] = result.requests.to_dict("records")
    assert request["emitted_tokens"] == 200 and row["requests"] == 1
    gaps = result._results.itl_of(0)
    assert len(gaps) == 199 and gaps.sum() == request["finish_ps"] - request["first_token_ps"]
    first, _ = result.summary["layouts"]
    told = first["generation_tokens"]
    if kv == "drop":
        assert request["first_token_ps"] > row["opened_s"] * 1e12 and told == 0
        return
    assert request["first_token_ps"] == alone.requests["first_token_ps"][0]
    assert 0 < told < 200 and row["kv_tokens"] == 1000 + told - 1
    assert gaps.max() == request["reconfigure_ps"] > 0.25e12
    scheduled = result.groups["scheduled_tokens"].sum()
    assert scheduled == 1199 + (row["kv_tokens"] if kv == "recompute" else 0)
    if kv == "move":  # the one device that has it keeps a quarter of 128 KiB per token
        assert row["kv_bytes"] == row["kv_tokens"] * 131072
        sent_s = row["kv_bytes"] * 3 / 4 / LINK_BYTES_PER_S
        assert row["kv_s"] == pytest.approx(sent_s + 1e-6, rel=1e-6)


def test_triggers_and_what_layouts_did() -> None:
    load = "synthetic:rollout,n=64,groups=8,output=fixed:40,tail=0.125,tail_output=fixed:400,seed=1"
    for when in ({"active_share_below": 0.2}, {"tail": {"finished_share_above": 0.8}}):
        result = run(cluster(when), load)
        [row] = result.summary["reconfigurations"]
        ended = (result.requests["finish_ps"] <= row["asked_s"] * 1e12 + 1).sum()
        assert ended == 56 and row["requests"] == 8
        many, wide = result.summary["layouts"]
        assert many["generation_tokens"] + wide["generation_tokens"] == 56 * 40 + 8 * 400
        drained_s = pytest.approx(row["asked_s"] + row["drain_s"], abs=1e-12)
        assert many["to_s"] == drained_s and wide["from_s"] == row["opened_s"]
        assert 0 < wide["busy"] <= 1
    few = {"max_num_seqs": 2}
    for when, waiting in (({"waiting_below": 9}, 9), ({"queue_empty": True}, 1)):
        fields = cluster(when, engine=few)
        [row] = run(fields, load).summary["reconfigurations"]
        assert row["requests"] - 8 < waiting


def test_layouts_that_alternate_have_groups_of_their_own() -> None:
    fields = cluster({"at_s": 0.05})
    fields["switch"] += [
        {"to": "many", "when": {"at_s": 0.1}},
        {"to": "wide", "when": {"active_share_below": 0.5}},
    ]
    result = run(fields)
    assert [row["layout"] for row in result.summary["layouts"]] == ["many", "wide"] * 2
    assert [row["first_group"] for row in result.summary["layouts"]] == [0, 4, 5, 9]
    assert len(result.groups) == 10 and set(result.summary["invariants"].values()) == {"ok"}
    assert result.summary["cost"]["price_per_hour"] == pytest.approx(4 * 3.99)


@settings(max_examples=40, deadline=None)
@given(
    whens=st.lists(WHENS, min_size=1, max_size=4),
    kv=st.sampled_from(["move", "recompute", "drop"]),
    blocks=st.sampled_from([80, 140, 2000]),
    sessions=st.booleans(), timeout=st.booleans(), caching=st.booleans(),
    depth=st.booleans(), router=st.sampled_from(["RR", "LOAD", "PREFIX"]),
)  # fmt: skip
def test_nothing_is_lost(
    whens: Any, kv: str, blocks: int, sessions: bool, timeout: bool, caching: bool,
    depth: bool, router: str,
) -> None:  # fmt: skip
    """Requests lose their blocks, give up, and belong to sessions; every step is checked."""
    small = {"num_gpu_blocks_override": blocks, "max_model_len": 1200}
    names = ["wide", "many"] * 2
    fields = cluster(reconfiguration={"kv": kv, "process_s": 0.05})
    fields["layouts"] = {
        "many": [instance(4, 1, **small)],
        "wide": [instance(2, 2, **small)],
    }
    fields["switch"] = [
        {"to": name, "when": when} for name, when in zip(names, whens, strict=False)
    ]
    load = "synthetic:n=30,rate=60,input=lognormal:200,output=lognormal:80,seed=2"
    if sessions:
        load = (
            "synthetic:agentic,n=8,rate=20,calls=4,system=64,prompt=50,tool=60,output=30,tool_ms=20"
        )
    result = run(
        fields, load, check_every_step=True, async_scheduling=depth,
        enable_prefix_caching=caching, request_routing_policy=router,
        **({"request_timeout": 0.4} if timeout else {}),
    )  # fmt: skip
    assert set(result.summary["invariants"].values()) == {"ok"}
    if not timeout:
        assert result.requests["finish_ps"].notna().all()


@settings(max_examples=20, deadline=None)
@given(
    whens=st.lists(WHENS, min_size=1, max_size=4), kv=st.sampled_from(["recompute", "drop"]),
    tokens=st.sampled_from([1300, 4000]), timeout=st.booleans(), overlap=st.booleans(),
)  # fmt: skip
def test_nothing_is_lost_by_sglang(
    whens: Any, kv: str, tokens: int, timeout: bool, overlap: bool
) -> None:
    """An engine that stops gives back the requests that an abort lets leave a step later."""
    small = {"num_gpu_blocks_override": tokens, "max_model_len": 1200}
    fields = cluster(reconfiguration={"kv": kv, "process_s": 0.05})
    fields["layouts"] = {"many": [instance(4, 1, **small)], "wide": [instance(2, 2, **small)]}
    fields["switch"] = [
        {"to": name, "when": when} for name, when in zip(["wide", "many"] * 2, whens, strict=False)
    ]
    result = run(
        fields, "synthetic:n=30,rate=60,input=lognormal:200,output=lognormal:80,seed=2",
        scheduler="sglang", check_every_step=True, sglang_overlap=overlap,
        **({"request_timeout": 0.4} if timeout else {}),
    )  # fmt: skip
    assert set(result.summary["invariants"].values()) == {"ok"}
    if not timeout:
        assert result.requests["finish_ps"].notna().all()
    with pytest.raises(NotYetError, match="sglang and KV that moves do not run"):
        run(fields | {"reconfiguration": {"kv": "move"}}, scheduler="sglang")


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"layouts": {}}, "layouts is empty; name at least one layout"),
    ({"layouts": 3}, "layouts is 3; expected"),
    ({"layouts": {"many": []}}, "layouts.many has no instances"),
    ({"layouts": {"a": [instance(1, 1)], "b": [instance(1, 2)]}}, "b has 2 devices, but a has 1"),
    (
        {"layouts": {"a": [instance(1, 1)], "b": [{**instance(1, 1), "hardware": "H200"}]}},
        "layouts.b has H100 and H200; layouts share equal devices",
    ),
    ({"layouts": {"a": [instance(0, 1)]}}, "layouts.a[0].count is 0"),
    ({"layouts": {"a": [instance(1, 1, pd_type="decode")]}}, "pd_type is \"decode\", but"),
    ({"layouts": {"a": [instance(1, 3)]}}, "tp"),
    ({"initial": "none"}, 'initial is "none", which is no layout; it may be many, wide'),
    ({"initial": 7}, "initial is 7"),
    ({"nodes": [{"instances": [instance(1, 1)]}]}, "nodes"),
    ({"switch": [{"to": "wide"}]}, "switch[0].when is missing"),
    ({"switch": [{"when": {"at_s": 1}}]}, "switch[0].to is missing"),
    ({"switch": [{"to": "x", "when": {"at_s": 1}}]}, 'switch[0].to is "x", which is no layout'),
    ({"switch": [{"to": "many", "when": {"at_s": 1}}]}, "which serves already at that point"),
    ({"switch": [{"to": "wide", "when": {}}]}, "gives nothing; give exactly one of"),
    (
        {"switch": [{"to": "wide", "when": {"at_s": 1, "waiting_below": 3}}]},
        "gives at_s and waiting_below; give exactly one of",
    ),
    ({"switch": [{"to": "wide", "when": {"at_s": -1}}]}, "switch[0].when.at_s is -1"),
    ({"switch": [{"to": "wide", "when": {"at_s": "soon"}}]}, "switch[0].when.at_s is"),
    ({"switch": [{"to": "wide", "when": {"active_share_below": 1}}]}, "active_share_below is 1"),
    ({"switch": [{"to": "wide", "when": {"waiting_below": 0}}]}, "waiting_below is 0"),
    ({"switch": [{"to": "wide", "when": {"queue_empty": False}}]}, "queue_empty is false"),
    ({"switch": [{"to": "wide", "when": {"tail": {}}}]}, "finished_share_above is missing"),
    (
        {"switch": [{"to": "wide", "when": {"tail": {"finished_share_above": 2}}}]},
        "finished_share_above is 2",
    ),
    ({"switch": [{"to": "wide", "when": {"never": 1}}]}, "never"),
    ({"reconfiguration": {"weights": "disk"}}, 'reconfiguration.weights is "disk"'),
    ({"reconfiguration": {"kv": "keep"}}, 'reconfiguration.kv is "keep"'),
    ({"reconfiguration": {"host_gb_per_s": 0}}, "reconfiguration.host_gb_per_s is 0"),
    ({"reconfiguration": {"process_s": -1}}, "reconfiguration.process_s is -1"),
    ({"reconfiguration": {"fixed_s": "long"}}, "reconfiguration.fixed_s is"),
    ({"reconfiguration": {"fixed_s": 1, "process_s": 2}}, "but fixed_s is the whole cost"),
    ({"reconfiguration": {"time": 1}}, "time"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    assert_refused(cluster() | change, LOAD, said, tmp_path, capsys)


def test_layout_keys_need_layouts() -> None:
    for key, value in (("initial", "a"), ("switch", [{"to": "a", "when": {"at_s": 1}}])):
        with pytest.raises(InputError, match=f"{key} is given, but the cluster has no layouts"):
            run({**pinned(1, 1), key: value})
    with pytest.raises(InputError, match="nodes is missing"):
        run({"link_bw": 1, "link_latency": 0})
