"""`python -m bench.scaling`: how cost grows with the cluster and with the trace, at the same load
per device.

Two series: 1 to 512 groups of eight H100 (8 to 4,096 devices, Llama-3.1-70B TP8, 5 requests/s and
100 requests per group), and 1,000 to 1,000,000 requests on one H100 (Llama-3.1-8B, 40/s). CPU
seconds are of whole processes; the last column takes the start-up, measured on the smallest run,
away and divides by the steps.
"""

from bench.__main__ import H100, Benchmark, many_groups, measure, synthetic
from llmsim.cli.arguments import OneSentenceParser

GROUPS = (1, 8, 64, 512)
REQUESTS = (1_000, 10_000, 100_000, 1_000_000)


def cluster_series() -> list[Benchmark]:
    """One line per cluster size."""
    return [
        Benchmark(
            f"{8 * count} devices",
            (
                "--cluster-config",
                many_groups(count),
                "--dataset",
                synthetic(100 * count, 5 * count),
            ),
        )
        for count in GROUPS
    ]


def trace_series() -> list[Benchmark]:
    """One line per trace length."""
    return [
        Benchmark(f"{n} requests", ("--cluster-config", H100, "--dataset", synthetic(n, 40)))
        for n in REQUESTS
    ]


def show(series: list[Benchmark], repeat: int) -> None:
    """Prints one line per benchmark."""
    print(
        f"{'':18}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}{'requests':>10}{'steps':>10}{'us/request':>12}{'us/step':>9}"  # noqa: E501
    )
    start_s = 0.0
    for benchmark in series:
        measure(benchmark)
        cpu, wall, peak, summary = min(
            (measure(benchmark) for _ in range(repeat)), key=lambda run: run[0]
        )
        steps, requests = int(str(summary["steps"])), int(str(summary["completed"]))
        start_s = start_s or cpu
        extra = (cpu - start_s) * 1e6
        rates = (
            f"{extra / requests:12.1f}{extra / steps:9.2f}" if extra > 0 else f"{'-':>12}{'-':>9}"
        )
        print(
            f"{benchmark.name:18}{cpu:8.2f}{wall:8.2f}{peak:9.0f}{requests:10d}{steps:10d}{rates}",
            flush=True,
        )


def main() -> None:
    """Both series."""
    parser = OneSentenceParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--repeat", type=int, default=2)
    repeat = parser.parse_args().repeat
    show(cluster_series(), repeat)
    show(trace_series(), repeat)


if __name__ == "__main__":
    main()
