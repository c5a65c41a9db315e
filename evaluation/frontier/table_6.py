"""Table 6 of the Frontier paper: speculation with forced acceptance on Qwen3-30B-A3B.

    python evaluation/frontier/table_6.py [--requests 300] [--trace FILE]

The paper prints errors against its own vLLM runs, which are not public, so no error can be taken
here. This prints what the same six settings do: each against the run without drafts, and with the
acceptance ratio as a property of each request (all equal, or half of them at twice the spread),
which is what per-request accounting is for. Lengths of ShareGPT are resampled from --trace.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

import llmsim
from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = [(length, ratio) for length in (2, 8, 32) for ratio in (0.3, 0.7)]
PAPER = {
    (2, 0.3): (5.48, 4.37, 0.77, 5.01), (2, 0.7): (2.75, 1.92, 1.88, 2.40),
    (8, 0.3): (0.84, 0.00, 5.12, 6.45), (8, 0.7): (4.43, 1.26, 3.53, 5.57),
    (32, 0.3): (4.14, 6.18, 4.23, 9.32), (32, 0.7): (6.40, 3.25, 2.05, 11.28),
}  # fmt: skip
"""Errors of Frontier (TTFT, TPOT, throughput, E2E), in per cent."""
CLUSTER = {
    "num_nodes": 1, "link_bw": 200, "link_latency": 0,
    "nodes": [{"num_instances": 1, "instances": [{
        "model_name": "Qwen/Qwen3-30B-A3B", "hardware": "H800", "num_npus": 8, "tp_size": 8,
        "npu_mem": {"mem_size": 80, "mem_bw": 3350, "mem_latency": 0},
    }]}],
}  # fmt: skip


def requests(count: int, rate: float, trace: str, ratio: float | None, spread: float) -> Any:
    """Rows of a table; `ratio` is each request's acceptance, +- spread for every other one."""
    from llmsim.workload import load_dataset

    given = load_dataset(trace, known_models=[], granularity=0)
    rng = np.random.default_rng(1)
    rows = rng.integers(0, len(given), count)
    table: dict[str, Any] = {
        "arrival_s": np.cumsum(rng.exponential(1 / rate, count)).tolist(),
        "input_tokens": given.input_tokens[rows].tolist(),
        "output_tokens": given.output_tokens[rows].tolist(),
    }
    if ratio is not None:
        signs = np.where(np.arange(count) % 2, 1, -1)
        table["acceptance_rate"] = np.clip(ratio + spread * signs, 0, 1).tolist()
    return table


def run(workload: Any, length: int | None) -> Any:
    """The run with `length` - 1 drafts; verify length 32 has 31."""
    options = {}
    if length is not None:
        options["speculative_config"] = {
            "method": "mtp", "num_speculative_tokens": length - 1, "acceptance_rate": [0.5],
        }  # fmt: skip
    return llmsim.run(CLUSTER, workload, series=False, steps=False, **options)


def change(new: Any, old: Any, name: str) -> str:
    """A figure of two summaries, in per cent with its sign."""
    return f"{100 * (new[name] / old[name] - 1):+.1f} %"


def main() -> None:
    """Prints the six settings, and what an uneven acceptance changes."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rate", type=float, default=16.0)
    parser.add_argument("--trace", default=str(ROOT / "dataset" / "chat_h100_300.jsonl"))
    given = parser.parse_args()
    begin = time.process_time()
    plain = run(requests(given.requests, given.rate, given.trace, None, 0.0), None).summary
    titles = (
        "verify length", "ratio", "p95 TPOT, change", "output tok/s, change",
        "accepted per verification", "p95 TPOT with ratios +-0.2",
        "errors of Frontier: TTFT, TPOT, throughput, E2E",
    )  # fmt: skip
    print(f"| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|")
    for length, ratio in SETTINGS:
        even, uneven = (
            run(requests(given.requests, given.rate, given.trace, ratio, spread), length).summary
            for spread in (0.0, 0.2)
        )
        block = even["speculation"]
        cells = [
            str(length),
            str(ratio),
            f"{even['p95_tpot_ms']:.2f} ms, {change(even, plain, 'p95_tpot_ms')}",
            f"{even['output_throughput']:.0f}, {change(even, plain, 'output_throughput')}",
            f"{block['acceptance_length'] - 1:.2f}",
            f"{uneven['p95_tpot_ms']:.2f} ms",
            ", ".join(f"{one:g} %" for one in PAPER[length, ratio]),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{time.process_time() - begin:.1f} CPU seconds")


if __name__ == "__main__":
    main()
