"""Energy and graphs of runs that switch layouts."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from layout_files import LINKS
from test_switches import LOAD, cluster, instance, pinned, run

import llmsim
from llmsim.cli import main
from llmsim.config.errors import InputError

NPU = {"idle_power": 25, "standby_power": 115, "active_power": 300, "standby_duration": 0.01}
POWER = {
    "base_node_power": 60,
    "npu": {"H100": {**NPU, "memory_energy_per_bit": 4}},
    "link": {"num_links": 4, "idle_power": 5, "energy_per_bit": 3},
    "nic": {"num_nics": 1, "idle_power": 20, "energy_per_bit": 2},
}
NODE = {"devices": 4, "power": POWER, "price_per_hour": 1.5}
CONSTANT_W = 60 + 4 * 5 + 20
SHORT_ANSWERS = "synthetic:n=40,rate=200,input=lognormal:300,output=lognormal:15,seed=1"
"""Of a few dozen steps on either side of a switch at 0.1 s: the graph of each has over a thousand
nodes.
"""


def powered(count: int, tp: int) -> dict[str, Any]:
    fields = pinned(count, tp)
    more = {"power": POWER, "price_per_hour": 1.5}
    return {**fields, "nodes": [{**fields["nodes"][0], **more}]}


@pytest.mark.parametrize("when", [None, {"active_share_below": 1e-6}])
def test_without_a_switch_energy_and_cost_are_those_of_the_layout_alone(when: Any) -> None:
    alone, beside = run(powered(4, 1)), run(cluster(when, node=NODE))
    for key in ("energy", "cost"):
        assert beside.summary[key] == alone.summary[key], key
    assert alone.summary["energy"]["total_j"] > 0


def test_a_switch_at_the_start_costs_its_time_and_its_bytes() -> None:
    """All four devices work while they are loaded, and copy what they keep: two passes of their
    memory.
    """
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(30)]
    cost = {"process_s": 1.5, "weights": "links"}
    switched = run(cluster({"at_s": 0}, reconfiguration=cost, node=NODE), burst)
    pinned_run = run(powered(1, 4), burst, steps=True)
    after = pinned_run.summary["energy"]
    [row] = switched.summary["reconfigurations"]
    energy = switched.summary["energy"]
    *before, wide = energy["groups"]
    assert [one["total_j"] for one in before] == [0] * 4
    took_s = row["weights_s"] + row["process_s"]
    copied = 2 * row["weights_kept_bytes"]
    [alone] = after["groups"]
    assert wide["memory_bytes"] - alone["memory_bytes"] == copied
    assert wide["active_s"] - alone["active_s"] == pytest.approx(took_s, rel=1e-12)
    first_s = pinned_run.steps["start_ps"].min() / 1e12  # in standby behind the load, else idle
    assert 0 < first_s < NPU["standby_duration"]
    more_j = (4 * 300 + CONSTANT_W) * took_s + copied * 8 * 4e-12 + 4 * (115 - 25) * first_s
    assert energy["total_j"] - after["total_j"] == pytest.approx(more_j, rel=1e-9)


def test_bytes_of_moved_kv_and_weights_by_hand() -> None:
    """One request's KV leaves the one device that has it: three quarters of it. Back to four
    copies, each device gets three quarters of the weights over links.
    """
    load = [llmsim.Request(0.0, 1000, 400)]
    fields = cluster({"at_s": 0.5}, reconfiguration={"kv": "move"}, node=NODE)
    fields["switch"].append({"to": "many", "when": {"at_s": 1.0}})
    switched = run(fields, load)
    there, back = switched.summary["reconfigurations"]
    groups = switched.summary["energy"]["groups"]
    assert len(groups) == 9 and there["kv_bytes"] > 0
    sent = [group["link_bytes"] for group in groups]
    assert sum(sent[:4]) == there["kv_bytes"] * 3 // 4
    assert sent[4] > back["kv_bytes"] * 3 // 4  # collectives of its steps are among them
    assert sum(sent[5:]) == back["weights_links_bytes"] > 0


@pytest.mark.parametrize("weights", ["links", "host", "cached"])
@pytest.mark.parametrize("kv", ["move", "recompute", "drop"])
def test_devices_belong_to_one_layout_at_a_time(weights: str, kv: str) -> None:
    cost = {"kv": kv, "weights": weights, "process_s": 0.05}
    fields = cluster({"at_s": 0.05}, reconfiguration=cost, node={**NODE, "devices": 2})
    fields["switch"] += [
        {"to": "many", "when": {"at_s": 0.2}},
        {"to": "wide", "when": {"active_share_below": 0.5}},
    ]
    fields["layouts"]["wide"] = [instance(2, 2)]
    result = run(fields)
    assert set(result.summary["invariants"].values()) == {"ok"}
    energy = result.summary["energy"]
    groups = energy["groups"]
    watts = {"active": 300, "standby": 115, "idle": 25}
    device_s = sum(
        group[f"{state}_j"] / drawn for group in groups for state, drawn in watts.items()
    )
    assert device_s == pytest.approx(4 * energy["window_s"], rel=1e-9)
    assert len(groups) == 4 + 2 + 4 + 2
    loaded = [group["host_bytes"] for group in groups[4:]]
    assert all(loaded) if weights == "host" else not any(loaded)


def test_a_device_without_power_figures_is_refused() -> None:
    node = {"power": {"base_node_power": 60, "npu": {"H200": NPU}}}
    with pytest.raises(InputError, match=r'node.power.npu has no "H100"'):
        run(cluster(node=node))


def graph_folder(
    fields: dict[str, Any], folder: Path, *more: str, load: str = LOAD
) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    path = folder.with_suffix(".json")
    path.write_text(json.dumps(fields), encoding="utf-8")
    said = ["run", "--cluster-config", str(path), "--dataset", load, "--cost-source", "roofline"]
    assert main([*said, "--graphs", f"{folder}{':' if more else ''}{','.join(more)}"]) == 0
    rows: list[dict[str, Any]] = pq.read_table(folder / "index.parquet").to_pylist()
    return rows


def test_graphs_without_a_switch_are_those_of_the_layout_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = graph_folder(powered(4, 1), tmp_path / "alone", "every=9")
    beside = graph_folder(cluster({"at_s": 1e5}, node=NODE), tmp_path / "beside", "every=9")
    assert beside == alone
    for row in alone:
        texts = [(tmp_path / name / row["file"]).read_bytes() for name in ("alone", "beside")]
        assert texts[0] == texts[1]


def test_every_step_of_every_layout_has_a_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = cluster({"at_s": 0.1}, node=NODE, reconfiguration={"kv": "recompute"})
    rows = graph_folder(fields, tmp_path / "graphs", load=SHORT_ANSWERS)
    result = run(fields, SHORT_ANSWERS, steps=True)
    of_groups = Counter(row["group"] for row in rows)
    assert of_groups.keys() == {0, 1, 2, 3, 4} and min(of_groups.values()) > 5
    steps = result.steps.sort_values(["group", "start_ps"])
    ours = sorted((row["group"], row["start_ps"], row["end_ps"]) for row in rows)
    assert ours == list(zip(steps["group"], steps["start_ps"], steps["end_ps"], strict=True))
    assert all(row["graph_ps"] == row["end_ps"] - row["start_ps"] for row in rows)
    for group in result.summary["energy"]["groups"][:4]:
        drawn = sum(int(row["energy_aj"]) for row in rows if row["group"] == group["group"])
        assert drawn / 1e18 == pytest.approx(group["active_j"] + group["traffic_j"], rel=1e-9)


def test_steps_behind_a_switch_at_the_start_have_the_graphs_of_the_second_layout(
    tmp_path: Path,
) -> None:
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(30)]
    switched, after = run(cluster({"at_s": 0}), burst), run(pinned(1, 4), burst)
    for step in (0, 5, 40):
        ours, theirs = switched.graph(4, step), after.graph(0, step)
        assert len(ours) == len(theirs) > 100
        pairs = zip(ours.nodes.values(), theirs.nodes.values(), strict=True)
        for one, other in pairs:
            assert one == {**other, "device_id": other["device_id"].replace("group0", "group4")}
        assert list(ours.edges) == list(theirs.edges)
    with pytest.raises(InputError, match="group is 5; it may be from 0 to 4"):
        switched.graph(5, 0)


def test_kv_between_roles_is_in_graphs_of_later_layouts() -> None:
    roles = {
        "link_bw": LINKS["link_bw"],
        "link_latency": LINKS["link_latency"],
        "kv_transfer": "layerwise",
        "layouts": {
            "both": [instance(2, 1)],
            "apart": [instance(1, 1, pd_type="prefill"), instance(1, 1, pd_type="decode")],
        },
        "switch": [{"to": "apart", "when": {"at_s": 0.01}}],
    }
    load = [llmsim.Request(0.2 * i, 400, 20) for i in range(4)]
    result = run(roles, load)
    kinds = {
        data["kind"] for step in range(4) for _, data in result.graph(2, step).nodes(data=True)
    }
    assert "kv_send" in kinds and set(result.summary["invariants"].values()) == {"ok"}


def test_a_group_that_never_comes_has_no_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(cluster({"at_s": 1e5})), encoding="utf-8")
    said = ["--cluster-config", str(path), "--dataset", LOAD, "--cost-source", "roofline"]
    assert main(["run", *said, "--graphs", f"{tmp_path / 'graphs'}:group=7"]) == 2
    assert "group is 7; the cluster has the groups 0 to 3" in capsys.readouterr().err
    assert main(["graph", "step", *said, "--group", "7", "-g", str(tmp_path / "s.json")]) == 2
    assert "group is 7; the run had the groups 0 to 3" in capsys.readouterr().err
