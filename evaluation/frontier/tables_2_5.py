"""Tables 2 and 5 of the Frontier paper: tokens that CUDA graphs of decode steps pad.

    python evaluation/frontier/tables_2_5.py [--quick]

Qwen3-30B-A3B on H800: two engines of TP4 with both phases, or two that prefill and two that decode.
The tables give the number of requests: padding / inflation of table 2 are the decode tokens of 128
requests, eager tokens of table 5 are 128 x (2,048 + 256 - 1) = 294.8k with both phases and
64 x 2,304 = 147.5k apart. Capture sizes are 1, 2, 4, ... 64, as section 2.2 prints them. The paper
prints neither layouts, arrivals nor the spread of lengths, so these are assumptions: these
engines, Poisson arrivals at 8 per second, and lognormal lengths of a coefficient of variation of
0.3. Sensitivity: arrivals, spread, and other capture sizes. ShareGPT's lengths are resampled from
those of --trace.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

import llmsim
from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[2]
LOADS = {
    "2048/256": (2048, 256),
    "256/2048": (256, 2048),
    "512/512": (512, 512),
    "1024/1024": (1024, 1024),
}
TABLE_2 = {
    ("one", "2048/256"): ("7K", 22.6), ("one", "256/2048"): ("100K", 38.7),
    ("one", "512/512"): ("29K", 45.8), ("one", "1024/1024"): ("28K", 22.6),
    ("apart", "2048/256"): ("14K", 42.6), ("apart", "256/2048"): ("111K", 42.5),
    ("apart", "512/512"): ("37K", 57.2), ("apart", "1024/1024"): ("52K", 40.0),
}  # fmt: skip
TABLE_5 = {
    ("one", "2048/256"): (294.8, 307.3), ("one", "256/2048"): (294.8, 420.5),
    ("one", "ShareGPT"): (69.6, 84.2),
    ("apart", "2048/256"): (147.5, 150.1), ("apart", "256/2048"): (147.5, 167.9),
    ("apart", "ShareGPT"): (34.9, 42.9),
}  # fmt: skip
BINS = (1, 2, 4, 8, 16, 32, 64)
ASSUMED: dict[str, Any] = {"rate": 8.0, "cv": 0.3, "sizes": BINS}
OTHERS: dict[str, tuple[Any, ...]] = {
    "rate": (None, 2.0, 32.0),
    "cv": (0.01, 1.0),
    "sizes": ((*BINS, 128), (1, 2, 4, *range(8, 129, 8))),
}


def cluster(apart: bool) -> dict[str, Any]:
    """Engines of four H800."""
    instance = {"model_name": "Qwen/Qwen3-30B-A3B", "hardware": "H800"}
    instance["npu_mem"] = {"mem_size": 80, "mem_bw": 3350, "mem_latency": 0}
    instance |= {"num_npus": 4, "tp_size": 4}
    roles = ["prefill", "prefill", "decode", "decode"] if apart else [None, None]
    instances = [instance | ({"pd_type": role} if role else {}) for role in roles]
    return {
        "num_nodes": 1, "link_bw": 200, "link_latency": 0,
        "engine": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "nodes": [{"num_instances": len(instances), "instances": instances}],
    }  # fmt: skip


def workload(load: str, count: int, assumed: dict[str, Any], trace: str) -> Any:
    """Requests of a load; those of ShareGPT are drawn from a trace with a fixed seed."""
    rng = np.random.default_rng(1)
    arrivals = np.zeros(count)
    if assumed["rate"]:
        arrivals = np.cumsum(rng.exponential(1 / assumed["rate"], count))
    if load == "ShareGPT":
        from llmsim.workload import load_dataset

        given = load_dataset(trace, known_models=[], granularity=0)
        rows = rng.integers(0, len(given), count)
        lengths = given.input_tokens[rows], given.output_tokens[rows]
    else:
        sigma = np.sqrt(np.log1p(assumed["cv"] ** 2))
        scale = np.exp(sigma * rng.standard_normal((2, count)) - sigma**2 / 2)
        lengths = tuple(
            np.maximum(np.rint(mean * row), 2) for mean, row in zip(LOADS[load], scale, strict=True)
        )
        # The sum of tokens is the paper's, whatever the draw.
        lengths = tuple(
            np.maximum(np.rint(row * mean * count / row.sum()), 2)
            for mean, row in zip(LOADS[load], lengths, strict=True)
        )
    return [
        llmsim.Request(float(at), int(prompt), int(answer))
        for at, prompt, answer in zip(arrivals, *lengths, strict=True)
    ]


def tokens(
    apart: bool, load: str, count: int, assumed: dict[str, Any], trace: str
) -> dict[str, float]:
    """Tokens of all steps with and without padding, and of decode steps alone."""
    result = llmsim.run(
        cluster(apart), workload(load, count, assumed, trace), series=False,
        cudagraph_capture_sizes=",".join(map(str, assumed["sizes"])), async_scheduling=False,
    )  # fmt: skip
    steps = result.steps
    padding = int((steps.padded_tokens - steps.tokens).sum())
    decodes = steps[steps.prefill_tokens == 0]
    useful = int(decodes.tokens.sum())
    return {
        "eager": int(steps.tokens.sum()),
        "graphs": int(steps.padded_tokens.sum()),
        "padding": padding,
        "inflation": 100 * padding / useful if useful else 0.0,
    }


def table_2(assumed: dict[str, Any], trace: str) -> None:
    """128 requests of each load."""
    print(
        "\n## Table 2\n\n| mode | load | padding | paper | inflation | paper |\n"
        + "| --- " * 6
        + "|"
    )
    for (mode, load), (padding, inflation) in TABLE_2.items():
        found = tokens(mode == "apart", load, 128, assumed, trace)
        print(
            f"| {mode} | {load} | {found['padding'] / 1000:.0f}K | {padding} | "
            f"{found['inflation']:.1f} % | {inflation} % |"
        )


def table_5(assumed: dict[str, Any], trace: str) -> None:
    """128 requests with one engine, 64 apart; those of ShareGPT as many as their tokens say."""
    print(
        "\n## Table 5\n\n| mode | load | eager | paper | with graphs | paper | difference |\n"
        + "| --- " * 7
        + "|"
    )
    for (mode, load), (eager, graphs) in TABLE_5.items():
        count = 128 if mode == "one" else 64
        found = tokens(mode == "apart", load, count, assumed, trace)
        difference = 100 * (found["graphs"] / 1000 / graphs - 1)
        print(
            f"| {mode} | {load} | {found['eager'] / 1000:.1f}k | {eager}k | "
            f"{found['graphs'] / 1000:.1f}k | {graphs}k | {difference:+.1f} % |"
        )


def sensitivity(trace: str) -> None:
    """The inflation of each row of table 2, with one assumption changed at a time."""
    rows = [("one", "2048/256"), ("one", "256/2048"), ("apart", "2048/256"), ("apart", "256/2048")]
    print("\n## Inflation of table 2 by assumption\n")
    print(
        f"| assumption | value | {' | '.join(' '.join(row) for row in rows)} |\n"
        + "| --- " * 6
        + "|"
    )
    for name, values in OTHERS.items():
        for value in values:
            found = [
                tokens(mode == "apart", load, 128, {**ASSUMED, name: value}, trace)["inflation"]
                for mode, load in rows
            ]
            shown = f"{len(value)} sizes to {value[-1]}" if isinstance(value, tuple) else value
            print(f"| {name} | {shown} | {' | '.join(f'{one:.1f} %' for one in found)} |")


def main() -> None:
    """Prints both tables beside the paper's, and the sensitivities."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--trace", default=str(ROOT / "dataset" / "chat_h100_300.jsonl"))
    parser.add_argument("--quick", action="store_true", help="leave the sensitivities out")
    given = parser.parse_args()
    begin = time.process_time()
    table_2(ASSUMED, given.trace)
    table_5(ASSUMED, given.trace)
    if not given.quick:
        sensitivity(given.trace)
    print(f"\n{time.process_time() - begin:.1f} CPU seconds")


if __name__ == "__main__":
    main()
