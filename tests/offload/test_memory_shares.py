"""Weights and KV in one memory: who has what room, and how they slow each other."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.offload.test_placement import HEAD_BYTES, LAYER_BYTES, cluster, ledger, refusal, summary


def test_kv_gets_what_weights_leave_of_a_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a tier, and where memory computes."""
    elsewhere = {"placement": {"default": {"weights": "cpu"}}}
    document = cluster(**elsewhere)
    document["nodes"][0]["cpu_mem"]["mem_size"] = 20
    found = summary(tmp_path, capsys, document, "--prefix-storage", "CPU")
    weights = ledger(found)["weights that are elsewhere"]
    assert found["kv_tiers"][0]["capacity_bytes"] == (20 << 30) - weights
    pooled = cluster(
        placement={"default": {"weights": "cxl:0"}, "layers": {"lm_head": {"weights": "cxl:3"}}}
    )
    found = summary(tmp_path, capsys, pooled, "--prefix-storage", "CXL")
    assert found["kv_tiers"][0]["capacity_bytes"] == (1024 << 30) - weights
    document = cluster(**elsewhere, enable_attn_offloading=True)
    document["nodes"][0]["cpu_mem"] = {
        "mem_size": 20,
        "mem_bw": 640,
        "pim_config": "HBM2_1GB_2000_pim",
    }
    (kv,) = summary(tmp_path, capsys, document)["kv_cache"]
    assert kv["num_blocks"] == ((20 << 30) - weights) // kv["block_bytes"]


def test_weights_that_leave_no_room_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster(enable_attn_offloading=True, placement={"default": {"weights": "cpu"}})
    document["nodes"][0]["cpu_mem"] = {
        "mem_size": 14,
        "mem_bw": 640,
        "pim_config": "HBM2_1GB_2000_pim",
    }
    assert "weights there leave no room for the KV cache" in refusal(tmp_path, capsys, document)


def test_kv_of_all_instances_shares_what_all_weights_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One attends in memory, one on the processors, the third keeps its weights there."""
    document = cluster(enable_attn_offloading=True)
    plain = cluster()["nodes"][0]["instances"][0]
    more: list[dict[str, Any]] = [
        {"operator_devices": {"attention": "cpu"}},
        {"placement": {"default": {"weights": "cpu"}}},
    ]
    document["nodes"][0]["instances"] += [{**plain, **one} for one in more]
    document["nodes"][0]["cpu_mem"] = {
        "mem_size": 24,
        "mem_bw": 640,
        "pim_config": "HBM2_1GB_2000_pim",
    }
    document["nodes"][0]["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    blocks = [row["num_blocks"] for row in summary(tmp_path, capsys, document)["kv_cache"]]
    room = (24 << 30) - (32 * LAYER_BYTES + 2 * HEAD_BYTES + 2 * 4096)
    assert blocks[0] == blocks[1] == room // 2 // (16 * 131072) != blocks[2]


def test_a_step_s_floor_follows_the_file_s_bandwidth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Faster memory than the data sheet's is the file's business, with attention on the processors
    as without.
    """
    document = cluster(operator_devices={"attention": "cpu"})
    document["nodes"][0]["cpu"] = {"hardware": "Xeon-8592+", "sockets": 2}
    document["nodes"][0]["instances"][0]["npu_mem"]["mem_bw"] = 3350
    assert set(summary(tmp_path, capsys, document)["invariants"].values()) == {"ok"}


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_kv_and_weights_share_a_pool(
    devices: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """KV written to the pool slows weights that come from one of its devices, by at most what it
    moves there.
    """
    document = cluster(placement={"blocks": [{"blocks": "0-3", "weights": "cxl:0"}]})
    document["cxl_mem"] = {"mem_size": 512, "mem_bw": 20, "mem_latency": 0, "num_devices": devices}
    document["nodes"][0]["cpu_mem"]["mem_bw"] = 20 * devices
    path, whole = tmp_path / "long.jsonl", ("--max-num-batched-tokens", "8192")
    request = {"input_toks": 4096, "output_toks": 20, "arrival_time_ns": 0}
    path.write_text(json.dumps(request) + "\n", encoding="utf-8")
    runs = {
        medium: summary(
            tmp_path, capsys, document, "--dataset", str(path), "--prefix-storage", medium, *whole
        )
        for medium in ("CPU", "CXL")
    }
    written = runs["CXL"]["kv_tiers"][0]["written_bytes"]
    assert written == runs["CPU"]["kv_tiers"][0]["written_bytes"] == 4096 * 131072
    longer_s = runs["CXL"]["duration"] - runs["CPU"]["duration"]
    # All of it is written when the prompt has been computed; for less than a millisecond copies
    # still wait for buffers.
    assert written / devices / 20e9 - 1e-3 < longer_s <= written / devices / 20e9


def test_weights_of_all_instances_have_to_fit_their_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two models of 14.96 GiB in 20; one is left out, or its own node's memory holds it."""
    document = cluster(instances=2, placement={"default": {"weights": "cpu"}})
    document["nodes"][0]["cpu_mem"]["mem_size"] = 20
    both_gib = 2 * (32 * LAYER_BYTES + 2 * HEAD_BYTES + 2 * 4096) / (1 << 30)
    sentence = f"weights at cpu of node 0: {both_gib:.2f} GiB do not fit its 20.00 GiB"
    assert sentence in refusal(tmp_path, capsys, document)
    one = document["nodes"][0]["instances"][:1]
    node = {**document["nodes"][0], "instances": one}
    assert summary(tmp_path, capsys, {**document, "nodes": [node, node]})["completed"] == 10
