"""Figure 12 of the Frontier paper: Step3-316B on 16 H800 with attention and FFN on devices apart.

    python evaluation/frontier/figure_12.py [--requests 256] [--quick]

Attention as eight data-parallel ranks on one server of eight H800, FFNs on another: every expert
cut over the eight (FFN-TP), or 48 / 8 whole experts on each (FFN-EP). Workloads as the paper's:
2,048 prompt and 256 answer tokens, 256 and 2,048, 1,024 and 1,024. The paper prints no value of
its bars, only that its simulator is within 6.4 % (TPOT) and 7.0 % (throughput) of its own
implementation; ours are predictions. Assumed: FP8 weights in blocks of 128 (BF16 ones do not fit
eight devices), all requests at once, as many as --requests, and prompts computed by servers of
eight more H800 each.
Sensitivity: lanes, what travels between the sides, link between the servers, requests, prefill.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import llmsim
from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "llmsim" / "presets" / "models" / "stepfun-ai" / "Step3-316B.json"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
WORKLOADS = {
    "prefill-heavy": (2048, 256),
    "decode-heavy": (256, 2048),
    "balanced": (1024, 1024),
}
LAYOUTS = {"FFN-TP": (8, 1), "FFN-EP": (1, 8)}
ASSUMED: dict[str, Any] = {
    "lanes": 2, "dispatch": "routed", "network_gb_per_s": 50, "requests": 256, "prefill_servers": 4,
}  # fmt: skip
OTHERS: dict[str, tuple[Any, ...]] = {
    "lanes": (1, 3),
    "dispatch": ("dense",),
    "network_gb_per_s": (25, 100),
    "requests": (128, 512),
    "prefill_servers": (2, 8),
}


def cluster(layout: str, model: str, assumed: dict[str, Any]) -> dict[str, Any]:
    """Servers of eight H800: one for attention, one for FFNs, the others for prompts."""
    cut, spread = LAYOUTS[layout]
    common = {
        "model_name": model, "hardware": "H800", "num_npus": 8,
        "npu_mem": {"mem_size": 79.1, "mem_bw": 3350, "mem_latency": 0},
    }  # fmt: skip
    attention = {
        **common, "pd_type": "attention", "afd_group": "layers",
        "attn_tp_size": 1, "attn_dp_size": 8,
        "afd_micro_batches": assumed["lanes"], "afd_dispatch": assumed["dispatch"],
    }  # fmt: skip
    ffn = {
        **common, "pd_type": "ffn", "afd_group": "layers",
        "ffn_tp_size": cut, "ffn_ep_size": spread,
    }  # fmt: skip
    prefill = {**common, "pd_type": "prefill", "tp_size": 8, "ep_size": 8}
    servers = [attention, ffn, *[prefill] * assumed["prefill_servers"]]
    return {
        "num_nodes": len(servers),
        "link_bw": [200, 200, assumed["network_gb_per_s"]], "link_latency": [1000, 1000, 2000],
        "engine": {"enable_prefix_caching": False},
        "nodes": [{"num_instances": 1, "instances": [server]} for server in servers],
    }  # fmt: skip


def with_fp8(folder: str) -> str:
    """The path of the model's config with FP8 weights in blocks."""
    config = json.loads(MODEL.read_text(encoding="utf-8"))
    path = Path(folder) / "Step3-316B.json"
    path.write_text(json.dumps({**config, "quantization_config": FP8}), encoding="utf-8")
    return str(path)


def figures(layout: str, model: str, workload: str, assumed: dict[str, Any]) -> dict[str, float]:
    """What the bars show, and how the two sides balance."""
    prompt, answer = WORKLOADS[workload]
    count = assumed["requests"]
    requests = {
        "arrival_s": [0.0] * count,
        "input_tokens": [prompt] * count,
        "output_tokens": [answer] * count,
    }
    result = llmsim.run(cluster(layout, model, assumed), requests, series=False, steps=False)
    summary = result.summary
    [balance] = summary["afd"]
    return {
        "p95 TPOT (ms)": summary["p95_tpot_ms"],
        "decode tokens/s": summary["output_throughput"],
        "attention idle": balance["attention_idle"],
        "FFN idle": balance["ffn_idle"],
    }


def row(workload: str, layout: str, found: dict[str, float]) -> str:
    """A row of the table."""
    return (
        f"| {workload} | {layout} | {found['p95 TPOT (ms)']:.2f} | {found['decode tokens/s']:,.0f} "
        f"| {found['attention idle']:.0%} | {found['FFN idle']:.0%} |"
    )


def main() -> None:
    """Prints the bars, and how they hang on what was assumed."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=ASSUMED["requests"])
    parser.add_argument("--quick", action="store_true", help="leave the sensitivities out")
    given = parser.parse_args()
    begin = time.process_time()
    assumed = {**ASSUMED, "requests": given.requests}
    with tempfile.TemporaryDirectory() as folder:
        model = with_fp8(folder)
        print_head("workload")
        for workload in WORKLOADS:
            for layout in LAYOUTS:
                print(row(workload, layout, figures(layout, model, workload, assumed)), flush=True)
        if not given.quick:
            print()
            print_head("assumption, balanced workload")
            for name, value in ((name, value) for name, all_ in OTHERS.items() for value in all_):
                for layout in LAYOUTS:
                    found = figures(layout, model, "balanced", {**assumed, name: value})
                    print(row(f"{name} = {value}", layout, found), flush=True)
    print(f"\n{time.process_time() - begin:.1f} CPU seconds")


def print_head(first: str) -> None:
    """The head of a table whose rows `row` makes."""
    print(f"| {first} | layout | p95 TPOT (ms) | decode tokens/s | attention idle | FFN idle |")
    print("| --- | --- | --- | --- | --- | --- |")


if __name__ == "__main__":
    main()
