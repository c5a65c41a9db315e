"""The deployments of the paper's section VI, for runs without a copy of its artifact."""

from typing import Any

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
PHI_MOE, MIXTRAL = "microsoft/Phi-mini-MoE-instruct", "mistralai/Mixtral-8x7B-v0.1"
Json = dict[str, Any]

A6000 = {"hardware": "A6000", "npu_mem": {"mem_size": 40, "mem_bw": 768, "mem_latency": 0}}
"""40 of 48 GB are used (section VI); 768 GB/s is the data sheet's."""
H100 = {"hardware": "H100", "npu_mem": {"mem_size": 80, "mem_bw": 3350, "mem_latency": 0}}
TPU_V6E = {"hardware": "TPU-v6e", "npu_mem": {"mem_size": 32, "mem_bw": 1640, "mem_latency": 0}}
A6000_LINK, H100_LINK, TPU_LINK = 112, 450, 800
"""GB/s: NVLink bridge of two A6000 (data sheet: 112.5), NVLink 4 in one direction, ICI of a v6e
chip (section VI).
"""

A6000_POWER: Json = {
    "base_node_power": 60,
    "npu": {
        "A6000": {
            "idle_power": 25,
            "standby_power": 115,
            "active_power": 300,
            "standby_duration": 18,
        }
    },
    "cpu": {"idle_power": 10, "active_power": 200, "util": 0.15},
    "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
    "link": {"num_links": 1, "idle_power": 5, "energy_per_bit": 4.0},
    "nic": {"num_nics": 1, "idle_power": 20},
    "storage": {"num_devices": 2, "idle_power": 5},
}
"""W, GB per DIMM, pJ/bit, s: the values that the artifact's power example gives for the A6000
server.
"""

SERVER_POWER: Json = {
    "npu": {
        "A6000": {
            "idle_power": 33,
            "standby_power": 89,
            "active_power": 300,
            "standby_duration": 18,
        }
    },
    "cpu": {"idle_power": 10, "active_power": 185, "util": 0.5},
    "dram": {"dimm_size": 32, "idle_power": 4.0, "energy_per_bit": 6.0},
    "link": {"num_links": 1, "idle_power": 5.0, "energy_per_bit": 4.0},
    "nic": {"num_nics": 1, "idle_power": 11.2},
    "storage": {"num_devices": 1, "idle_power": 5.9},
}
"""The same server in the artifact's figure 6, without the base power, which depends on how many
devices are unused.
"""


def instance(device: Json, model: str, tp: int = 1, role: str | None = None) -> Json:
    """One model serving group of `tp` devices; `role` is "prefill", "decode" or None."""
    return {"model_name": model, **device, "num_npus": tp, "tp_size": tp, "pd_type": role}


def cluster(
    instances: list[Json],
    link_bw: float,
    cpu: Json | None = None,
    link_latency: int = 0,
    **node: Any,
) -> Json:
    """One node with these instances; `node` adds keys such as `power`."""
    memory = {"mem_size": 128, "mem_bw": 128, "mem_latency": 0, **(cpu or {})}
    only = {"num_instances": len(instances), "cpu_mem": memory, "instances": instances, **node}
    return {"num_nodes": 1, "link_bw": link_bw, "link_latency": link_latency, "nodes": [only]}
