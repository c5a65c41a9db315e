"""KV and weights below the devices cross dimension 1 of `link_bw`: a note says where that is no
link to a host.
"""

from typing import Any

import pytest

import llmsim

LOAD = "synthetic:n=2,rate=1,input=fixed:32,output=fixed:2"
IN_HOST = {"placement": {"default": {"weights": "cpu"}}}
POOL = {"mem_size": 64, "mem_bw": 60, "mem_latency": 250, "num_devices": 1}
STORAGE = {
    "mem_size": 64,
    "read_bw": 14,
    "write_bw": 6,
    "read_latency": 80000,
    "write_latency": 10000,
}


def notes(
    rate: float, instance: dict[str, Any], cluster: dict[str, Any], **options: Any
) -> list[str]:
    """The notes of a run about links to what is below the devices."""
    fields = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100").fields() | cluster
    fields["link_bw"][1] = rate
    fields["nodes"][0]["instances"][0] |= instance
    result = llmsim.run(fields, LOAD, cost_source="roofline", **options)
    return [note for note in result.notes if "below the devices" in note]


@pytest.mark.parametrize(
    ("instance", "cluster", "options", "moved"),
    [
        ({}, {}, {"prefix_storage": "CPU"}, "KV"),
        ({}, {"cxl_mem": POOL}, {"prefix_storage": "CXL"}, "KV"),
        ({}, {}, {"kv_offloading_size": 8, "engine_profile": "vllm-0.33"}, "KV"),
        (IN_HOST, {}, {}, "weights"),
        (IN_HOST, {}, {"prefix_storage": "CPU"}, "KV and weights"),
    ],
)
def test_a_link_faster_than_pcie_is_named(
    instance: dict[str, Any], cluster: dict[str, Any], options: dict[str, Any], moved: str
) -> None:
    assert notes(450, instance, cluster, **options) == [
        f"links of 450 GB/s (link_bw, second number) carry the {moved} below the devices; PCIe 5.0 "
        "x16 carries at most 64 GB/s, which a host_link of the node would state"
    ]
    assert notes(64, instance, cluster, **options) == []


def test_what_does_not_cross_that_link_needs_no_note() -> None:
    assert notes(450, {}, {}) == []
    assert notes(450, {}, {"storage": STORAGE}, prefix_storage="NVMEOF") == []
