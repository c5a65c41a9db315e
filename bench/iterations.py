"""`python -m bench.iterations`: microseconds of the core per iteration, dense and with experts, one decoding sequence.

Qwen3-32B with tp 8 against Qwen3-30B-A3B (48 layers, 128 experts) with ep 8, loads balanced and drawn; everything
that a step takes in the loop (schedule, price, complete), the best of five.
"""

import json
import time
from pathlib import Path

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.costs.expert_routing import parse_expert_routing
from llmsim.lowering import LoweredDeployment, LoweringOptions, lower
from llmsim.simulate import SimulationOptions, _native_simulation
from llmsim.workload import load_dataset

ROOT = Path(__file__).resolve().parents[1]
STEPS = 20_000


def deployment(model: str, experts: str) -> LoweredDeployment:
    document = json.loads((ROOT / "cluster_config/h100_llama31_70b_tp4.json").read_text(encoding="utf-8"))
    document["nodes"][0]["instances"][0].update(model_name=model, num_npus=8, tp_size=8)
    cluster = resolve(parse_cluster(json.dumps(document)), EngineOverrides())
    return lower(cluster, LoweringOptions(cost_source="roofline", expert_routing=parse_expert_routing(experts)))


def microseconds(lowered: LoweredDeployment) -> float:
    """Of one iteration."""
    trace = f"synthetic:n=1,rate=1,input=16,output={STEPS},seed=1"
    workload = load_dataset(trace, known_models=lowered.models, granularity=lowered.granularity)
    best = float("inf")
    for _ in range(5):
        simulation = _native_simulation(lowered, workload, SimulationOptions(series_interval_ps=0))
        start = time.perf_counter()
        while not simulation.run(10 * STEPS):
            pass
        best = min(best, (time.perf_counter() - start) / STEPS * 1e6)
    return best


def main() -> None:
    dense = microseconds(deployment("Qwen/Qwen3-32B", "BALANCED"))
    print(f"dense, tp 8: {dense:.2f} us per iteration")
    for experts in ("BALANCED", "POWER_LAW:alpha=1.2"):
        us = microseconds(deployment("Qwen/Qwen3-30B-A3B", experts))
        print(f"experts, ep 8, {experts}: {us:.2f} us per iteration, {us / dense:.1f} times dense")


if __name__ == "__main__":
    main()
