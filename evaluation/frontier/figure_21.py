"""Figure 21 of the Frontier paper: SGLang's scheduler beside vLLM's on 256 H800.

    python evaluation/frontier/figure_21.py [--requests 1024] [--quick]

Qwen3-235B-A22B, one engine of 16 data-parallel ranks of pp2 x tp8 whose experts are spread over
128 GPUs, chunked prefill, decode-only CUDA graphs, no prefix cache; 1,024 requests at 64 per
second. ShareGPT's lengths are resampled from those of --trace (a fixed seed), since the paper's
trace is not public. Assumed: Poisson arrivals, blocks and budgets of each scheduler's defaults.
Sensitivity: rate, token budget, pipeline stages, seed of the resampled lengths.

The paper's runs are under a pressure that ours do not have: 868 of its 1,024 requests wait at the
worst, and its 1,551 steps last beyond 510 s, a third of a second each. Its "SGLang" is vLLM's
queues and blocks with prompts first (`sglang_style` of its public code); ours is SGLang 0.5.23.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

import llmsim
from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[2]
PAPER = {
    "p95 TTFT": "within 1.06 %", "p95 TPOT": "-7.15 %", "p95 E2E": "+3.01 %",
    "throughput": "-2.90 %", "mean sequences of a step": "183.7 -> 264.6 (+44.0 %)",
    "steps with work": "1,551 -> 1,077 (-30.6 %)", "most waiting": "868 -> 868",
}  # fmt: skip
ASSUMED: dict[str, Any] = {"rate": 64.0, "budget": 8192, "seed": 1, "stages": 2}
OTHERS: dict[str, tuple[Any, ...]] = {
    "rate": (32.0, 128.0, 640.0),
    "budget": (2048, 16384),
    "stages": (1,),
    "seed": (2, 3),
}


def cluster(ranks: int, stages: int) -> dict[str, Any]:
    """One engine of data-parallel ranks that share their experts."""
    instance = {
        "model_name": "Qwen/Qwen3-235B-A22B", "hardware": "H800", "num_npus": 8 * stages,
        "tp_size": 8, "pp_size": stages, "ep_size": 8 * ranks, "dp_group": "engine",
        "npu_mem": {"mem_size": 80, "mem_bw": 3350, "mem_latency": 0},
    }  # fmt: skip
    return {
        "num_nodes": 1, "link_bw": [200, 50], "link_latency": [1000, 5000],
        "engine": {"cudagraph_mode": "FULL_DECODE_ONLY", "enable_prefix_caching": False},
        "nodes": [{"num_instances": ranks, "instances": [instance] * ranks}],
    }  # fmt: skip


def workload(count: int, assumed: dict[str, Any], trace: str) -> dict[str, Any]:
    """Rows of a table with resampled lengths."""
    from llmsim.workload import load_dataset

    given = load_dataset(trace, known_models=[], granularity=0)
    rng = np.random.default_rng(assumed["seed"])
    rows = rng.integers(0, len(given), count)
    return {
        "arrival_s": np.cumsum(rng.exponential(1 / assumed["rate"], count)).tolist(),
        "input_tokens": given.input_tokens[rows].tolist(),
        "output_tokens": given.output_tokens[rows].tolist(),
    }


def figures(scheduler: str, count: int, assumed: dict[str, Any], given: Any) -> dict[str, float]:
    """What the figure's panels compare."""
    result = llmsim.run(
        cluster(16, assumed["stages"]), workload(count, assumed, given.trace), series=False,
        scheduler=scheduler, max_num_batched_tokens=assumed["budget"], async_scheduling=False,
        max_model_len=32_768, engine_profile="vllm-0.24",  # only the schedulers differ
    )  # fmt: skip
    summary, steps = result.summary, result.steps
    work = steps[steps.sequences > 0]
    # The ranks of an engine step together: a round counts once, with the sequences of all ranks.
    rounds = work.groupby("start_ps").sequences.sum()
    return {
        "p95 TTFT": summary["p95_ttft_ms"],
        "p95 TPOT": summary["p95_tpot_ms"],
        "p95 E2E": summary["p95_e2el_ms"],
        "throughput": summary["output_throughput"],
        "mean sequences of a step": float(rounds.mean()),
        "steps with work": float(len(rounds)),
        "most waiting": float(most_waiting(result)),
    }


def most_waiting(result: llmsim.Result) -> int:
    """Requests that had arrived and not run yet, at the worst."""
    requests = result.requests
    times = np.concatenate([requests.arrival_ps, requests.scheduled_ps])
    change = np.repeat([1, -1], len(requests))
    return int(np.cumsum(change[np.argsort(times, kind="stable")]).max())


def compare(count: int, assumed: dict[str, Any], given: Any) -> dict[str, tuple[float, float]]:
    """Each figure with vLLM's scheduler and with SGLang's."""
    vllm, sglang = (figures(name, count, assumed, given) for name in ("vllm_v1", "sglang"))
    return {name: (vllm[name], sglang[name]) for name in vllm}


def main() -> None:
    """Prints the comparison beside the paper's, and the sensitivities."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--stages", type=int, default=2, help="pipeline stages of each rank")
    parser.add_argument("--trace", default=str(ROOT / "dataset" / "chat_h100_300.jsonl"))
    parser.add_argument("--quick", action="store_true", help="leave the sensitivities out")
    given = parser.parse_args()
    begin = time.process_time()
    assumed = {**ASSUMED, "stages": given.stages}
    print("| figure | vLLM | SGLang | change | paper |\n| --- | --- | --- | --- | --- |")
    for name, (vllm, sglang) in compare(given.requests, assumed, given).items():
        print(
            f"| {name} | {vllm:.2f} | {sglang:.2f} | {100 * (sglang / vllm - 1):+.1f} % "
            f"| {PAPER[name]} |"
        )
    if not given.quick:
        print(
            f"\n| assumption | value | {' | '.join(PAPER)} |\n" + "| --- " * (len(PAPER) + 2) + "|"
        )
        for name, values in OTHERS.items():
            for value in values:
                found = compare(given.requests, {**assumed, name: value}, given)
                cells = [f"{100 * (new / old - 1):+.1f} %" for old, new in found.values()]
                print(f"| {name} | {value} | {' | '.join(cells)} |", flush=True)
    print(f"\n{time.process_time() - begin:.1f} CPU seconds")


if __name__ == "__main__":
    main()
