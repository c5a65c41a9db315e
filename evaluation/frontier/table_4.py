"""Table 4 of the Frontier paper: KV blocks of Qwen3-30B-A3B on H800 by parallel layout.

    python evaluation/frontier/table_4.py

The paper does not print its memory utilisation, and its blocks are far fewer than 0.9 of 80 GB
gives. Its analytical baseline, requested memory less weights, gives that figure back: each row
runs with the utilisation whose analytical blocks are the paper's. What is compared is then what
the engine takes beside weights and KV: the difference of the analytical blocks and vLLM's.
Layouts with data parallelism are one rank of it, as blocks are counted per rank.
"""

import time
from typing import Any

import llmsim
from llmsim.cli.arguments import OneSentenceParser

PAPER = (
    # (pp, tp, dp, ep), mode, blocks of vLLM, more by Frontier, more by the analytical baseline
    ((1, 8, 1, 8), "one", 31_000, 7, 4_400),
    ((4, 2, 1, 2), "one", 58_000, 1_000, 12_500),
    ((2, 2, 2, 4), "apart", 27_000, 500, 7_600),
    ((1, 4, 1, 4), "apart", 12_000, -1, 4_600),
)
MEMORY_BYTES = 80 * 1024**3
BLOCK_TOKENS = 16


def summary(layout: tuple[int, int, int, int], utilisation: float) -> dict[str, Any]:
    """KV cache of the first group of an engine with that layout."""
    pp, tp, dp, ep = layout
    instance = {
        "model_name": "Qwen/Qwen3-30B-A3B", "hardware": "H800", "num_npus": pp * tp, "tp_size": tp,
        "pp_size": pp, "ep_size": ep,
        "npu_mem": {"mem_size": MEMORY_BYTES >> 30, "mem_bw": 3350, "mem_latency": 0},
    }  # fmt: skip
    if dp > 1:
        instance["dp_group"] = "ranks"
    cluster = {
        "num_nodes": 1, "link_bw": 200, "link_latency": 0,
        "nodes": [{"num_instances": dp, "instances": [instance] * dp}],
    }  # fmt: skip
    result = llmsim.run(
        cluster, "synthetic:n=2,rate=1,input=16,output=2", gpu_memory_utilization=utilisation,
        series=False, steps=False, max_model_len=8192, engine_profile="vllm-0.10",
    )  # fmt: skip
    found: dict[str, Any] = result.summary["kv_cache"][0]
    return found


def weights_of(found: dict[str, Any]) -> int:
    """Bytes of the weights in a memory ledger."""
    return sum(-one["bytes"] for one in found["ledger"] if one["label"].startswith("weights"))


def main() -> None:
    """Prints blocks and the engine's own memory, ours beside the paper's."""
    OneSentenceParser(description=__doc__).parse_args()
    begin = time.process_time()
    print(
        "| pp, tp, dp, ep | utilisation | vLLM | ours | Frontier | analytical "
        "| engine's own, vLLM | ours |"
    )
    print("| --- " * 8 + "|")
    for layout, mode, vllm, frontier, analytical in PAPER:
        free = summary(layout, 0.9)
        block, weights = int(free["block_bytes"]), weights_of(free)
        wanted = (vllm + analytical) * block + weights
        utilisation = wanted / MEMORY_BYTES
        found = summary(layout, round(utilisation, 6))
        ours = found["num_blocks"] - 1
        mine = (vllm + analytical - ours) * block / 1e9
        theirs = analytical * block / 1e9
        print(
            f"| {', '.join(map(str, layout))} ({mode}) | {utilisation:.3f} | {vllm} | "
            f"{ours} ({100 * (ours / vllm - 1):+.1f} %) | {100 * frontier / vllm:+.2f} % | "
            f"{100 * analytical / vllm:+.1f} % | {theirs:.2f} GB | {mine:.2f} GB |"
        )
    print(f"\n{time.process_time() - begin:.1f} CPU seconds")


if __name__ == "__main__":
    main()
