"""Figure 14 of the Frontier paper: which roles of Qwen3-235B-A22B on 1,024 GPUs may take H20.

    python evaluation/frontier/figure_14.py [--devices 1024] [--requests 40000] [--plot FILE]

Roles are prefill and decode (PDD); instances have 8 GPUs (TP8, EP8), in halves (P:D 4:4) and as
P:D 2:6. The paper prints neither the load, the lengths of requests nor the latency targets, so
these are assumptions: Poisson arrivals at 14 requests per second and prefill instance of the
2:6 split, prompts and answers of 2,000 and 500 tokens in the mean (lognormal), 3 s and 50 ms.
Sensitivity: every assumption is varied by itself.
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


def run(assumed: dict[str, Any], devices: int, requests: int) -> Study:
    """The study under some assumptions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.json")
        path.write_text(json.dumps(fields(assumed, devices, requests)), encoding="utf-8")
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
    sensitivity(given.devices // 8, given.requests // 8)


if __name__ == "__main__":
    main()
