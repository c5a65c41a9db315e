"""Layouts whose weights, attention or operators lie outside of the devices."""

import json
from pathlib import Path
from typing import Any

import pytest
from layout_files import assert_refused
from test_switches import LOAD, cluster, instance, pinned, run

import llmsim

MEMORY = {"mem_size": 512, "mem_bw": 300, "mem_latency": 100}
NODE = {
    "cpu_mem": {**MEMORY, "pim_config": "HBM2_1GB_2000_pim"},
    "cpu": {"hardware": "Xeon-8592+", "sockets": 2},
}
POOL = {"mem_size": 512, "mem_bw": 100, "mem_latency": 250, "num_devices": 2}
EMBEDDING, NORM = 128256 * 4096 * 2, 4096 * 2  # bytes
MATRICES = (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) * 2  # of a layer
KINDS: dict[str, dict[str, Any]] = {
    "weights in host memory": {"placement": {"default": {"weights": "cpu"}}},
    "some blocks in host memory": {"placement": {"blocks": [{"blocks": "0-7", "weights": "cpu"}]}},
    "weights in the pool": {
        "placement": {
            "default": {"weights": "cxl:0"},
            "blocks": [{"blocks": "4-9", "weights": "cxl:1"}],
        }
    },
    "attention in memory": {"enable_attn_offloading": True},
    "head on the processors": {"operator_devices": {"head": "cpu"}},
    "attention on the processors": {"operator_devices": {"attention": "cpu"}},
}


def offloaded(fields: dict[str, Any], keys: dict[str, Any], *names: str) -> dict[str, Any]:
    """The cluster with the keys at every instance, of these layouts or of its only node."""
    fields = json.loads(json.dumps(fields))
    if "placement" in keys and "cxl" in json.dumps(keys):
        fields["cxl_mem"] = POOL
    if "layouts" in fields:
        fields["node"] = {"devices": 4, **NODE}
        instances = [one for name in names for one in fields["layouts"][name]]
    else:
        fields["nodes"][0] |= NODE
        instances = fields["nodes"][0]["instances"]
    for one in instances:
        one |= keys
    return fields


@pytest.mark.parametrize("kind", KINDS)
def test_a_trigger_that_is_never_met_changes_nothing(kind: str) -> None:
    keys = KINDS[kind]
    alone = run(offloaded(pinned(4, 1), keys))
    beside = run(offloaded(cluster({"at_s": 1e5}), keys, "many", "wide"))
    ours = beside.requests.drop(columns="reconfigure_ps")
    assert ours.equals(alone.requests[ours.columns])
    assert beside.steps.equals(alone.steps) and beside.series.equals(alone.series)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [("wide",), ("many", "wide")], ids=["new", "both"])
def test_a_switch_at_the_start_is_the_second_layout_after_its_cost(
    kind: str, names: tuple[str, ...]
) -> None:
    """Also where only the new layout keeps something outside of the devices: its copies begin when
    it opens.
    """
    keys = KINDS[kind]
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(30)]
    fields = offloaded(cluster({"at_s": 0}, reconfiguration={"process_s": 1.5}), keys, *names)
    if names == ("wide",):  # neither layout's memories are those of the other
        fields["layouts"]["many"][0]["placement"] = {"layers": {"lm_head": {"weights": "cpu"}}}
    switched = run(fields, burst)
    [row] = switched.summary["reconfigurations"]
    total_ps = round(row["opened_s"] * 1e12)
    after = run(offloaded(pinned(1, 4), keys), burst)
    for name in ("scheduled_ps", "first_token_ps", "finish_ps"):
        assert (switched.requests[name] - total_ps).equals(after.requests[name])
    assert set(switched.summary["invariants"].values()) == {"ok"}


def test_weights_that_no_device_holds_come_from_the_host_by_hand() -> None:
    """Many keeps blocks 0 to 7 of 32 in host memory: each device of wide loads a quarter of them,
    and all of their norms, and keeps the rest. Back, a device lacks three quarters of the matrices
    that it is to hold, and gets them over its link; it has the norms.
    """
    keys = KINDS["some blocks in host memory"]
    cost = {"host_gb_per_s": 20}
    fields = offloaded(cluster({"at_s": 0}, reconfiguration=cost), keys, "many")
    fields["switch"].append({"to": "many", "when": {"at_s": 0.5}})
    there, back = run(fields).summary["reconfigurations"]
    lacks = 8 * (MATRICES // 4 + 2 * NORM)
    keeps = 24 * (MATRICES // 4 + 2 * NORM) + 2 * EMBEDDING // 4 + NORM
    assert there["weights_host_bytes"] == 4 * lacks
    assert there["weights_kept_bytes"] == 4 * keeps
    assert there["weights_links_bytes"] == there["weights_network_bytes"] == 0
    copy_s = 2 * keeps / 3.35e12
    assert there["weights_s"] == pytest.approx(lacks / 20e9 + copy_s, rel=1e-9)
    assert back["weights_host_bytes"] == 0
    assert back["weights_links_bytes"] == 3 * (24 * MATRICES + 2 * EMBEDDING)


def test_nothing_moves_between_layouts_that_keep_all_weights_in_host_memory() -> None:
    keys = KINDS["weights in host memory"]
    fields = offloaded(cluster({"at_s": 0.2}), keys, "many", "wide")
    for how in ("links", "host", "cached"):
        [row] = run({**fields, "reconfiguration": {"weights": how}}).summary["reconfigurations"]
        assert row["weights_s"] == row["weights_kept_bytes"] == row["weights_host_bytes"] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv", ["move", "recompute", "drop"])
def test_nothing_is_lost(kind: str, kv: str) -> None:
    keys = KINDS[kind]
    attends_elsewhere = kind.startswith("attention")
    if kv == "move" and attends_elsewhere:
        pytest.skip("refused")
    fields = offloaded(cluster({"at_s": 0.4}, reconfiguration={"kv": kv}), keys, "many", "wide")
    fields["switch"] += [
        {"to": "many", "when": {"active_share_below": 0.6}},
        {"to": "wide", "when": {"active_share_below": 0.2}},
    ]
    result = run(fields, check_every_step=True)
    assert set(result.summary["invariants"].values()) == {"ok"}
    assert len(result.summary["reconfigurations"]) >= 2
    assert (result.requests["status"] == "finished").all()


def test_tiers_and_weights_in_host_memory_share_it() -> None:
    keys = KINDS["some blocks in host memory"]
    options: dict[str, Any] = {
        "prefix_storage": "CPU",
        "enable_prefix_caching": True,
        "enable_prefix_sharing": True,
    }
    load = "synthetic:rollout,n=40,groups=4,output=fixed:60,tail=0.1,tail_output=fixed:300,seed=1"
    alone = run(offloaded(pinned(4, 1), keys), load, **options)
    beside = run(offloaded(cluster({"at_s": 1e5}), keys, "many", "wide"), load, **options)
    ours = beside.requests.drop(columns="reconfigure_ps")
    assert ours.equals(alone.requests[ours.columns])
    switched = run(offloaded(cluster({"at_s": 0.3}), keys, "many", "wide"), load, **options)
    assert set(switched.summary["invariants"].values()) == {"ok"}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("attention in memory", "KV that moves and attention outside of the devices"),
        ("attention on the processors", "KV that moves and attention outside of the devices"),
    ],
)
def test_kv_that_no_device_has_does_not_move(
    kind: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = {"kv": "move"}
    fields = offloaded(cluster({"at_s": 0}, reconfiguration=cost), KINDS[kind], "many", "wide")
    assert_refused(fields, LOAD, said, tmp_path, capsys)


def test_an_instance_on_several_hosts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = offloaded(cluster({"at_s": 0}), KINDS["weights in host memory"], "wide")
    fields["node"]["devices"] = 2
    fields["layouts"]["many"] = [instance(4, 1)]
    said = "layouts.wide[0] has weights or operators outside of its devices, 0 to 3"
    assert_refused(fields, LOAD, said, tmp_path, capsys)


def test_pool_weights_of_one_layout_beside_tiers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = offloaded(cluster({"at_s": 0}), KINDS["weights in the pool"], "wide")
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    from llmsim.cli import main

    options = ["--prefix-storage", "CXL", "--enable-prefix-caching"]
    assert main(["run", "--cluster-config", str(path), "--dataset", LOAD, *options]) == 2
    assert "weights that only some layouts keep in the pool" in capsys.readouterr().err
