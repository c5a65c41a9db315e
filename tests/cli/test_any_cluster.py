"""Random clusters with random options: each runs with all invariants kept, or is refused in one sentence."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main

DENSE = ("meta-llama/Llama-3.1-8B", "google/gemma-2-9b", "Qwen/Qwen3-32B")
EXPERTS = ("Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b")
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
    ("--speculative-config", ('{"method": "ngram", "num_speculative_tokens": 2, "acceptance_rate": 0.5}',)),
)
FLAGS = ("--no-async-scheduling", "--exact", "--prioritize-prefill", "--gen", "--no-enable-prefix-caching")


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
    pool = {"mem_size": 1024, "mem_bw": 60, "mem_latency": 250, "num_devices": 4}
    links = {"link_bw": [450, 55, 50], "link_latency": draw.choice([0, 1000])}
    return {"num_nodes": len(nodes), **links, "cxl_mem": pool, "nodes": nodes}


def arguments(draw: random.Random) -> list[str]:
    requests = f"n={draw.choice([1, 7, 30])},rate={draw.choice([1, 20, 200])},seed=1"
    lengths = f"input=lognormal:{draw.choice([50, 600])}:max=2000,output=lognormal:{draw.choice([5, 60])}:max=300"
    chosen = ["--dataset", f"synthetic:{requests},{lengths}", "--max-model-len", "4096"]
    for name, values in OPTIONS:
        if draw.random() < PROBABLE:
            chosen += [name, draw.choice(values)]
    return chosen + [flag for flag in FLAGS if draw.random() < PROBABLE / 2]


@pytest.mark.parametrize("seed", range(40))
def test_it_runs_or_is_refused(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSIM_DEBUG", "1")  # what is no known error is raised
    draw = random.Random(seed)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(cluster(draw)))
    code = run_main(["--cluster-config", str(path), *arguments(draw), "--json"])
    out, err = capsys.readouterr()
    if code == 0:
        summary = json.loads(out)
        assert set(summary["invariants"].values()) == {"ok"}
        ended = summary["completed"] + summary["cancelled"] + summary["rejected"] + summary["refused"]
        assert ended == summary["workload"]["requests"] and summary["unfinished"] == 0
    else:
        assert code in (2, 3), err
        assert "error: " in err and "\n" not in err.strip()
