"""Power, cost and carbon through `llmsim run`: what the summary and the files say, and what is
refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from package import PRESETS

from llmsim.cli import main, run_main
from llmsim.lowering.energy.prices import listed_prices

ROOT = Path(__file__).resolve().parents[2]
SHEETS = PRESETS / "hardware"
TRACE = ROOT / "dataset" / "example_10.jsonl"
A6000 = {"idle_power": 25, "standby_power": 115, "active_power": 300, "standby_duration": 18}
POWER = {
    "base_node_power": 60,
    "npu": {"A6000": A6000},
    "cpu": {"idle_power": 10, "active_power": 200, "util": 0.15},
    "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
    "link": {"num_links": 1, "idle_power": 5, "energy_per_bit": 4.0},
    "nic": {"num_nics": 1, "idle_power": 20},
    "storage": {"num_devices": 2, "idle_power": 5},
}


def cluster(nodes: int = 1, **changes: Any) -> dict[str, Any]:
    instance = {
        "model_name": "meta-llama/Llama-3.1-8B",
        "hardware": "A6000",
        "npu_mem": {"mem_size": 40, "mem_bw": 768, "mem_latency": 0},
        "num_npus": 1,
        "pd_type": None,
    }
    memory = {"mem_size": 128, "mem_bw": 256, "mem_latency": 0}
    entries = [
        {"cpu_mem": memory, "instances": [dict(instance)], "power": json.loads(json.dumps(POWER))}
        for _ in range(nodes)
    ]
    return {"link_bw": 112, "link_latency": 0, "nodes": entries, **changes}


def summary(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    document: dict[str, Any],
    *options: object,
    dataset: Path | str = TRACE,
) -> dict[str, Any]:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    arguments = (
        "--cluster-config",
        path,
        "--dataset",
        dataset,
        "--cost-source",
        "roofline",
        "--json",
        *options,
    )
    capsys.readouterr()
    code = run_main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    if code == 2 and "does not run in this version" in captured.err:
        pytest.skip(captured.err.strip())
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


def test_the_parts_add_up_and_follow_from_the_definitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    found = summary(tmp_path, capsys, cluster(), "--run-dir", tmp_path / "r")
    energy = found["energy"]
    assert found["invariants"]["12 energy"] == "ok"
    assert sum(energy["components_j"].values()) == pytest.approx(energy["total_j"], rel=1e-9)
    length = energy["window_s"]
    group = energy["groups"][0]
    idle_s = length - group["active_s"] - group["standby_s"]
    states = 300 * group["active_s"] + 115 * group["standby_s"] + 25 * idle_s
    assert energy["components_j"]["accelerators"] == pytest.approx(states, rel=1e-9)
    assert energy["components_j"]["cpu"] == pytest.approx((10 + 190 * 0.15) * length, rel=1e-9)
    assert energy["components_j"]["dram"] == pytest.approx(4 * 2 * length, rel=1e-9)
    weights = next(
        line["bytes"] for line in found["kv_cache"][0]["ledger"] if line["label"] == "weights"
    )
    assert group["memory_bytes"] > -weights * found["steps"] * 0.9
    power = pq.read_table(tmp_path / "r" / "power.parquet").to_pydict()
    times = np.array(power["time_ps"])
    start = times[-1] - round(length * 1e12)
    watts = np.sum([power[name] for name in power if name.endswith("_w")], axis=0)
    assert watts @ np.diff([start, *times]) / 1e12 == pytest.approx(energy["total_j"], rel=1e-9)
    joules = pq.read_table(tmp_path / "r" / "requests.parquet")["energy_j"].to_numpy()
    assert joules.sum() + energy["unattributed_j"] == pytest.approx(energy["total_j"], rel=1e-9)


def test_a_node_without_power_is_null_and_the_others_keep_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster(2)
    del document["nodes"][0]["power"]
    found = summary(tmp_path, capsys, document)
    energy = found["energy"]
    assert energy["nodes"][0] is None and energy["groups"][0] is None
    assert energy["nodes"][1]["total_j"] == pytest.approx(energy["total_j"], rel=1e-12)
    assert any("node 0 has no power section" in note for note in found["notes"])
    del document["nodes"][1]["power"]
    without = summary(tmp_path, capsys, document)
    assert without["energy"] is None and without["invariants"]["12 energy"] == "ok"
    assert without["duration"] == found["duration"]


def test_a_missing_hardware_key_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster()
    document["nodes"][0]["power"]["npu"] = {"H100": A6000}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run_main(["--cluster-config", str(path), "--dataset", str(TRACE)]) == 2
    error = capsys.readouterr().err
    assert (
        'nodes[0].power.npu has no "A6000", the hardware of nodes[0].instances[0]; it has "H100"'
        in error
    )


def test_a_power_cap_costs_time_where_the_clock_limits_and_saves_power(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(
        '{"input_toks": 2000, "output_toks": 1, "arrival_time_ns": 0}\n', encoding="utf-8"
    )

    def capped(watts: float | None) -> dict[str, Any]:
        document = cluster()
        if watts is not None:
            document["nodes"][0]["power"]["npu"]["A6000"]["power_cap"] = watts
        return summary(tmp_path, capsys, document, dataset=long)

    free, same, slow = capped(None), capped(300), capped(150)
    assert same["mean_ttft_ms"] == free["mean_ttft_ms"]
    phi = (125 / 275) ** (1 / 3)
    step, slowed = (run["mean_ttft_ms"] - run["blame"]["api"]["mean_ms"] for run in (free, slow))
    assert 0.85 / phi < slowed / step <= 1 / phi + 1e-6  # nearly all of a long prefill is GEMMs
    group = slow["energy"]["groups"][0]
    assert group["active_j"] == pytest.approx(150 * group["active_s"])


def test_cost_and_carbon_and_their_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster(grid_gco2_per_kwh=400, electricity_price_per_kwh=0.2)
    document["nodes"][0]["price_per_hour"] = 0.5
    document["nodes"][0]["instances"][0]["price_per_device_hour"] = 1.5
    found = summary(tmp_path, capsys, document, "--run-dir", tmp_path / "a")
    cost, joules = found["cost"], found["energy"]["total_j"]
    assert cost["price_per_hour"] == 2.0
    assert cost["electricity"] == pytest.approx(joules / 3.6e6 * 0.2)
    assert cost["total"] == pytest.approx(2 * found["duration"] / 3600 + cost["electricity"])
    assert cost["per_million_output_tokens"] == pytest.approx(
        cost["total"] / found["total_output_tokens"] * 1e6
    )
    assert found["carbon"]["total_g"] == pytest.approx(joules / 3.6e6 * 400)
    document["nodes"][0]["instances"][0]["price_per_device_hour"] = 0.5
    summary(tmp_path, capsys, document, "--run-dir", tmp_path / "b")
    assert main(["cost", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    (_, cheap) = compared["runs"]
    assert cheap["spend"] == pytest.approx(2.0) and cheap["efficiency"] == pytest.approx(2.0)
    assert cheap["times within %"] == found["sources"]["expected_error_percent"]["most"]
    assert compared["notes"] == []
    assert cheap["tokens/s"] == found["total_token_throughput"]
    assert cheap["output tokens/s"] == found["output_throughput"] < cheap["tokens/s"]
    assert main(["cost", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    heading = capsys.readouterr().out.splitlines()[0]
    assert "| prompt + output tokens/s | output tokens/s | J/token (prompt + output) |" in heading


def test_a_run_without_a_finished_request_has_no_cost_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(tmp_path, capsys, cluster(), "--horizon", "0.000001")
    assert found["completed"] == 0
    file = tmp_path / "none.json"
    file.write_text(json.dumps(found))
    assert main(["cost", str(file), str(file)]) == 2
    assert "no request of the run finished, so it has no cost per token" in capsys.readouterr().err


def test_runs_that_should_not_be_compared_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary(tmp_path, capsys, cluster(), "--run-dir", tmp_path / "a")
    other = json.loads((tmp_path / "a" / "summary.json").read_text())
    other["workload"]["requests"] += 1
    other["sources"]["by_provenance"]["analytic"] = (
        0.5 - other["sources"]["by_provenance"]["analytic"] / 2
    )
    (tmp_path / "b.json").write_text(json.dumps(other))
    assert main(["cost", str(tmp_path / "a"), str(tmp_path / "b.json")]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note: ")]
    assert len(notes) == 2
    assert "another load (" in notes[0] and "from data sheets alone" in notes[1]


@pytest.mark.parametrize("nodes", [1, 2])
def test_handed_over_kv_pays_its_way(
    nodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    document = cluster(nodes)
    instances = [document["nodes"][index % nodes]["instances"] for index in range(2)]
    if nodes == 1:
        instances[0].append(dict(instances[0][0]))
    roles = [instance for node in document["nodes"] for instance in node["instances"]]
    roles[0]["pd_type"], roles[1]["pd_type"] = "prefill", "decode"
    for node in document["nodes"]:
        node["power"]["nic"]["energy_per_bit"] = 10
    found = summary(tmp_path, capsys, document, "--run-dir", tmp_path / "r")
    sent = pq.read_table(tmp_path / "r" / "requests.parquet")["kv_transfer_bytes"].to_numpy()
    moved = int(sent[sent > 0].sum())
    assert moved > 0
    prefill, decode = found["energy"]["groups"]
    if nodes == 1:
        assert (prefill["link_bytes"], decode["link_bytes"]) == (moved, 0)
    else:
        assert (prefill["nic_bytes"], decode["nic_bytes"]) == (moved, moved)
        assert prefill["traffic_j"] == pytest.approx(moved * 8 * 10e-12)
    assert found["invariants"]["12 energy"] == "ok"


def without_a_price() -> dict[str, Any]:
    document = cluster()
    document["nodes"][0]["instances"][0]["hardware"] = "RTX3090"
    document["nodes"][0]["power"]["npu"]["RTX3090"] = A6000
    return document


def test_no_price_is_no_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summary(tmp_path, capsys, without_a_price())["cost"] is None


def test_one_of_two_alike_without_a_price_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = without_a_price()
    instances = document["nodes"][0]["instances"]
    instances.append({**instances[0], "price_per_device_hour": 1.5})
    cost = summary(tmp_path, capsys, document)["cost"]
    assert cost["total"] is None and cost["without_price"] == ["RTX3090"]
    assert [(row["price_per_device_hour"], row["basis"]) for row in cost["groups"]] == [
        (None, None),
        (1.5, "cluster file"),
    ]


def test_every_listed_price_has_a_data_sheet_s_name_and_a_page() -> None:
    sheets = {
        json.loads(path.read_text(encoding="utf-8"))["name"] for path in SHEETS.glob("*.json")
    }
    for name, price in listed_prices().items():
        assert name in sheets, name
        assert price.basis in ("list", "quoted", "assumption")
        assert price.basis == "assumption" or any(
            mark in price.source for mark in (".ai/", ".io/", ".co/", ".com/", ".app")
        )


def test_a_price_that_is_not_its_seller_s_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster()
    document["nodes"][0]["instances"][0].update(hardware="TPU-v6e")
    document["nodes"][0]["power"]["npu"]["TPU-v6e"] = A6000
    found = summary(tmp_path, capsys, document)
    assert found["cost"]["groups"][0]["basis"] == "quoted"
    assert any("price of TPU-v6e: 2.7 USD per hour is quoted" in note for note in found["notes"])
    listed = summary(tmp_path, capsys, cluster())
    assert (
        listed["cost"]["groups"][0]["basis"] == "list" and listed["cost"]["price_per_hour"] == 1.09
    )
    assert not any("price of" in note for note in listed["notes"])


def test_a_drafter_moves_its_weights_once_per_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against lookups that propose as many drafts, none of which holds: the difference is what the
    passes move.
    """
    moved = {}
    for method in ("ngram", "eagle"):
        config = {"method": method, "num_speculative_tokens": 3, "acceptance_rate": 0.0}
        trace = "synthetic:n=1,rate=1,input=fixed:200,output=fixed:41,seed=1"
        options = (
            "--speculative-config",
            json.dumps(config),
            "--no-async-scheduling",
            "--max-model-len",
            4096,
        )
        found = summary(tmp_path, capsys, cluster(), *options, dataset=trace)
        assert set(found["invariants"].values()) == {"ok"}
        assert found["speculation"]["verifications"] == 40
        moved[method] = sum(group["memory_bytes"] for group in found["energy"]["groups"])
    hidden, kv, mlp, vocabulary = 4096, 2 * 1024, 14336, 128256
    layer = 2 * (hidden * (hidden + kv) + hidden * hidden + 3 * hidden * mlp)
    weights = layer + 2 * (2 * hidden * hidden + hidden * vocabulary)
    passes = 3 * 41  # behind the prompt and behind every verification
    extra = moved["eagle"] - moved["ngram"]
    assert passes * weights <= extra <= 1.1 * passes * weights


def test_an_instance_over_nodes_draws_on_each_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster(2, link_bw=[112, 112, 25], link_latency=[0, 0, 0])
    document["nodes"][0]["instances"][0] |= {"num_npus": 2, "pp_size": 2, "nnodes": 2}
    document["nodes"][1]["instances"] = []
    energy = summary(tmp_path, capsys, document)["energy"]
    first, second = (one["components_j"]["accelerators"] for one in energy["nodes"])
    assert first == pytest.approx(second, rel=1e-12)
    (group,) = energy["groups"]
    assert group["nodes_j"] == {str(one["node"]): one["total_j"] for one in energy["nodes"]}
    assert group["total_j"] == pytest.approx(energy["total_j"], rel=1e-12)
    assert energy["unattributed_j"] == pytest.approx(0, abs=1e-9 * energy["total_j"])
