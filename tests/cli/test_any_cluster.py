"""Random clusters with random options: each runs with all invariants kept, or is refused in one sentence."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main

DENSE = ("meta-llama/Llama-3.1-8B", "google/gemma-2-9b", "Qwen/Qwen3-32B")
EXPERTS = (
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V2-Lite",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
)
DEVICES = {
    "H100": (79.1, 3350),
    "A100": (79.1, 2039),
    "H200": (139.8, 4800),
    "L40S": (44.4, 864),
    "TPU-v6e": (31.25, 1640),
}
SEQUENCE, CONTEXT = {"enable_sequence_parallelism": True}, {"decode_context_parallel_size": 2}
LAYOUTS: tuple[dict[str, Any], ...] = ({}, {}, SEQUENCE, CONTEXT, {"all2all_backend": "deepep_low_latency"})
PROBABLE = 0.12
OPTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--num-gpu-blocks-override", ("250", "1000")),
    ("--scheduler", ("sarathi", "orca", "sglang", "static", "mlfq")),
    ("--prefix-storage", ("CPU", "CXL", "CPU+CXL")),
    ("--request-routing-policy", ("RR", "LOR", "P2C", "PREFIX", "VLLM_DP")),
    ("--expert-routing-policy", ("RAND", "ZIPF:s=1.2")),
    ("--request-timeout", ("0.2",)),
    ("--max-concurrency", ("3",)),
    ("--network-backend", ("congestion-aware",)),
    ("--scheduling-policy", ("priority", "sjf", "slack")),
    ("--kv-cache-dtype", ("fp8",)),
    ("--engine-profile", ("vllm-0.19", "vllm-0.33")),
    ("--cudagraph-mode", ("NONE", "PIECEWISE")),
    (
        "--speculative-config",
        tuple(
            json.dumps({"method": method, "num_speculative_tokens": 2, "acceptance_rate": 0.5})
            for method in ("ngram", "eagle", "eagle", "mtp")
        ),
    ),
    ("--queue-order", ("test_any_cluster:LongestFirst",)),
    ("--admission", ("QUEUE_LIMIT:requests=6",)),
    ("--long-prefill-token-threshold", ("100",)),
    ("--watermark", ("0.05",)),
    ("--block-size", ("1", "48", "256")),
)
TRANSFERS = (("--kv-transfer", ("layerwise",)), ("--kv-transfer-mode", ("push",)))
TIERS = (
    ("--kv-tier-write", ("write-through-selective", "write-back")),
    ("--kv-tier-eviction", ("lfu", "cost")),
    ("--kv-tier-recall", ("async",)),
)
FLAGS = (
    "--async-scheduling",
    "--no-async-scheduling",
    "--exact",
    "--prioritize-prefill",
    "--gen",
    "--no-enable-prefix-caching",
)
POWER = {
    "base_node_power": 60,
    "npu": {
        name: {"idle_power": 25, "standby_power": 115, "active_power": 300, "standby_duration": 18} for name in DEVICES
    },
    "dram": {"dimm_size": 32, "idle_power": 2.0, "energy_per_bit": 6.0},
    "link": {"num_links": 1, "idle_power": 5, "energy_per_bit": 4.0},
}


class LongestFirst:
    """A queue order in Python."""

    def key(self, request: Any) -> int:
        return -int(request.tokens)


def cluster(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(["plain", "plain", "dp", "pd", "mixed"])
    model = draw.choice(EXPERTS if draw.random() < 0.4 else DENSE)
    tp, pp, layout = draw.choice([1, 2, 4]), draw.choice([1, 1, 1, 2]), draw.choice(LAYOUTS)
    one = draw.choice([*DEVICES])
    nodes = []
    for node in range(draw.choice([1, 1, 2])):
        instances = []
        for place in range(2):
            hardware = draw.choice([*DEVICES]) if kind == "mixed" else one
            size, bandwidth = DEVICES[hardware]
            memory = {"mem_size": size, "mem_bw": bandwidth, "mem_latency": 0}
            place_of = {"model_name": model, "hardware": hardware, "npu_mem": memory}
            instance = {**place_of, "num_npus": tp * pp, "tp_size": tp, "pp_size": pp, **layout}
            if kind == "dp":
                instance["dp_group"] = "ranks"
            elif kind == "pd":
                instance["pd_type"] = ("prefill", "decode")[(node + place) % 2]
            elif draw.random() < PROBABLE:
                instance["placement"] = {"default": {"weights": draw.choice(["cpu", "cxl:0"])}}
            instances.append(instance)
        host = {"mem_size": 512, "mem_bw": 256, "mem_latency": 0}
        nodes.append({"num_instances": 2, "cpu_mem": host, "instances": instances})
        if draw.random() < PROBABLE:
            nodes[-1]["power"] = POWER
    pool = {"mem_size": 1024, "mem_bw": 60, "mem_latency": 250, "num_devices": 4}
    links = {"link_bw": [450, 55, 50], "link_latency": draw.choice([0, 1000])}
    return {"num_nodes": len(nodes), **links, "cxl_mem": pool, "nodes": nodes}


def arguments(draw: random.Random, *, apart: bool) -> list[str]:
    """With prefill and decode `apart`, how KV moves may be drawn, too."""
    requests = f"n={draw.choice([1, 7, 30])},rate={draw.choice([1, 20, 200])},seed=1"
    lengths = f"input=lognormal:{draw.choice([50, 600])}:max=2000,output=lognormal:{draw.choice([5, 60])}:max=300"
    chosen = ["--dataset", f"synthetic:{requests},{lengths}", "--max-model-len", "4096"]
    for name, values in OPTIONS:
        if draw.random() < PROBABLE:
            chosen += [name, draw.choice(values)]
    for name, values in (*(TIERS if "--prefix-storage" in chosen else ()), *(TRANSFERS if apart else ())):
        if draw.random() < 0.4:
            chosen += [name, draw.choice(values)]
    return chosen + [flag for flag in FLAGS if draw.random() < PROBABLE / 2]


@pytest.mark.parametrize("seed", range(40))
def test_it_runs_or_is_refused(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSIM_DEBUG", "1")  # what is no known error is raised
    monkeypatch.syspath_prepend(str(Path(__file__).parent))  # of the queue order
    draw = random.Random(seed)
    path = tmp_path / "c.json"
    document = cluster(draw)
    path.write_text(json.dumps(document))
    apart = any("pd_type" in instance for node in document["nodes"] for instance in node["instances"])
    code = run_main(["--cluster-config", str(path), *arguments(draw, apart=apart), "--json"])
    out, err = capsys.readouterr()
    if code == 0:
        summary = json.loads(out)
        assert set(summary["invariants"].values()) == {"ok"}
        ended = summary["completed"] + summary["cancelled"] + summary["rejected"] + summary["refused"]
        assert ended == summary["workload"]["requests"] and summary["unfinished"] == 0
    else:
        assert code in (2, 3), err
        assert "error: " in err and "\n" not in err.strip()
