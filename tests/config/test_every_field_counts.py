"""Every field of the cluster file has an effect, or a note says that it has none: each is changed
in a run.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cluster_examples import Json, full

from llmsim.cli import run_main
from llmsim.config.engine.options import EngineOptions

TRACE = "synthetic:n=16,rate=8,input=lognormal:200,output=lognormal:40,prefixes=4:tokens=768,seed=3"
DRIVE = {
    "mem_size": 100,
    "read_bw": 7,
    "write_bw": 3,
    "read_latency": 8e4,
    "write_latency": 2e4,
    "queue_depth": 2,
}
POOL = {
    "mem_size": 1024,
    "mem_bw": 60,
    "mem_latency": 250,
    "num_devices": 4,
    "idle_power": 5,
    "energy_per_bit": 3,
}
STATES = {
    "idle_power": 25,
    "standby_power": 75,
    "active_power": 300,
    "standby_duration": 0.05,
    "power_cap": 250,
}
POWER = {
    "base_node_power": 60,
    "npu": {name: {**STATES, "memory_energy_per_bit": 4.0} for name in ("A6000", "H100")},
    "cpu": {"idle_power": 10, "active_power": 200, "util": 0.15},
    "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
    "link": {"num_links": 2, "idle_power": 5, "energy_per_bit": 4.0},
    "switch": {"num_switches": 1, "idle_power": 50, "energy_per_bit": 1.0},
    "nic": {"num_nics": 1, "idle_power": 20, "energy_per_bit": 3.0},
    "storage": {"num_devices": 2, "idle_power": 5, "energy_per_bit": 2.0},
}


def instance(hardware: str = "A6000", **more: Any) -> Json:
    memory = {"mem_size": 47.5, "mem_bw": 768, "mem_latency": 0}
    return {
        "model_name": "meta-llama/Llama-3.1-8B",
        "hardware": hardware,
        "npu_mem": memory,
        "pd_type": None,
        **more,
    }


def node(*instances: Json, **more: Any) -> Json:
    memory = {"mem_size": 256, "mem_bw": 200, "mem_latency": 100}
    return {"cpu_mem": memory, "instances": [*instances], "power": POWER, **more}


def cluster(*nodes: Json, **more: Any) -> Json:
    return {
        "link_bw": [450, 32, 12.5],
        "link_latency": [500, 1000, 2000],
        "nodes": [*nodes],
        **more,
    }


@cache
def scenarios() -> dict[str, tuple[Json, tuple[str, ...]]]:
    """Clusters in which, together, every field has an effect; with options of the run."""
    placement = {
        "default": {"weights": "cpu"},
        "blocks": [{"blocks": "0-3", "weights": "cxl:1"}],
        "layers": {"lm_head": {"weights": "npu"}},
    }
    apart = cluster(
        node(instance(pd_type="decode", num_npus=2)),
        node(instance("H100", pd_type="prefill")),
        grid_gco2_per_kwh=400, electricity_price_per_kwh=0.1,
    )  # fmt: skip
    memory = cluster(
        node(instance(enable_attn_offloading=True, enable_sub_batch_interleaving=True))
    )
    memory["nodes"][0]["cpu_mem"] = {
        "mem_size": 16,
        "mem_bw": 512,
        "pim_config": "HBM2_1GB_2000_pim",
    }
    always = json.loads(json.dumps(memory))
    always["nodes"][0]["instances"][0]["sub_batch_rule"] = "always"
    phi = {
        "model_name": "microsoft/Phi-mini-MoE-instruct",
        "num_npus": 2,
        "placement": {"layers": {"moe": {}}},
    }
    phi["placement"]["layers"]["moe"]["weights"] = "cpu"  # type: ignore[index]
    split = {"model_name": phi["model_name"], "afd_group": "layers"}
    layers = cluster(
        node(
            instance(**split, pd_type="attention", afd_micro_batches=2, afd_dispatch="dense"),
            instance(**split, pd_type="ffn", ffn_ep_size=2),
        )
    )
    tiers = cluster(node(instance(num_gpu_blocks_override=120), storage=DRIVE), storage=DRIVE)
    behind = instance(num_npus=2, placement={"default": {"weights": "cpu"}})
    small = instance(model_name="meta-llama/Llama-3.2-1B")
    one = instance()
    return {
        "plain": (cluster(node(instance())), ()),
        "apart": (apart, ()),
        "slow": (
            cluster(node(instance(npu_mem={"mem_size": 47.5, "mem_bw": 768, "mem_latency": 1e6}))),
            (),
        ),
        "always": (always, ()),
        "weights": (cluster(node(instance(placement=placement)), cxl_mem=POOL), ()),
        "memory": (memory, ()),
        "host": (
            cluster(
                node(
                    instance(operator_devices={"attention": "cpu"}), cpu={"hardware": "Xeon-8592+"}
                )
            ),
            (),
        ),
        "experts": (cluster(node(instance(**phi, expert_prefetch="touched"))), ()),
        "ssd": (tiers, ("--prefix-storage", "SSD")),
        "host link": (cluster(node(behind, host_link={"bandwidth_gb_per_s": 50})), ()),
        "host links": (cluster(node(behind), host_link={"bandwidth_gb_per_s": 50}), ()),
        "nvmeof": (tiers, ("--prefix-storage", "NVMEOF")),
        "stages": (cluster(node(instance(num_npus=4, pp_size=2))), ("--collective-costs", "links")),
        "over nodes": (
            cluster(
                node(instance(num_npus=4, nnodes=2)),
                {**node(), "instances": []},
            ),
            ("--collective-costs", "links"),
        ),
        "pair": (cluster(node(instance(**phi, dp_group="a"), instance(**phi, dp_group="a"))), ()),
        "old": (cluster(node(instance(npu_num=2, npu_group=1))), ()),
        "named": (cluster(node({"model": one.pop("model_name"), **one})), ()),
        "layers": (layers, ()),
        "domains": (cluster(node({**small, "attn_tp_size": 2, "attn_dp_size": 2})), ()),
        "classes": (
            cluster(
                node(instance()),
                slo_classes={"chat": {"ttft_ms": 1, "tpot_ms": 1, "e2el_ms": 1}},
            ),
            ("--dataset", f"{TRACE},classes=chat:1"),
        ),
        "topology": (
            cluster(node(instance("H100", num_npus=4)), topology="mixed_h100_a100"),
            ("--collective-costs", "links"),
        ),
    }


WORSE_DRIVE = {
    "mem_size": 0.5,
    "read_bw": 1,
    "write_bw": 0.1,
    "read_latency": 8e6,
    "write_latency": 3e9,
    "queue_depth": 1,
}
CHANGED: dict[str, tuple[str, Any]] = {
    "link_bw": ("apart", [450, 16, 6]),
    "link_latency": ("apart", [500, 9000, 9000]),
    "topology": ("topology", "dgx_h100"),
    "kv_transfer": ("apart", "layerwise"),
    "kv_transfer_mode": ("apart", "push"),
    "grid_gco2_per_kwh": ("apart", 300),
    "electricity_price_per_kwh": ("apart", 0.2),
    "slo_classes.chat.ttft_ms": ("classes", 9000),
    "slo_classes.chat.tpot_ms": ("classes", 9000),
    "slo_classes.chat.e2el_ms": ("classes", 90000),
    "cxl_mem": ("plain", POOL),
    "cxl_mem.mem_size": ("weights", 1),
    "cxl_mem.mem_bw": ("weights", 10),
    "cxl_mem.mem_latency": ("weights", 2e6),
    "cxl_mem.num_devices": ("weights", 8),
    "cxl_mem.idle_power": ("weights", 50),
    "cxl_mem.energy_per_bit": ("weights", 30),
    "storage": ("plain", DRIVE),
    **{f"storage.{key}": ("nvmeof", value) for key, value in WORSE_DRIVE.items()},
    "nodes.0.storage": ("plain", DRIVE),
    **{f"nodes.0.storage.{key}": ("ssd", value) for key, value in WORSE_DRIVE.items()},
    "host_link.bandwidth_gb_per_s": ("host links", 8),
    "host_link.latency_ns": ("host links", 9e6),
    "host_link.devices_per_link": ("host links", 2),
    "nodes.0.host_link": ("plain", {"bandwidth_gb_per_s": 55}),
    "nodes.0.host_link.bandwidth_gb_per_s": ("host link", 8),
    "nodes.0.host_link.latency_ns": ("host link", 9e6),
    "nodes.0.host_link.devices_per_link": ("host link", 2),
    "nodes.0.price_per_hour": ("plain", 9.5),
    "nodes.0.cpu": ("plain", {"hardware": "Xeon-8592+"}),
    "nodes.0.cpu.hardware": ("host", "A6000"),
    "nodes.0.cpu.sockets": ("host", 2),
    "nodes.0.cpu_mem.mem_size": ("memory", 32),
    "nodes.0.cpu_mem.mem_bw": ("host", 100),
    "nodes.0.cpu_mem.mem_latency": ("weights", 9e5),
    "nodes.0.cpu_mem.pim_config": ("memory", "DDR4_8GB_3200_pim"),
    "nodes.0.cpu_mem.pim_table": ("plain", "times.csv"),
    "nodes.0.power": ("plain", None),
    "nodes.0.power.base_node_power": ("plain", 70),
    "nodes.0.power.npu.H200": ("plain", STATES),
    "nodes.0.power.npu.A6000.idle_power": ("apart", 30),
    "nodes.1.power.npu.H100.standby_power": ("apart", 80),
    "nodes.0.power.npu.A6000.active_power": ("apart", 310),
    "nodes.1.power.npu.H100.standby_duration": ("apart", 0.01),
    "nodes.0.power.npu.A6000.memory_energy_per_bit": ("apart", 5),
    "nodes.0.power.npu.A6000.power_cap": ("apart", 200),
    "nodes.0.power.cpu.idle_power": ("plain", 12),
    "nodes.0.power.cpu.active_power": ("plain", 220),
    "nodes.0.power.cpu.util": ("plain", 0.2),
    "nodes.0.power.dram.dimm_size": ("plain", 16),
    "nodes.0.power.dram.idle_power": ("plain", 3),
    "nodes.0.power.dram.energy_per_bit": ("memory", 7),
    "nodes.0.power.link.num_links": ("plain", 3),
    "nodes.0.power.link.idle_power": ("plain", 6),
    "nodes.0.power.link.energy_per_bit": ("stages", 8),
    "nodes.0.power.switch.num_switches": ("plain", 2),
    "nodes.0.power.switch.idle_power": ("plain", 60),
    "nodes.0.power.switch.energy_per_bit": ("stages", 8),
    "nodes.0.power.nic.num_nics": ("plain", 3),
    "nodes.0.power.nic.idle_power": ("plain", 6),
    "nodes.0.power.nic.energy_per_bit": ("apart", 8),
    "nodes.0.power.storage.num_devices": ("plain", 3),
    "nodes.0.power.storage.idle_power": ("plain", 6),
    "nodes.0.power.storage.energy_per_bit": ("ssd", 8),
} | {
    f"nodes.0.instances.0.{key}": change
    for key, change in {
        "model_name": ("plain", "meta-llama/Llama-3.2-3B"),
        "hardware": ("plain", "H100"),
        "npu_mem": ("plain", None),
        "npu_mem.mem_size": ("plain", 40),
        "npu_mem.mem_bw": ("plain", 700),
        "npu_mem.mem_latency": ("plain", 100),
        "npu_mem.mem_util": ("plain", 0.8),
        "num_npus": ("plain", 2),
        "tp_size": ("plain", 2),
        "pp_size": ("plain", 2),
        "tensor_parallel_size": ("plain", 2),
        "model": ("named", "meta-llama/Llama-3.2-3B"),
        "data_parallel_size": ("plain", 2),
        "enable_expert_parallel": ("experts", False),
        "pipeline_parallel_size": ("plain", 2),
        "npu_num": ("old", 4),
        "npu_group": ("old", 2),
        "pp_layers": ("stages", [10, 22]),
        "prefill_context_parallel_size": ("plain", 2),
        "peer_to_peer": ("plain", False),
        "nnodes": ("over nodes", 1),
        "ep_size": ("experts", 1),
        "dp_group": ("pair", "b"),
        "pd_type": ("apart", None),
        "afd_group": ("layers", "others"),
        "afd_micro_batches": ("layers", 3),
        "afd_dispatch": ("layers", "routed"),
        "attn_tp_size": ("domains", 1),
        "attn_dp_size": ("domains", 1),
        "ffn_tp_size": ("domains", 4),
        "ffn_ep_size": ("domains", 4),
        "topology_devices": ("topology", [0, 1, 8, 9]),
        "topology_group": ("topology", "a100"),
        "price_per_device_hour": ("plain", 2.5),
        "placement.default.weights": ("weights", "npu"),
        "placement.default.kv_evict_loc": ("weights", "cpu"),
        "placement.default.kv_loc": ("weights", "cpu"),
        "placement.blocks.0.blocks": ("weights", "0-7"),
        "placement.blocks.0.weights": ("weights", "npu"),
        "placement.blocks.0.kv_evict_loc": ("weights", "cpu"),
        "placement.blocks.0.kv_loc": ("weights", "cpu"),
        "placement.layers.lm_head.weights": ("weights", "cpu"),
        "placement.layers.lm_head.kv_evict_loc": ("weights", "cpu"),
        "placement.layers.lm_head.kv_loc": ("weights", "cpu"),
        "enable_local_offloading": ("slow", True),
        "enable_attn_offloading": ("memory", False),
        "enable_sub_batch_interleaving": ("always", False),
        "operator_devices": ("host", {"lm_head": "cpu"}),
        "sub_batch_rule": ("memory", "always"),
        "weight_buffers": ("weights", 4),
        "expert_prefetch": ("experts", "layer"),
        "expert_cache": ("experts", 0.5),
    }.items()
}
CHANGED["nodes.1.instances.0.pd_type"] = CHANGED.pop("nodes.0.instances.0.pd_type")
WITHOUT_EFFECT = {
    "$schema": "for editors",
    "description": "for people",
    "num_nodes": "a check of the file itself",
    "nodes.#.num_instances": "a check of the file itself",
    "incast.buffer_bytes": "counts in bursts: tests/lowering/network/test_incast.py",
    "incast.burst_bytes": "counts in bursts: tests/lowering/network/test_incast.py",
    "incast.efficiency_percent": "counts in bursts: tests/lowering/network/test_incast.py",
    "nodes.#.instances.#.enable_block_copy": "documented as accepted without effect",
}


def pattern(path: str) -> str:
    """Numbers and names of lists and mappings left out."""
    parts = path.split(".")
    above = ["", *parts]
    return ".".join(
        "#" if part.isdigit() or before in ("npu", "layers") else part
        for before, part in zip(above, parts, strict=False)
    )


def leaves(document: Any, here: str = "") -> set[str]:
    if isinstance(document, dict) and document:
        return {
            leaf
            for key, value in document.items()
            for leaf in leaves(value, f"{here}.{key}" if here else key)
        }
    if isinstance(document, list) and document and isinstance(document[0], dict):
        return {leaf for i, value in enumerate(document) for leaf in leaves(value, f"{here}.{i}")}
    return {pattern(here)}


def test_every_field_is_changed_below_or_is_of_the_engine_or_has_its_reason() -> None:
    options = {field.alias or name for name, field in EngineOptions.model_fields.items()}
    known = {pattern(path) for path in CHANGED} | set(WITHOUT_EFFECT)
    parts = [leaf.split(".") for leaf in leaves(full()) - known]
    left = {".".join(path) for path in parts if path[0] != "engine" and not {*path[4:5]} & options}
    assert left == set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fields")
    (made / "times.csv").write_text("context_tokens,time_us\n0,1\n4096,900\n", encoding="utf-8")
    return made


Outcome = tuple[int, str]


def outcome(
    folder: Path, capsys: pytest.CaptureFixture[str], document: Json, options: tuple[str, ...]
) -> Outcome:
    path = folder / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    arguments = [
        "--cluster-config",
        str(path),
        "--dataset",
        TRACE,
        "--cost-source",
        "roofline",
        "--json",
        *options,
    ]
    capsys.readouterr()
    code = run_main(arguments)
    captured = capsys.readouterr()
    return code, captured.out if code == 0 else captured.err


BASES: dict[str, Outcome] = {}


@pytest.mark.parametrize("path", CHANGED)
def test_a_changed_field_changes_the_run_or_is_noted(
    path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, value = CHANGED[path]
    document, options = scenarios()[name]
    if name not in BASES:
        BASES[name] = outcome(folder, capsys, document, options)
        assert BASES[name][0] == 0, BASES[name][1]
    edited = json.loads(json.dumps(document))
    holder = edited
    *above, key = path.split(".")
    for part in above:
        holder = holder[int(part)] if part.isdigit() else holder[part]
    assert holder.get(key) != value
    holder[key] = value
    code, text = outcome(folder, capsys, edited, options)
    assert code in (0, 2, 3) and (code, text) != BASES[name]
    if code:  # refused: by its name or by what it contradicts, in one sentence
        assert text.startswith("llmsim: error: ") and text.strip().count("\n") == 0
