"""Figure 16 of the Frontier paper: a rollout on 1,024 GPUs that switches its layout for the tail.

    python evaluation/frontier/figure_16.py [--trajectories 4000] [--tail 0.05] [--plot FILE]

Llama-3.1-405B in fp8 on H800: 32 instances of PP16 TP2, then 8 of PP16 TP8, once fewer than 10 %
of the trajectories are left. The paper prints neither lengths nor the cost of a switch, so these
are assumptions: answers of 1,000 tokens in the mean (lognormal), 12,000 for the tail of 5 %,
prompts of 1,000 tokens, eight trajectories to a prompt; weights over the links, KV computed again,
and 10 s for processes. Sensitivity: cost, tail and threshold are varied by themselves.
"""

import time
from pathlib import Path
from typing import Any

import llmsim
from llmsim.cli.arguments import OneSentenceParser

PAPER = {"pinned": 528.8, "switched": 259.1}
MODEL = {"model_name": "meta-llama/Llama-3.1-405B", "hardware": "H800", "pp_size": 16}
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


def cluster(threshold: float | None, initial: str = "A", **cost: Any) -> dict[str, Any]:
    """The cluster file; without a threshold the initial layout stays."""
    switch = [{"to": "B", "when": {"active_share_below": threshold}}] if threshold else []
    return {
        "link_bw": [200, 200, 50],
        "link_latency": [1000, 1000, 2000],
        "layouts": {
            "A": [{**MODEL, "count": 32, "tp_size": 2}],
            "B": [{**MODEL, "count": 8, "tp_size": 8}],
        },
        "engine": {"dtype": "fp8"},
        "initial": initial,
        "switch": switch,
        "reconfiguration": {"process_s": 10, **cost},
    }


def load(trajectories: int, tail: float, tail_output: int = 12_000) -> str:
    """The burst of trajectories."""
    return (
        f"synthetic:rollout,n={trajectories},groups=8,prompt=lognormal:1000,output=lognormal:1000,"
        f"tail={tail:g},tail_output=lognormal:{tail_output}:cv=0.3,seed=1"
    )


def run(fields: dict[str, Any], trajectories: str) -> dict[str, Any]:
    """The summary of one rollout."""
    result = llmsim.run(
        fields, trajectories, steps=False, series=False, request_routing_policy="LOR"
    )
    return dict(result.summary)


def main() -> None:
    """Prints makespans, the cost of the switch, and the sensitivities."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=4000, help="a multiple of 8")
    parser.add_argument("--tail", type=float, default=0.05)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    begin, burst = time.process_time(), load(given.trajectories, given.tail)
    pinned, other = run(cluster(None), burst), run(cluster(None, "B"), burst)
    switched = run(cluster(0.1), burst)
    print(f"{time.process_time() - begin:.1f} CPU seconds")
    print("\n| | makespan s | paper | decode tok/s |\n| --- | --- | --- | --- |")
    for name, one in (("pinned", pinned), ("switched", switched), ("B alone", other)):
        paper = PAPER.get(name, "-")
        print(f"| {name} | {one['duration']:.1f} | {paper} | {one['output_throughput']:,.0f} |")
    ratio = pinned["duration"] / switched["duration"]
    print(f"\nspeed-up {ratio:.2f} (paper 2.04)")
    print(switched["reconfigurations"][0])
    makespans = {share: run(cluster(share), burst)["duration"] for share in THRESHOLDS}
    print("\n| threshold | makespan s |\n| --- | --- |")
    for share, seconds in makespans.items():
        print(f"| {share:g} | {seconds:.1f} |")
    sensitivity(given.trajectories, given.tail)
    if given.plot:
        plot(makespans, pinned["duration"], given.plot)


def sensitivity(trajectories: int, tail: float) -> None:
    """One assumption changed at a time."""
    print("\n| assumption | pinned s | switched s | speed-up |\n| --- | --- | --- | --- |")
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "process 0 s": (load(trajectories, tail), {"process_s": 0}),
        "process 60 s": (load(trajectories, tail), {"process_s": 60}),
        "KV moves": (load(trajectories, tail), {"kv": "move"}),
        "weights from hosts": (load(trajectories, tail), {"weights": "host"}),
        "tail 1 %": (load(trajectories, 0.01), {}),
        "tail answers of 6,000": (load(trajectories, tail, 6000), {}),
        "tail answers of 24,000": (load(trajectories, tail, 24_000), {}),
    }
    for name, (burst, cost) in cases.items():
        pinned, switched = run(cluster(None), burst), run(cluster(0.1, **cost), burst)
        ratio = pinned["duration"] / switched["duration"]
        print(f"| {name} | {pinned['duration']:.1f} | {switched['duration']:.1f} | {ratio:.2f} |")


def plot(makespans: dict[float, float], pinned: float, path: Path) -> None:
    """Draws the makespan over the threshold."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(list(makespans), list(makespans.values()), marker="o", label="switched")
    axes.axhline(pinned, color="grey", linestyle="--", label="pinned to A")
    axes.set_xscale("log")
    axes.set_xticks(list(makespans), labels=[f"{share:.0%}" for share in makespans], minor=False)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("share of trajectories left at the switch")
    axes.set_ylabel("makespan (s)")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
