"""Random mixed deployments: each component's energy follows from states and bytes that the summary
states itself.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main

J_PER_PJ_BYTE = 8e-12
TRACES = (
    "synthetic:n=20,rate=10,input=lognormal:300,output=lognormal:20,seed=3",
    "synthetic:n=12,rate=100,input=fixed:700,output=fixed:12,prefixes=2:tokens=512,seed=4",
)
HARDWARE = ("A6000", "H100", "L40S")


def power(rng: random.Random) -> dict[str, Any]:
    states = {
        "idle_power": 25,
        "standby_power": 75,
        "active_power": 300,
        "standby_duration": rng.choice([0, 0.01, 18]),
    }
    found: dict[str, Any] = {
        "base_node_power": 60,
        "npu": {
            name: {**states, "memory_energy_per_bit": rng.choice([0, 4.0])} for name in HARDWARE
        },
        "cpu": {"idle_power": 10, "active_power": 200, "util": 0.15},
        "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
        "link": {"num_links": 2, "idle_power": 5, "energy_per_bit": 4.0},
        "nic": {"num_nics": 1, "idle_power": 20, "energy_per_bit": 3.0},
        "storage": {"num_devices": 2, "idle_power": 5, "energy_per_bit": 2.0},
    }
    for name in ("cpu", "link", "nic", "storage"):
        if rng.random() < 0.15:
            del found[name]
    return found


def instance(rng: random.Random, role: str | None, pool: bool) -> dict[str, Any]:
    tp, pp = rng.choice([1, 1, 2, 4]), rng.choice([1, 1, 1, 2])
    memory = {"mem_size": 79, "mem_bw": rng.choice([768, 3350]), "mem_latency": 0}
    found: dict[str, Any] = {
        "model_name": "meta-llama/Llama-3.1-8B",
        "hardware": rng.choice(HARDWARE),
        "npu_mem": memory,
        "num_npus": tp * pp,
        "tp_size": tp,
        "pp_size": pp,
        "pd_type": role,
    }
    kind = rng.random()
    if kind < 0.3:
        entry = {"weights": rng.choice(["cpu", "cxl:1"] if pool else ["cpu"])}
        placements = (
            {"default": entry},
            {"blocks": [{"blocks": "2,5-7", **entry}]},
            {"layers": {"lm_head": entry}},
        )
        found["placement"] = rng.choice(placements)
    elif kind < 0.45:
        found["enable_attn_offloading"] = True
    elif kind < 0.6:
        found["operator_devices"] = {rng.choice(["attention", "ffn", "lm_head"]): "cpu"}
    return found


def deployment(seed: int) -> tuple[dict[str, Any], list[str]]:
    """A cluster of one to three nodes, and options."""
    rng = random.Random(seed)
    pool, split = rng.random() < 0.5, rng.random() < 0.5
    roles = (
        ["prefill", "decode", rng.choice(["prefill", "decode", None])]
        if split
        else [None] * rng.randint(1, 3)
    )
    placed = [(rng.randrange(3), instance(rng, role, pool)) for role in roles]
    nodes = []
    for number in sorted({at for at, _ in placed}):
        own = [one for at, one in placed if at == number]
        memory: dict[str, Any] = {"mem_size": 256, "mem_bw": 200, "mem_latency": 100}
        if any("enable_attn_offloading" in one for one in own):
            memory["pim_config"] = "HBM2_1GB_2000_pim"
        node = {
            "cpu_mem": memory,
            "cpu": {"hardware": "Xeon-8592+", "sockets": 2},
            "instances": own,
        }
        nodes.append({**node, "power": power(rng)} if rng.random() < 0.8 else node)
    document: dict[str, Any] = {"link_bw": [450, 32, 12.5], "link_latency": 1000, "nodes": nodes}
    if pool:
        document["cxl_mem"] = {
            "mem_size": 256,
            "mem_bw": 30,
            "mem_latency": 250,
            "num_devices": 2,
            "idle_power": 5,
            "energy_per_bit": 3,
        }
    computes = any(
        "enable_attn_offloading" in one or "attention" in one.get("operator_devices", ())
        for _, one in placed
    )
    tiers = (
        ["--prefix-storage", "CXL" if pool else "CPU"]
        if rng.random() < 0.4 and not computes
        else []
    )
    return document, tiers


def moved(groups: list[dict[str, Any]], *names: str) -> float:
    return float(sum(group[name] for group in groups for name in names)) * J_PER_PJ_BYTE


def expected_j(
    node: dict[str, Any], groups: list[dict[str, Any]], window_s: float
) -> dict[str, float]:
    """By component, from the groups' seconds and bytes; of what neither needs the processors' nor a
    part's own time.
    """
    spec, found = node["power"], {"accelerators": 0.0}
    for group, one in zip(groups, node["instances"], strict=True):
        device = spec["npu"][one["hardware"]]
        idle_s = window_s - group["active_s"] - group["standby_s"]
        assert idle_s > -1e-9
        watts = (
            device["active_power"] * group["active_s"]
            + device["standby_power"] * group["standby_s"]
        )
        found["accelerators"] += one["num_npus"] * (watts + device["idle_power"] * idle_s)
        found["accelerators"] += moved([group], "memory_bytes") * device["memory_energy_per_bit"]
    link, nic, dram = spec.get("link"), spec.get("nic"), spec["dram"]
    crossed = moved(groups, "link_bytes", "host_bytes", "pool_bytes", "storage_bytes")
    found["links"] = 0.0 if link is None else 10 * window_s + crossed * link["energy_per_bit"]
    found["nics"] = (
        0.0 if nic is None else 20 * window_s + moved(groups, "nic_bytes") * nic["energy_per_bit"]
    )
    if "pim_config" not in node["cpu_mem"]:
        landed = moved(groups, "host_bytes", "processor_bytes")
        found["dram"] = 8 * dram["idle_power"] * window_s + landed * dram["energy_per_bit"]
    if not any("operator_devices" in one for one in node["instances"]):
        found["cpu"] = (10 + 190 * 0.15) * window_s if "cpu" in spec else 0.0
    found["other"] = 60 * window_s
    return found


@pytest.mark.parametrize("seed", range(16))
def test_energy_follows_from_states_and_bytes(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, options = deployment(seed)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    arguments = [
        "--cluster-config",
        str(path),
        "--dataset",
        TRACES[seed % 2],
        "--cost-source",
        "roofline",
        "--json",
    ]
    capsys.readouterr()
    assert run_main([*arguments, *options]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert set(found["invariants"].values()) == {"ok"}
    energy, groups = found["energy"], []
    if energy is None:
        assert not any("power" in node for node in document["nodes"])
        return
    assert sum(energy["components_j"].values()) + energy["pool_j"] == pytest.approx(
        energy["total_j"], rel=1e-9
    )
    groups = list(energy["groups"])
    for node, said in zip(document["nodes"], energy["nodes"], strict=True):
        own, groups = groups[: len(node["instances"])], groups[len(node["instances"]) :]
        if "power" not in node:
            assert said is None and own == [None] * len(own)
            continue
        for name, joules in expected_j(node, own, energy["window_s"]).items():
            assert said["components_j"][name] == pytest.approx(joules, rel=1e-9, abs=1e-9), name
