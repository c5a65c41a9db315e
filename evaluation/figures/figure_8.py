"""Figure 8: throughput, TTFT and TPOT relative to the real system, and the time that a simulation
takes.
"""

from typing import Any

from figures import published
from figures.figure_5 import LLAMA, PHI, h100_cluster, h100_options
from figures.report import Comparison, FigureReport
from figures.runs import Outcome, Run, Workspace
from figures.style import OURS, PARTS, PEER, REAL, save, subplots

TITLE = "accuracy and simulation time"
CONFIGURATIONS = {
    "SD": "one dense",
    "MD": "two dense",
    "PDD": "prefill/decode",
    "SM": "experts",
}
OTHERS = {"TokenSim": PARTS[6], "Vidur": PARTS[2], "APEX": PARTS[3]}
TOP = 1.6
"""Bars above are cut and labelled."""
METRICS = (
    ("output throughput", "output_throughput", "tok/s"),
    ("mean TTFT", "mean_ttft_ms", "ms"),
    ("mean TPOT", "mean_tpot_ms", "ms"),
)


def runs(work: Workspace) -> list[Run]:
    """H100, four devices per instance, 300 requests at 10/s; operator times of the artifact or the
    silicon database.
    """
    llama = work.of_artifact("dataset/sharegpt_req300_rate10_llama.jsonl")
    mixtral = work.of_artifact("dataset/sharegpt_req300_rate10_mixtral.jsonl")
    phi = work.of_artifact(
        "dataset/sharegpt_req300_rate10_phi.jsonl"
    )  # a tokenizer of the same kind
    traces = {"SM": str(mixtral or phi or PHI)}
    return [
        Run(
            f"H100_{name}",
            title,
            h100_cluster(work, name),
            traces.get(name, str(llama or LLAMA)),
            ("--request-routing-policy", "RR", *h100_options(work), *published.NO_PREFIXES),
        )
        for name, title in CONFIGURATIONS.items()
    ]


def build(work: Workspace) -> FigureReport:
    """Bars of ours and of LLMServingSim 2.0 over the published means, and seconds of simulation."""
    report = FigureReport(8, TITLE)
    outcomes = [work.execute(run) for run in runs(work)]
    figure, axes = subplots(1, 4, width=2.6, height=2.1)
    for index, (label, key, unit) in enumerate(METRICS):
        _normalised(axes[0][index], outcomes, index, label)
        for outcome in outcomes:
            _compare(outcome, index, f"{label}, {unit}", key, report)
    _times(axes[0][3], outcomes)
    for outcome in outcomes:
        name = outcome.run.name.removeprefix("H100_")
        if not outcome.failure:
            slowest = published.SIMULATION_S[name]["LLMServingSim 2.0"]
            report.remarks.append(
                f"{outcome.run.title}: simulated in {outcome.wall_s:.1f} s; LLMServingSim 2.0 took "
                f"{slowest:.0f} s on its authors' machine"
            )
    rows = [(o.run.name, f"{o.wall_s:.2f}", f"{o.cpu_s:.2f}") for o in outcomes if not o.failure]
    work.write_table("simulation_time", ("run", "wall_s", "cpu_s"), rows)
    for outcome in outcomes:
        if outcome.failure:
            report.remarks.append(outcome.remark)
    if work.artifact is None:
        report.remarks.append(
            "without the artifact's traces the lengths are drawn: compare only roughly"
        )
    if work.of_artifact("perf_models/H100"):
        report.remarks.append(
            "operator times are those of the artifact's H100 profiles, nothing is fitted"
        )
    else:
        report.remarks.append(
            "operator times are the silicon database's, nothing is fitted; the version of vLLM "
            "behind the published means is not stated, and a host gap per step explains most of "
            "the difference (docs/explanation/accuracy.md)"
        )
    save(figure, work.folder / "figure_8.pdf")
    return report


def _value(outcome: Outcome, index: int) -> float:
    return float(outcome.summary[METRICS[index][1]])


def _real(outcome: Outcome, index: int) -> tuple[float, float]:
    """(the published value, LLMServingSim 2.0's error in percent) of a metric."""
    name = outcome.run.name.removeprefix("H100_")
    real = published.H100_REAL[name]
    return (real.throughput, real.ttft_ms, real.tpot_ms)[index], published.H100_PEER_ERRORS[name][
        index
    ]


def _normalised(axis: Any, outcomes: list[Outcome], index: int, label: str) -> None:
    axis.set_title(f"{label} over vLLM's")
    for place, outcome in enumerate(outcomes):
        real, peer = _real(outcome, index)
        name, first = outcome.run.name.removeprefix("H100_"), "_" if place else ""
        for step, (other, color) in enumerate(OTHERS.items()):
            known = published.OTHERS[name].get(other)
            if known is not None:
                value = known[index] / real
                axis.bar(place - 0.36 + 0.18 * step, min(value, TOP), 0.17, color=color)
                if value > TOP:
                    axis.annotate(
                        f"{value:.1f}",
                        (place - 0.36 + 0.18 * step, TOP),
                        ha="center",
                        va="bottom",
                        fontsize=6,
                    )
        axis.bar(
            place + 0.18,
            1 + peer / 100,
            0.17,
            color=PEER,
            label=f"{first}LLMServingSim 2.0 (own H100 profile)",
        )
        if not outcome.failure:
            value = _value(outcome, index) / real
            axis.bar(place + 0.36, value, 0.17, color=OURS, label=f"{first}llmsim")
    for other, color in OTHERS.items():
        axis.bar(0, 0, color=color, label=other)
    axis.axhline(1, color=REAL, linewidth=0.8)
    axis.set(ylim=(0, 1.08 * TOP))
    axis.set_xticks(range(len(outcomes)), [o.run.title for o in outcomes], rotation=25, ha="right")
    axis.grid(axis="x", visible=False)


def _times(axis: Any, outcomes: list[Outcome]) -> None:
    """Seconds on a logarithmic axis: ours here, the others' on their authors' machine."""
    axis.set_title("simulation, s (whole process)")
    colors = {**OTHERS, "LLMServingSim 2.0": PEER, "LLMServingSim": "#f0b48a", "llmsim": OURS}
    for place, outcome in enumerate(outcomes):
        times = dict(published.SIMULATION_S[outcome.run.name.removeprefix("H100_")])
        if not outcome.failure:
            times["llmsim"] = outcome.wall_s
        for step, name in enumerate(colors):
            if name in times:
                axis.bar(place - 0.375 + 0.15 * step, times[name], 0.14, color=colors[name],
                         label="LLMServingSim" if name == "LLMServingSim" else None)  # fmt: skip
        if not outcome.failure:
            at = (place - 0.375 + 0.15 * (len(colors) - 1.5), outcome.wall_s)
            axis.annotate(f"{outcome.wall_s:.1f}", at, ha="left", va="bottom", fontsize=6)
    axis.set_yscale("log")
    axis.set_xticks(range(len(outcomes)), [o.run.title for o in outcomes], rotation=25, ha="right")
    axis.grid(axis="x", visible=False)


def _compare(outcome: Outcome, index: int, label: str, key: str, report: FigureReport) -> None:
    if outcome.failure:
        return
    real, peer = _real(outcome, index)
    name = f"{outcome.run.title}: {label}"
    report.comparisons.append(
        Comparison(name, outcome.summary[key], real, "published mean (H100)", peer)
    )
