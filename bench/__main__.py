"""`make bench` / `python -m bench [NAME...]`: runs whole processes and prints CPU seconds, peak
memory and rates.

CPU seconds (user + system) of the child process, Python start included; the best of `--repeat`
runs, because machines are noisy. Cost tables and Python's bytecode are compiled by a run before, as
after a user's first.
"""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import engine
from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[1]
H100 = "cluster_config/h100_llama31_8b.json"


@dataclass(frozen=True)
class Benchmark:
    """One `main.py` command line and what it is for; a budget of 0 is not stated."""

    name: str
    arguments: tuple[str, ...]
    cpu_budget_s: float = 0.0
    memory_budget_mb: float = 0.0


def synthetic(n: int, rate: int, more: str = "") -> str:
    return f"synthetic:n={n},rate={rate},input=lognormal:220,output=lognormal:190,seed=1{more}"


def many_groups(count: int) -> str:
    """A cluster of `count` nodes that each serve Llama-3.1-70B on 8 H100; written under build/."""
    cluster = json.loads(
        (ROOT / "cluster_config/h100_llama31_70b_tp4.json").read_text(encoding="utf-8")
    )
    node = cluster["nodes"][0]
    node["instances"][0].update(num_npus=8, tp_size=8)
    cluster.update(num_nodes=count, nodes=[node] * count)
    return written(f"h100_llama31_70b_tp8_x{count}", cluster)


def attention_and_ffn() -> str:
    """A cluster of 256 H800 that serve Step3-316B: 128 attention engines on 16 nodes, and eight FFN
    instances of 16 devices; written under build/.
    """
    cluster = json.loads((ROOT / "cluster_config/h800_step3_afd.json").read_text(encoding="utf-8"))
    attention, ffn = cluster["nodes"]
    attention["instances"][0]["afd_micro_batches"] = 3
    cluster.update(num_nodes=24, nodes=[attention] * 16 + [ffn] * 8)
    return written("h800_step3_afd_256", cluster)


def slow_host_links() -> str:
    """Two H100 with host memory for KV behind links of 1 GB/s, on which writes pile up; written
    under build/.
    """
    cluster = json.loads(
        (ROOT / "cluster_config/h100_cpu_prefix_pool.json").read_text(encoding="utf-8")
    )
    cluster["link_bw"][1] = 1
    return written("h100_cpu_prefix_pool_slow", cluster)


def written(name: str, cluster: dict[str, object]) -> str:
    """The path of a cluster file under build/."""
    path = ROOT / "build" / "bench" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return str(path)


MADE = {
    "128 groups": lambda: many_groups(128),
    "256 H800": attention_and_ffn,
    "slow host links": slow_host_links,
}
"""Words of a command line that stand for a cluster file -> who writes it."""


def routed(router: str, budget_s: float, more: tuple[str, ...] = ()) -> Benchmark:
    """100,000 requests, half of them with one of 500 prefixes, over 128 groups."""
    arguments = ("--dataset", synthetic(100_000, 640, ",prefixes=500:tokens=128:share=0.5"))
    name = "_".join(
        ("128x", router.rpartition(":")[2], *(text.rpartition(":")[2] for text in more[1::2]))
    )
    arguments = (*arguments, "--request-routing-policy", router, *more)
    return Benchmark(name, ("--cluster-config", "128 groups", *arguments), budget_s)


KV_BELOW = (
    *("--cluster-config", "slow host links", "--engine-profile", "vllm-0.33"),
    *("--dataset", "synthetic:n=1000,rate=20,input=fixed:6000,output=fixed:100,seed=1"),
    *("--num-gpu-blocks-override", "3000", "--max-model-len", "8192"),
)
"""131,072 chunks of 16 tokens for each of two groups; their writes wait for seconds."""


BENCHMARKS = (
    Benchmark(
        "chat_300", ("--cluster-config", H100, "--dataset", "dataset/chat_h100_300.jsonl"), 0.5
    ),
    Benchmark(
        "100k_10rps", ("--cluster-config", H100, "--dataset", synthetic(100_000, 10)), 1.5, 200
    ),
    Benchmark(
        "100k_10rps_sglang",  # at most 1.5 times the line above
        (
            *("--cluster-config", H100, "--dataset", synthetic(100_000, 10)),
            *("--scheduler", "sglang"),
        ),
        0,
        200,
    ),
    Benchmark(
        "100k_40rps", ("--cluster-config", H100, "--dataset", synthetic(100_000, 40)), 1.5, 200
    ),
    Benchmark("1k_10rps", ("--cluster-config", H100, "--dataset", synthetic(1_000, 10))),
    Benchmark("10k_10rps", ("--cluster-config", H100, "--dataset", synthetic(10_000, 10))),
    Benchmark(
        "1M_40rps", ("--cluster-config", H100, "--dataset", synthetic(1_000_000, 40)), 12, 1000
    ),
    Benchmark(
        "1M_10rps", ("--cluster-config", H100, "--dataset", synthetic(1_000_000, 10)), 12, 1000
    ),
    Benchmark(
        "tp4_exact",
        (
            "--cluster-config",
            "cluster_config/h100_llama31_70b_tp4.json",
            "--dataset",
            synthetic(20, 10),
            "--exact",
        ),
    ),
    routed("RR", 5),
    routed("LOR", 5),
    routed("PREFIX", 5),  # and less than twice RR
    routed("bench.routers:Python", 0),  # LOR's twin in Python: at most twice LOR
    routed("LOR", 0, ("--scheduling-policy", "sjf")),
    routed(
        "bench.routers:Python", 0, ("--queue-order", "bench.routers:Shortest")
    ),  # at most twice the line above
    Benchmark(
        "afd_256",
        (
            "--cluster-config",
            "256 H800",
            "--dataset",
            "synthetic:n=2000,rate=200,input=lognormal:1000,output=lognormal:300,seed=13",
        ),
        3,
    ),
    Benchmark("kv_chunks_16", (*KV_BELOW, "--prefix-storage", "CPU", "--kv-chunk-size", "16"), 3),
    Benchmark("kv_offloading", (*KV_BELOW, "--kv-offloading-size", "64")),
)


def measure(benchmark: Benchmark) -> tuple[float, float, float, dict[str, object]]:
    """(CPU s, wall s, peak MB, summary) of one run."""
    arguments = [
        MADE[argument]() if argument in MADE else argument for argument in benchmark.arguments
    ]
    command = [sys.executable, str(ROOT / "main.py"), *arguments, "--json"]
    start = time.perf_counter()
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status != 0:
        raise SystemExit(f"{benchmark.name} failed: {' '.join(command)}")
    peak_mb = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1) / 1e6
    return usage.ru_utime + usage.ru_stime, wall, peak_mb, json.loads(output)


def main() -> None:
    parser = OneSentenceParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="benchmarks to run; all by default; `engine`: see bench/engine.py"
    )
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.names[:1] == ["engine"]:
        engine.run(arguments.names[1:])
        return
    known = sorted({benchmark.name for benchmark in BENCHMARKS})
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"no benchmark {unknown[0]}; there are engine, {', '.join(known)}")
    if arguments.repeat < 1:
        parser.error(f"--repeat is {arguments.repeat}; it must be at least 1")
    print(
        f"{'benchmark':18}{'CPU s':>8}{'budget':>8}{'wall s':>8}{'peak MB':>9}{'budget':>8}"
        f"{'steps':>10}{'us/step':>9}"
    )
    for benchmark in BENCHMARKS:
        if arguments.names and benchmark.name not in arguments.names:
            continue
        measure(benchmark)  # compiles the cost tables
        runs = [measure(benchmark) for _ in range(arguments.repeat)]
        cpu, wall, peak, summary = min(runs, key=lambda run: run[0])
        steps = int(str(summary["steps"]))
        budgets = [
            f"{b:g}" if b else "-" for b in (benchmark.cpu_budget_s, benchmark.memory_budget_mb)
        ]
        print(
            f"{benchmark.name:18}{cpu:8.2f}{budgets[0]:>8}{wall:8.2f}{peak:9.0f}{budgets[1]:>8}"
            f"{steps:10d}{1e6 * cpu / steps:9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
