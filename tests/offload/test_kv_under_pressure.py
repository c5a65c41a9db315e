"""A write-back tier as an alternative to recomputing: what is preempted comes back
over the link.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main

ROOT = Path(__file__).resolve().parents[2]
TRACE = "synthetic:n=60,rate=100,input=fixed:1000,output=fixed:600,seed=1"


def summary(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    arguments = [
        *(
            "--cluster-config",
            str(ROOT / "cluster_config" / "h100_cpu_prefix_pool.json"),
            "--dataset",
            TRACE,
        ),
        *(
            "--cost-source",
            "roofline",
            "--num-gpu-blocks-override",
            "1500",
            "--max-model-len",
            "8192",
            "--json",
        ),
    ]
    capsys.readouterr()
    assert run_main([*arguments, *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(found["invariants"].values()) == {"ok"} and found["completed"] == 60
    return found


def test_what_is_preempted_comes_back_over_the_link(capsys: pytest.CaptureFixture[str]) -> None:
    # with two in flight a connector's victims free late: more of them are needed
    one_batch = "--no-async-scheduling"
    computed_again = summary(capsys, one_batch)
    options = ("--prefix-storage", "CPU", "--kv-tier-write", "write-back", "--kv-chunk-size", "16")
    offloaded = summary(capsys, one_batch, *options)
    assert computed_again["preemptions"] == offloaded["preemptions"] > 0
    recalled = sum(tier["recalled_bytes"] for tier in offloaded["kv_tiers"])
    assert recalled == 131072 * sum(tier["hit_tokens"] for tier in offloaded["kv_tiers"]) > 0
    assert offloaded["duration"] < computed_again["duration"]
    assert (
        offloaded["blame"]["kv_transfer"]["mean_ms"]
        > 0
        == computed_again["blame"]["kv_transfer"]["mean_ms"]
    )
    assert (
        offloaded["blame"]["preemption"]["mean_ms"]
        < computed_again["blame"]["preemption"]["mean_ms"]
    )
    assert summary(capsys, *options)["preemptions"] > offloaded["preemptions"]
