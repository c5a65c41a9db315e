"""`python -m bench.examples`: runs every example cluster and writes docs/tutorial/examples.md.

`--check` measures wall time.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from llmsim.cli.arguments import OneSentenceParser
from llmsim.installation.examples import EXAMPLES, TRACE, Example

__all__ = ["EXAMPLES", "PAGE", "ROOT", "TRACE", "Example", "row"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial" / "examples.md"
BUDGET_S = 1.0


HEAD = """# Examples

This page lists all files of `cluster_config/`: every scenario of LLMServingSim, with figures from [named sources](../../cluster_config/README.md#where-the-numbers-come-from), and more.
Each row is a run of `dataset/example_10.jsonl` (10 requests, 328 prompt tokens, 768 output tokens):

    python main.py --cluster-config cluster_config/NAME.json --dataset dataset/example_10.jsonl --cost-source roofline

The tests run every row and compare it with this table. Some rows need more options:

| rows | options |
| --- | --- |
| sub-batches | `--enable-attn-offloading --enable-sub-batch-interleaving` |
| prefix pools | `--enable-prefix-sharing`, and `--prefix-storage` CPU, CXL or CPU+CXL |
| h100_ssd_prefix_pool | `--scheduler sglang --enable-hierarchical-cache --hicache-ratio 0.5 --hicache-storage-backend file` |
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
