"""Random cluster files: models, devices, layouts, roles, memories, topologies and power, drawn
independently.
"""

import random
from typing import Any

Json = dict[str, Any]

DENSE = (
    "meta-llama/Llama-3.1-8B",
    "google/gemma-2-9b",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen3-32B-FP8",
)
EXPERTS = (
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V2-Lite",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "microsoft/Phi-mini-MoE-instruct",
    "moonshotai/Moonlight-16B-A3B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
)
DEVICES = {
    "H100": (79.1, 3350),
    "A100": (79.1, 2039),
    "H200": (139.8, 4800),
    "B200": (178.0, 8000),
    "L40S": (44.4, 864),
    "A6000": (47.5, 768),
    "TPU-v6e": (31.25, 1640),
}
"""Memory in GiB and its bandwidth in GB/s."""
TOPOLOGIES = {"pcie_gen4_8": 8, "dgx_h100": 8, "hgx_b200": 8}
"""Bundled networks and their number of devices."""
RARE = 0.12
OFTEN_ENOUGH = 0.9
"""Share of the instances with memory for any model on few devices."""


def draw_cluster(draw: random.Random) -> Json:
    """One cluster file, as the value of its JSON; most of them can be run."""
    kind = draw.choice(["plain", "plain", "dp", "roles", "mixed", "models"])
    model = _model(draw)
    device = draw.choice([*DEVICES])
    layout = _layout(draw, model)
    nodes = []
    for node in range(draw.choice([1, 1, 2])):
        instances = []
        for slot in range(2 if kind in ("dp", "roles") else draw.choice([1, 2, 2, 3])):
            hardware = draw.choice([*DEVICES]) if kind == "mixed" else device
            served = _model(draw) if kind == "models" else model
            chosen = _layout(draw, served) if kind in ("roles", "models") else layout
            instance = {**_instance(draw, served, hardware), **chosen}
            if kind == "dp":
                instance["dp_group"] = "ranks"
            elif kind == "roles":
                instance["pd_type"] = ("prefill", "decode")[(node + slot) % 2]
            instances.append(instance)
        nodes.append(_node(draw, instances))
    document: Json = {
        "num_nodes": len(nodes),
        "link_bw": draw.choice([50, [450, 55], [450, 55, 50], [31.5, 20, 12.5]]),
        "link_latency": draw.choice([0, 1000]),
        "nodes": nodes,
    }
    if draw.random() < OFTEN_ENOUGH:
        document["cxl_mem"] = _cxl(draw)
        document["storage"] = _storage()
    if len(nodes) == 1 and draw.random() < RARE:
        document["topology"] = draw.choice([*TOPOLOGIES])
    if draw.random() < RARE:
        document |= {"electricity_price_per_kwh": 0.1, "grid_gco2_per_kwh": 300}
    return document


def instances_of(document: Json) -> list[Json]:
    return [instance for node in document["nodes"] for instance in node["instances"]]


def _model(draw: random.Random) -> str:
    return draw.choice(EXPERTS if draw.random() < 0.4 else DENSE)


def _layout(draw: random.Random, model: str) -> Json:
    """Parallel degrees, and what else concerns the layout."""
    tp, pp = draw.choice([1, 1, 2, 4]), draw.choice([1, 1, 1, 2])
    layout: Json = {"num_npus": tp * pp, "tp_size": tp, "pp_size": pp}
    if model in EXPERTS and draw.random() < 0.4:
        layout["ep_size"] = draw.choice([1, tp])
    extras: tuple[Json, ...] = (
        {"enable_sequence_parallelism": True},
        {"decode_context_parallel_size": 2} if tp > 1 else {"prefill_context_parallel_size": 1},
        {"all2all_backend": draw.choice(["deepep_low_latency", "deepep_high_throughput", "pplx"])},
        {"enable_eplb": True, "num_redundant_experts": 8},
    )
    if draw.random() < 0.25:
        layout |= draw.choice(extras)
    return layout


def _instance(draw: random.Random, model: str, hardware: str) -> Json:
    size, bandwidth = DEVICES[hardware]
    if draw.random() < OFTEN_ENOUGH:
        size *= 4
    memory = {"mem_size": size, "mem_bw": bandwidth, "mem_latency": draw.choice([0, 0, 100])}
    instance: Json = {"model_name": model, "hardware": hardware, "npu_mem": memory}
    if draw.random() < RARE:
        blocks = draw.choice(["cpu", "cxl:0"])
        instance["placement"] = {"default": {"weights": blocks}}
        instance |= draw.choice(
            [{}, {"weight_buffers": 3}, {"expert_prefetch": "layer", "expert_cache": 0.25}]
        )
    elif draw.random() < RARE / 2:
        instance["operator_devices"] = {"attention": "cpu"}
    elif draw.random() < RARE / 2:
        instance["enable_attn_offloading"] = True
        instance["enable_sub_batch_interleaving"] = draw.random() < 0.5
    if draw.random() < RARE:
        instance["price_per_device_hour"] = 2.5
    return instance


def _node(draw: random.Random, instances: list[Json]) -> Json:
    host: Json = {"mem_size": 512, "mem_bw": 256, "mem_latency": draw.choice([0, 100])}
    if any("enable_attn_offloading" in instance for instance in instances):
        host |= {"mem_size": 256, "mem_bw": 8192, "pim_config": "HBM2_1GB_2000_pim"}
    node: Json = {"num_instances": len(instances), "cpu_mem": host, "instances": instances}
    if any("operator_devices" in instance for instance in instances):
        node["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    if draw.random() < OFTEN_ENOUGH:
        node["storage"] = _storage()
    if draw.random() < RARE:
        node["power"] = _power()
    return node


def _cxl(draw: random.Random) -> Json:
    return {"mem_size": 1024, "mem_bw": 60, "mem_latency": 250, "num_devices": draw.choice([1, 4])}


def _storage() -> Json:
    return {
        "mem_size": 2048,
        "read_bw": 14,
        "write_bw": 7,
        "read_latency": 60_000,
        "write_latency": 15_000,
    }


def _power() -> Json:
    device = {"idle_power": 25, "standby_power": 115, "active_power": 300, "standby_duration": 18}
    return {
        "base_node_power": 60,
        "npu": {name: device for name in DEVICES},
        "cpu": {"idle_power": 10, "active_power": 200, "util": 0.15},
        "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
        "link": {"num_links": 1, "idle_power": 5, "energy_per_bit": 4.0},
        "storage": {"num_devices": 2, "idle_power": 5},
    }
