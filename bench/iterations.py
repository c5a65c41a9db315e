"""`python -m bench.iterations`: microseconds of the core per iteration, dense and with experts, one
decoding sequence.

Qwen3-32B with tp 8 against Qwen3-30B-A3B (48 layers, 128 experts) with ep 8, and Qwen3-235B-A22B
(94 such layers) with ep 64, loads balanced and drawn; everything that a step takes in the loop
(schedule, price, complete), the best of five. Then what drawing adds to a start without cached
tables.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.costs.experts.routing import parse_expert_routing
from llmsim.lowering import LoweredDeployment, LoweringOptions, lower
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import native_simulation
from llmsim.workload import load_dataset

ROOT = Path(__file__).resolve().parents[1]
STEPS = 20_000
SKEWED = "POWER_LAW:alpha=1.2"


def deployment(model: str, experts: str, devices: int, **layout: Any) -> LoweredDeployment:
    document = json.loads(
        (ROOT / "cluster_config/h100_llama31_70b_tp4.json").read_text(encoding="utf-8")
    )
    instance = document["nodes"][0]["instances"][0]
    del instance["tp_size"]
    instance.update(model_name=model, num_npus=devices, **(layout or {"tp_size": devices}))
    cluster = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    return lower(
        cluster,
        LoweringOptions(cost_source="roofline", expert_routing=parse_expert_routing(experts)),
    )


def microseconds(lowered: LoweredDeployment) -> float:
    """Of one iteration."""
    trace = f"synthetic:n=1,rate=1,input=16,output={STEPS},seed=1"
    workload = load_dataset(trace, known_models=lowered.models, granularity=lowered.granularity)
    best = float("inf")
    for _ in range(5):
        simulation = native_simulation(lowered, workload, SimulationOptions(series_interval_ps=0))
        start = time.perf_counter()
        while not simulation.run(10 * STEPS):
            pass
        best = min(best, (time.perf_counter() - start) / STEPS * 1e6)
    return best


def start(experts: str) -> float:
    """CPU seconds of lowering 48 layers of 128 experts over eight data-parallel ranks, nothing
    cached.
    """
    ranks = {"attn_tp_size": 1, "attn_dp_size": 8, "ffn_tp_size": 1, "ffn_ep_size": 8}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLMSIM_CACHE"] = folder
        begin = time.process_time()
        deployment(
            "Qwen/Qwen3-30B-A3B", experts, 8, **ranks, all2all_backend="deepep_high_throughput"
        )
        return time.process_time() - begin


def main() -> None:
    dense = microseconds(deployment("Qwen/Qwen3-32B", "BALANCED", 8))
    print(f"dense, tp 8: {dense:.2f} us per iteration")
    for model, ranks in (("Qwen/Qwen3-30B-A3B", 8), ("Qwen/Qwen3-235B-A22B", 64)):
        for experts in ("BALANCED", SKEWED):
            us = microseconds(deployment(model, experts, ranks))
            print(
                f"{model}, ep {ranks}, {experts}: {us:.2f} us per iteration, {us / dense:.1f} "
                "times dense"
            )
    start("BALANCED")
    even, sampled = start("BALANCED"), start(SKEWED)
    print(
        f"start, Qwen/Qwen3-30B-A3B over 8 ranks with all-to-all: {even:.2f} s of CPU, "
        f"{sampled:.2f} s with {SKEWED}"
    )


if __name__ == "__main__":
    main()
