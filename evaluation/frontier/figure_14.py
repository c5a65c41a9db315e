"""Figure 14 of the Frontier paper: which roles of Qwen3-235B-A22B on 1,024 GPUs may take H20.

    python evaluation/frontier/figure_14.py [--devices 1024] [--requests 40000] [--plot FILE]

Roles are prefill and decode (PDD), or prefill, attention and FFN of decodes (AFD). Instances have
8 GPUs, in halves (P:D 4:4: TP8, EP8), as P:D 2:6, and in thirds (P:A:F 4:4:4: TP8 EP8, attention
DP8, FFN EP8, one lane). The paper prints neither the load, the lengths of requests nor the latency
targets, so these are assumptions: Poisson arrivals at 14 requests per second and prefill instance
of the 2:6 split, prompts and answers of 2,000 and 500 tokens in the mean (lognormal), 3 s and 50
ms.
Sensitivity: every assumption is varied by itself. For AFD, one server of each role stands for a
third of the GPUs, all answers have 500 tokens, and TTFT has a target, TPOT none. Lengths of prompts
are varied at equal prompt tokens per second, and the load with the shortest ones, as the number of
sequences that decode at once decides what limits an FFN: from about 37 tokens for each expert on,
arithmetic limits those of H20, from 295 on those of H800, and sooner where tiles of rows are part
empty. It takes some 5,000 requests until so many decode at once; with 1,250, FFN servers of H20
look as good as those of H800.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from llmsim.cli.arguments import OneSentenceParser
from llmsim.study import Row, Study, load_hetero, report, study

PAPER = {
    "P:D 4:4, D on H20": (1.37, 1.33, "accepted"),
    "P:D 2:6, D on H20": (1.69, 1.65, "rejected at latency"),
}
PAPER_AFD = {
    "P:A:F 1:1:1, A on H20": (1.16, 1.12, "accepted"),
    "P:A:F 1:1:1, F on H20": ("-", 1.05, "rejected at alignment"),
}
"""The paper's P:A:F is 4:4:4; its spend ratio is 1.222 by its own prices."""
LEAST_DEVICES = 64
"""One instance for each eighth of the cluster."""
PROMPTS = (500, 1000, 2000)
PROMPT_TOKENS_PER_S = 25_000
LOADS = (16_000, 18_000, 20_000)
"""Prompt tokens per second with the shortest prompts; at the last one, FFN servers of H20 do
not keep up."""
ANSWER = 500
ASSUMED = {
    "rate": 14.0,
    "input": "lognormal:2000",
    "output": "lognormal:500",
    "ttft": 3000.0,
    "tpot": 50.0,
}
OTHERS: dict[str, tuple[Any, ...]] = {
    "rate": (8.0, 12.0),
    "input": ("lognormal:1000", "lognormal:4000"),
    "output": ("lognormal:250", "lognormal:1000"),
    "ttft": (1000.0, 10000.0),
}


def fields(assumed: dict[str, Any], devices: int, requests: int) -> dict[str, Any]:
    """The study file; an eighth of the instances is one part of P:D 4:4."""
    part = devices // 64
    instance = {"model_name": "Qwen/Qwen3-235B-A22B", "tp_size": 8, "ep_size": 8}
    rate = assumed["rate"] * 2 * part
    return {
        "description": "Frontier, figure 14, PDD",
        "workload": f"synthetic:n={requests},rate={rate:g},input={assumed['input']},"
        f"output={assumed['output']},seed=1",
        "roles": [
            {"role": "prefill", "devices": ["H800"], "instance": instance},
            {"role": "decode", "devices": ["H800", "H20"], "instance": instance},
        ],
        "splits": [
            {"prefill": 4 * part, "decode": 4 * part},
            {"prefill": 2 * part, "decode": 6 * part},
        ],
        "sla": {"p95_ttft_ms": assumed["ttft"], "p95_tpot_ms": assumed["tpot"]},
    }


def afd_fields(prompt: int, tokens_per_s: int, requests: int) -> dict[str, Any]:
    """The study file of one server of each role, for prompts of so many tokens."""
    model = {"model_name": "Qwen/Qwen3-235B-A22B"}
    both = {**model, "afd_group": "layers"}
    attention = {**both, "attn_tp_size": 1, "attn_dp_size": 8, "afd_micro_batches": 1}
    ffn = {**both, "ffn_tp_size": 1, "ffn_ep_size": 8}
    return {
        "description": "Frontier, figure 14, AFD",
        "workload": f"synthetic:n={requests},rate={tokens_per_s / prompt:g},"
        f"input=fixed:{prompt},output=fixed:{ANSWER},seed=1",
        "roles": [
            {
                "role": "prefill",
                "devices": ["H800"],
                "instance": {**model, "tp_size": 8, "ep_size": 8},
            },
            {"role": "attention", "devices": ["H800", "H20"], "instance": attention},
            {"role": "ffn", "devices": ["H800", "H20"], "instance": ffn},
        ],
        "sla": {"p95_ttft_ms": ASSUMED["ttft"]},
        "options": {"max_num_seqs": 512},
    }


def attention_and_ffn(requests: int) -> None:
    """The AFD allocations by the length of prompts and by load, beside the paper's."""
    titles = (
        "prompt", "prompt tok/s", "allocation", "SR", "CE", "slower: A, F", "p95 TTFT, TPOT (ms)",
        "verdict", "the paper: SR, CE, verdict",
    )  # fmt: skip
    print(f"\n| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|")
    cases = [(prompt, PROMPT_TOKENS_PER_S) for prompt in PROMPTS]
    for prompt, tokens_per_s in [*cases, *((PROMPTS[0], load) for load in LOADS)]:
        for row in studied(afd_fields(prompt, tokens_per_s, requests)).rows:
            slower = [row.slowdown.get(role, 1.0) for role in ("attention", "ffn")]
            ours = f"rejected at {row.gate_failed}" if row.gate_failed else row.why
            paper = PAPER_AFD.get(row.label, ("-",))
            latencies = f"{row.outcome.p95_ttft_ms:.0f}, {row.outcome.p95_tpot_ms:.1f}"
            cells = (
                prompt, tokens_per_s, row.label, f"{row.spend_ratio:.3f}",
                f"{row.cost_efficiency or 0:.3f}",
                ", ".join(f"{one:.2f}" for one in slower), latencies, ours,
                ", ".join(map(str, paper)),
            )  # fmt: skip
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def run(assumed: dict[str, Any], devices: int, requests: int) -> Study:
    """The study under some assumptions."""
    return studied(fields(assumed, devices, requests))


def studied(written: dict[str, Any]) -> Study:
    """The study of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.json")
        path.write_text(json.dumps(written), encoding="utf-8")
        return study(load_hetero(path))


def paper_label(row: Row, devices: int) -> str:
    """`P:D 4:4, D on H20`: instances in eighths of the cluster."""
    counts = row.allocation.counts
    parts = ":".join(str(counts[role] * 64 // devices) for role in ("prefill", "decode"))
    return f"P:D {parts}, {row.label.split(', ', 1)[1]}"


def beside_the_paper(found: Study, devices: int) -> None:
    """Ours and the paper's, row by row."""
    print("\n| allocation | SR | paper | CE | paper | verdict | paper |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in found.rows:
        name = paper_label(row, devices)
        sr, ce, verdict = PAPER.get(name, ("-", "-", "-"))
        ours = f"rejected at {row.gate_failed}" if row.gate_failed else row.why
        efficiency = "-" if row.cost_efficiency is None else f"{row.cost_efficiency:.3f}"
        print(
            f"| {name} | {row.spend_ratio:.3f} | {sr} | {efficiency} | {ce} | {ours} | {verdict} |"
        )


def sensitivity(devices: int, requests: int) -> None:
    """The two rows of the paper, with one assumption changed at a time."""
    print("\n| assumption | value | 4:4 D on H20: CE, verdict | 2:6 D on H20: CE, verdict |")
    print("| --- | --- | --- | --- |")
    for name, values in OTHERS.items():
        for value in values:
            rows = run({**ASSUMED, name: value}, devices, requests).rows
            cells = [
                f"{row.cost_efficiency or 0:.3f}, {row.gate_failed or 'accepted'}"
                for row in rows
                if paper_label(row, devices) in PAPER
            ]
            print(f"| {name} | {value} | {' | '.join(cells)} |")


def main() -> None:
    """Prints the study, the comparison and the sensitivities."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1024, help="a multiple of 64")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    begin = time.process_time()
    found = run(ASSUMED, given.devices, given.requests)
    print(report.text(found), end="")
    print(f"{time.process_time() - begin:.1f} CPU seconds")
    beside_the_paper(found, given.devices)
    if given.plot:
        report.plot(found, given.plot)
    attention_and_ffn(given.requests // 8)
    sensitivity(max(given.devices // 8, LEAST_DEVICES), given.requests // 8)


if __name__ == "__main__":
    main()
