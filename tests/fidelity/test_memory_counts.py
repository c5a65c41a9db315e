"""KV blocks that servers reported, and what they held and found of prefixes at the end of a
recorded trace.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from shared_data import shared

from llmsim.cli import run_main

EVALUATION = Path(__file__).resolve().parents[2] / "evaluation"
CARD = {
    "model_name": "meta-llama/Llama-3.1-8B",
    "hardware": "A6000",
    "npu_num": 1,
    "npu_group": 1,
    "pd_type": None,
}
MEMORY = {"mem_size": 40, "mem_bw": 768, "mem_latency": 0}


def test_every_known_count_is_predicted_within_six_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(EVALUATION))
    import accuracy_memory

    for server in accuracy_memory.SERVERS:
        assert server.predicted().num_blocks == pytest.approx(server.blocks, rel=0.06), server.label
    assert len(accuracy_memory.SERVERS) >= 4


def end_of_run(tmp_path: Path, count: int, *options: str) -> dict[str, Any]:
    instances = [{**CARD, "npu_mem": MEMORY}] * count
    node = {
        "num_instances": count,
        "cpu_mem": {"mem_size": 128, "mem_bw": 128, "mem_latency": 0},
        "instances": instances,
    }
    cluster = tmp_path / "cluster.json"
    cluster.write_text(
        json.dumps({"num_nodes": 1, "link_bw": 112, "link_latency": 0, "nodes": [node]})
    )
    arguments = [
        "--cluster-config",
        cluster,
        "--profile-dir",
        shared("artifact/perf_models"),
        "--run-dir",
        tmp_path / "run",
        "--dataset",
        shared("artifact/dataset/sharegpt_pulse_req50_n6_delay15_pc.jsonl"),
        "--enforce-eager",
        "--no-async-scheduling",
        "--request-routing-policy",
        "RR",
        *options,
    ]
    assert run_main([str(argument) for argument in arguments]) == 0
    import pyarrow.parquet as parquet

    series = parquet.read_table(tmp_path / "run" / "series.parquet").to_pydict()
    groups = [
        [i for i, group in enumerate(series["group"]) if group == number] for number in range(count)
    ]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    held = [
        (series["kv_blocks_used"][rows[-1]] + series["kv_blocks_cached"][rows[-1]]) * 2
        for rows in groups
    ]
    hits = [
        100
        * sum(series["hit_tokens"][i] for i in rows)
        / sum(series["queried_tokens"][i] for i in rows)
        for rows in groups
    ]
    return {"held_mib": held, "hit_percent": hits, "pools": summary.get("kv_tiers")}


def test_one_server_holds_and_finds_what_the_real_one_did(tmp_path: Path) -> None:
    """vLLM's log: 32,110.4 MB with weights of 15,348.6 in the end, 25.7 % found."""
    found = end_of_run(tmp_path, 1)
    assert found["held_mib"] == [pytest.approx(32110.4 - 15348.6, abs=4)]
    assert found["hit_percent"] == [pytest.approx(25.7, abs=0.05)]


def test_two_servers_and_their_pool_hold_and_find_what_the_real_ones_did(tmp_path: Path) -> None:
    """vLLM 0.13 with LMCache: 10.633 and 13.655 % found on the devices, 9.312 % in the pool, which
    held 13,440 MiB.
    """
    found = end_of_run(tmp_path, 2, "--prefix-storage", "CPU", "--enable-prefix-sharing")
    assert found["held_mib"] == [
        pytest.approx(24461.6 - 15348.6, abs=4),
        pytest.approx(24395.6 - 15348.6, abs=4),
    ]
    assert found["hit_percent"] == [
        pytest.approx(10.63269554, abs=1e-3),
        pytest.approx(13.65506921, abs=1e-3),
    ]
    (pool,) = found["pools"]
    assert pool["used_bytes"] == 13440 * 2**20
    assert pool["hit_tokens"] == 7696
