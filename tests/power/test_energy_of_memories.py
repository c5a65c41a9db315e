"""Energy of memories beside the devices, through `llmsim run`: tiers of KV, copies, memory that
computes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main
from llmsim.costs.sources.pim_part import load_pim_part, pim_attention

KV_BYTES = 131072  # Llama-3.1-8B in 16 bit: of one token in all 32 layers
LAYERS = 32
PJ = 8e-12  # J of a byte at 1 pJ/bit
PREFIXES = (
    "synthetic:n=40,rate=20,input=lognormal:200,output=lognormal:30,prefixes=10:tokens=2048,seed=1"
)
DRIVE = {
    "mem_size": 384,
    "read_bw": 14,
    "write_bw": 6,
    "read_latency": 80000,
    "write_latency": 10000,
}


def power() -> dict[str, Any]:
    states = {"idle_power": 25, "standby_power": 75, "active_power": 300, "standby_duration": 18}
    return {
        "base_node_power": 60,
        "npu": {"A6000": {**states, "memory_energy_per_bit": 4.0}},
        "cpu": {"idle_power": 100, "active_power": 700, "util": 0.1},
        "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
        "link": {"num_links": 1, "idle_power": 5, "energy_per_bit": 4.0},
        "nic": {"num_nics": 1, "idle_power": 20, "energy_per_bit": 3.0},
        "storage": {"num_devices": 2, "idle_power": 5, "energy_per_bit": 2.0},
    }


def cluster(memory: dict[str, Any] | None = None, **instance: Any) -> dict[str, Any]:
    one = {
        "model_name": "meta-llama/Llama-3.1-8B", "hardware": "A6000",
        "npu_mem": {"mem_size": 47.5, "mem_bw": 768}, "num_npus": 1, "pd_type": None, **instance,
    }  # fmt: skip
    node = {
        "cpu_mem": memory or {"mem_size": 128, "mem_bw": 204.8, "mem_latency": 0},
        "instances": [one],
        "power": power(),
    }
    pool = {"mem_size": 256, "mem_bw": 30, "num_devices": 2, "idle_power": 7, "energy_per_bit": 5}
    return {
        "link_bw": [32, 20, 10],
        "link_latency": 1000,
        "nodes": [{**node, "storage": DRIVE}],
        "cxl_mem": pool,
        "storage": DRIVE,
    }


def summary(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    document: dict[str, Any],
    dataset: str,
    *options: str,
) -> dict[str, Any]:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    capsys.readouterr()
    arguments = [
        "--cluster-config",
        str(path),
        "--dataset",
        dataset,
        "--cost-source",
        "roofline",
        "--json",
        *options,
    ]
    assert run_main(arguments) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["invariants"]["12 energy"] == "ok"
    return found


WHERE = {
    "CPU": ("host_bytes", {"dram": 6.0, "links": 4.0}),
    "CXL": ("pool_bytes", {"links": 4.0}),
    "SSD": ("storage_bytes", {"storage": 2.0, "links": 4.0}),
    "NVMEOF": ("nic_bytes", {"nics": 3.0}),
}
IDLE_W = {"dram": 4 * 2.0, "links": 5.0, "storage": 2 * 5.0, "nics": 20.0}


@pytest.mark.parametrize("medium", WHERE)
def test_kv_of_a_tier_pays_by_the_bit(
    medium: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        "--num-gpu-blocks-override",
        "1500",
        "--max-model-len",
        "8192",
        "--prefix-storage",
        medium,
    )
    found = summary(tmp_path, capsys, cluster(), PREFIXES, *options)
    (tier,), energy = found["kv_tiers"], found["energy"]
    moved, window = tier["recalled_bytes"] + tier["written_bytes"], energy["window_s"]
    assert tier["recalled_bytes"] > 0 and tier["written_bytes"] > 0
    counted, prices = WHERE[medium]
    kinds = {name: energy["groups"][0][name] for name, _ in WHERE.values()}
    assert kinds == {name: moved if name == counted else 0 for name in kinds}
    for component, watts in IDLE_W.items():
        expected = watts * window + moved * PJ * prices.get(component, 0.0)
        assert energy["components_j"][component] == pytest.approx(expected, rel=1e-9), component
    assert energy["pool_j"] == pytest.approx(
        2 * 7 * window + (moved * PJ * 5.0 if medium == "CXL" else 0.0), rel=1e-9
    )


def test_what_is_copied_in_passes_the_device_s_memory_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = "synthetic:n=1,rate=1,input=100,output=5"
    here, there = (
        summary(tmp_path, capsys, cluster(placement={"default": {"weights": place}}), trace)[
            "energy"
        ]["groups"][0]
        for place in ("npu", "cpu")
    )
    assert there["host_bytes"] > 5 * 14e9
    assert there["memory_bytes"] - here["memory_bytes"] == there["host_bytes"]


PIM = {"mem_size": 256, "mem_bw": 8192, "pim_config": "HBM2_1GB_2000_pim"}
PROMPT, OUTPUT = 2000, 50


def attended(prompt: int = PROMPT, output: int = OUTPUT) -> list[int]:
    """The context of each decode, itself included."""
    return list(range(prompt + 1, prompt + output))


def test_memory_that_computes_draws_its_part_s_power(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = f"synthetic:n=1,rate=1,input={PROMPT},output={OUTPUT}"
    document = cluster(PIM, enable_attn_offloading=True)
    with_part = summary(tmp_path, capsys, document, trace)["energy"]
    part = load_pim_part("HBM2_1GB_2000_pim", tmp_path)
    attention = pim_attention(part, channels=256, kv_bytes=KV_BYTES // LAYERS, heads=32, kv_heads=8)
    busy_s = LAYERS * sum(attention.ps(context) for context in attended()) / 1e12
    bits_j = with_part["groups"][0]["host_bytes"] * PJ * 6.0
    draw_j = 256 * part.idle_w * with_part["window_s"] + 8 * (part.peak_w - part.idle_w) * busy_s
    assert busy_s > 0 and attention.channels == 8
    assert with_part["components_j"]["dram"] == pytest.approx(draw_j + bits_j, rel=1e-6)
    without = summary(tmp_path, capsys, document, trace, "--disable-term", "pim_power")["energy"]
    assert without["window_s"] == with_part["window_s"]
    assert without["components_j"]["dram"] == pytest.approx(
        8 * 2.0 * without["window_s"] + bits_j, rel=1e-9
    )


def test_kv_in_memory_is_not_read_from_the_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = f"synthetic:n=1,rate=1,input={PROMPT},output={OUTPUT}"
    on_device = summary(tmp_path, capsys, cluster(PIM), trace)
    in_memory = summary(tmp_path, capsys, cluster(PIM, enable_attn_offloading=True), trace)
    before, after = (found["energy"]["groups"][0] for found in (on_device, in_memory))
    read_there = KV_BYTES * sum(attended())
    assert before["memory_bytes"] - after["memory_bytes"] == read_there - after["host_bytes"]
    flops = [found["utilisation"][0]["mfu"] * found["duration"] for found in (on_device, in_memory)]
    assert flops[1] < flops[0]


def test_what_the_processors_do_is_not_the_device_s_utilisation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster({"mem_size": 1024, "mem_bw": 716.8}, operator_devices={"ffn": "cpu"})
    document["nodes"][0]["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    found = summary(
        tmp_path, capsys, document, f"synthetic:n=1,rate=1,input={PROMPT},output={OUTPUT}"
    )
    used, energy = found["utilisation"][0], found["energy"]["groups"][0]
    assert energy["processor_bytes"] > energy["memory_bytes"] > 0
    seconds = energy["memory_bytes"] / 768e9
    # What crosses the port is in the bytes of the energy account and not in what operators read and
    # write.
    assert used["mbu"] * found["duration"] == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("devices", [1, 2])
def test_processors_that_work_draw_active_power(
    devices: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two devices share the cores: each of their operators takes twice as long with
    half of them.
    """
    document = cluster(
        {"mem_size": 1024, "mem_bw": 716.8}, operator_devices={"attention": "cpu"}, num_npus=devices
    )
    document["nodes"][0]["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    found = summary(
        tmp_path, capsys, document, f"synthetic:n=1,rate=1,input={PROMPT},output={OUTPUT}"
    )
    (attention,) = [one for one in found["sources"]["operators"] if one["operator"] == "attention"]
    working_s = attention["time_s"]
    polling_w = 100 + 600 * 0.1
    expected = polling_w * found["energy"]["window_s"] + (700 - polling_w) * working_s
    assert working_s > 0
    assert found["energy"]["components_j"]["cpu"] == pytest.approx(expected, rel=1e-4)
