"""`python -m bench.examples`: runs every example cluster and writes docs/tutorial/examples.md.

`--check` measures wall time.
"""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial" / "examples.md"
TRACE = "dataset/example_10.jsonl"
BUDGET_S = 1.0


@dataclass(frozen=True)
class Example:
    """One cluster file with the options that show it; `cost_source` "auto" where measured kernels
    exist.
    """

    file: str
    what: str
    options: tuple[str, ...] = ("--cost-source", "roofline")
    dataset: str = TRACE

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            "--cluster-config",
            f"cluster_config/{self.file}.json",
            "--dataset",
            self.dataset,
            *self.options,
        )


ROOFLINE = ("--cost-source", "roofline")
SHARED = ("--enable-prefix-sharing", "--prefix-storage")
MIXED = (
    "synthetic:n=10,rate=5,input=33,output=77,seed=1,model=meta-llama/Llama-3.1-8B|Qwen/Qwen3-8B"
)
EXAMPLES = (
    Example("single_node_single_instance", "one A6000, Llama-3.1-8B"),
    Example(
        "single_node_single_instance_H100",
        "four H100 as one tensor-parallel instance, Llama-3.1-70B",
    ),
    Example("single_node_multi_instance", "two A6000, each with Llama-3.1-8B"),
    Example("dual_node_multi_instance", "two nodes of two A6000"),
    Example("single_node_pd_instance", "one A6000 prefills, one decodes"),
    Example("single_node_moe_single_instance", "one A6000, Phi-mini-MoE"),
    Example("single_node_moe_multi_instance", "two A6000, each with Phi-mini-MoE"),
    Example("single_node_moe_pd_instance", "Phi-mini-MoE, one A6000 prefills, one decodes"),
    Example(
        "single_node_moe_dp_ep_instance",
        "Qwen3-30B-A3B: two data-parallel ranks of two H100, experts over all",
    ),
    Example(
        "dual_node_moe_dp_ep_instance",
        "Qwen3-30B-A3B: two data-parallel ranks of two H100, one rank per node",
    ),
    Example(
        "single_node_tp_pp_instance", "Llama-3.1-70B on H100, two pipeline stages of two devices"
    ),
    Example(
        "l40s_llama31_8b_tp4_pcie",
        "Llama-3.1-8B on four of eight L40S, on the routes of a PCIe server",
    ),
    Example("single_node_memory_instance", "every placement key, all weights on the device"),
    Example("single_node_cxl_instance", "one A6000 with weights on four CXL devices"),
    Example(
        "single_node_moe_offload_instance",
        "Phi-mini-MoE with its experts in host memory, a quarter cached",
    ),
    Example(
        "single_node_power_instance", "one A6000, Llama-3.1-8B, with the power of every component"
    ),
    Example("single_node_pim_instance", "decodes attend in 256 channels of HBM2"),
    Example(
        "single_node_pim_instance",
        "decodes attend in 256 channels of HBM2, with sub-batches",
        (*ROOFLINE, "--enable-attn-offloading", "--enable-sub-batch-interleaving"),
    ),
    Example("cxl_two_groups", "two A6000 whose weights are on one CXL device"),
    Example("pd_pim_instance", "one A6000 prefills, the other decodes with attention in memory"),
    Example("cpu_attention_instance", "one A6000 whose attention runs on two Xeon sockets"),
    Example(
        "heterogeneous_instance", "an H100 and an A6000 serve one model, with prices", (*ROOFLINE,)
    ),
    Example("tpu_v6e_slice", "a slice of eight TPU v6e, Llama-3.1-70B"),
    Example("cpu_amx_instance", "a two-socket CPU node with AMX, Llama-3.1-8B in tensor parallel"),
    Example("h100_llama31_8b", "one H100, Llama-3.1-8B"),
    Example("rtxpro6000_llama31_8b", "one RTX PRO 6000, Llama-3.1-8B"),
    Example("h100_llama31_70b_tp4", "four H100 as one tensor-parallel instance, Llama-3.1-70B"),
    Example("h100_llama31_70b_tp4_pp2", "eight H100, two pipeline stages of four, Llama-3.1-70B"),
    Example("h100_qwen3_30b_a3b", "one H100, Qwen3-30B-A3B"),
    Example(
        "rtxpro6000_qwen3_30b_a3b_dp2_ep2",
        "two RTX PRO 6000: data-parallel attention, experts shared by both",
    ),
    Example(
        "h100_qwen3_30b_a3b_attn2x4_ep8",
        "eight H100: attention as four ranks of two, experts over all by DeepEP",
    ),
    Example("h200_deepseek_v3_tp8_dcp8", "eight H200, DeepSeek-V3, KV cache sharded by tokens"),
    Example(
        "h200_deepseek_v32_tp8", "eight H200, DeepSeek-V3.2, sparse attention to chosen tokens"
    ),
    Example(
        "h100_nemotron3_nano_tp2", "two H100, Nemotron 3 Nano: state spaces, attention and experts"
    ),
    Example("h100_multi_instance", "two H100, each with Llama-3.1-8B"),
    Example(
        "h100_mixed_models", "two H100, one with Llama-3.1-8B, one with Qwen3-8B", dataset=MIXED
    ),
    Example(
        "h100_cpu_prefix_pool",
        "two H100 that share host memory for KV",
        (*ROOFLINE, *SHARED, "CPU"),
    ),
    Example(
        "h100_cxl_prefix_pool", "two H100 that share a CXL pool for KV", (*ROOFLINE, *SHARED, "CXL")
    ),
    Example(
        "h100_multi_shared_prefix_pool",
        "two nodes of two H100: host memory before a shared CXL pool",
        (*ROOFLINE, *SHARED, "CPU+CXL"),
    ),
    Example("h100_llama31_8b_pd", "one H100 prefills, one decodes"),
    Example("h100_llama31_8b_pd_2p1d", "two H100 prefill, one decodes, layerwise KV transfers"),
    Example(
        "h100_h200_llama31_70b_pd", "dual node: four H100 prefill, two H200 decode, Llama-3.1-70B"
    ),
    Example("h100_l40s_llama31_8b_pd", "dual node: one H100 prefills, two L40S decode"),
    Example("h100_qwen3_30b_a3b_pd", "Qwen3-30B-A3B: one H100 prefills, one decodes"),
    Example(
        "h100_gpt_oss_120b_pd",
        "gpt-oss-120b, every second layer with a window: two H100 prefill, two decode",
    ),
)

HEAD = """# Examples

This page lists all files of `cluster_config/`: every scenario of LLMServingSim, with figures from [named sources](../../cluster_config/README.md#where-the-numbers-come-from), and more.
Each row is a run of `dataset/example_10.jsonl` (10 requests, 328 prompt tokens, 768 output tokens):

    python main.py --cluster-config cluster_config/NAME.json --dataset dataset/example_10.jsonl --cost-source roofline

The tests run every row and compare it with this table. Some rows need more options:

| rows | options |
| --- | --- |
| sub-batches | `--enable-attn-offloading --enable-sub-batch-interleaving` |
| prefix pools | `--enable-prefix-sharing`, and `--prefix-storage` CPU, CXL or CPU+CXL |
| h100_mixed_models | a trace whose requests name a model, as below |

The ten requests share no prefix, so the prefix pools have no hits; [kv_tiers.md](../explanation/kv_tiers.md) has a trace with hits.

    --dataset "synthetic:n=10,rate=5,input=33,output=77,seed=1,model=meta-llama/Llama-3.1-8B|Qwen/Qwen3-8B"

`python -m bench.examples` writes the table. `python -m bench.examples --check` measures wall and CPU time of whole processes with cached cost tables and bytecode.
Each run takes less than a second on an idle machine. LLMServingSim needs 34 to 355 s for ten requests.

| cluster | what it shows | duration s | output tok/s | TTFT ms | TPOT ms | J per output token | USD per M tokens |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""  # noqa: E501


def run(example: Example) -> tuple[dict[str, Any] | None, str]:
    """The summary of one example, or None and why it does not run."""
    command = [sys.executable, str(ROOT / "main.py"), *example.arguments, "--json"]
    cached = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, env=cached
    )
    if done.returncode == 2 and "in this version" in done.stderr:
        return None, "refused by name in this version"
    if done.returncode:
        raise SystemExit(f"{example.file}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found, ""


def row(example: Example, summary: dict[str, Any]) -> str:
    """One line of the table."""
    energy, cost = summary.get("energy") or {}, summary.get("cost") or {}
    figures = (
        summary["duration"],
        summary["output_throughput"],
        summary["mean_ttft_ms"],
        summary["mean_tpot_ms"],
        energy.get("j_per_output_token"),
        cost.get("per_million_output_tokens"),
    )
    cells = ["-" if figure is None else f"{figure:.4g}" for figure in figures]
    return f"| {' | '.join((example.file, example.what, *cells))} |"


def _verdict(wall_s: float, cpu_s: float) -> str:
    """A run is one thread: what it waits beyond its CPU time are other programs."""
    if wall_s <= BUDGET_S:
        return "ok"
    return (
        f"above {BUDGET_S} s"
        if cpu_s > BUDGET_S
        else f"ok but for a load of {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = OneSentenceParser(prog="python -m bench.examples", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="measure wall time instead of writing the page"
    )
    if not parser.parse_args().check:
        rows = []
        for example in EXAMPLES:
            summary, why = run(example)
            rows.append(
                f"| {example.file} | {example.what}: {why} | | | | | | |"
                if summary is None
                else row(example, summary)
            )
        PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
        return
    for example in EXAMPLES:
        run(example)  # compiles the cost tables
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        _, why = run(example)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        verdict = why or _verdict(wall, cpu)
        print(f"{example.file:40}{wall:8.2f} s wall {cpu:6.2f} s CPU  {verdict}", flush=True)


if __name__ == "__main__":
    main()
