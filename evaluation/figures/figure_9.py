"""Figure 9: throughput over time and latencies on a TPU v6e."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures import published
from figures.clusters import LLAMA_8B, TPU_LINK, TPU_V6E, Json, cluster, instance
from figures.figure_5 import LLAMA
from figures.report import Comparison, FigureReport
from figures.runs import Run, Workspace, per_second
from figures.style import OURS, PEER, REAL, save, subplots
from llmsim.validation.compare.throughput import read_series

TITLE = "TPU v6e"
LATENCIES = [
    f"{kind}_{metric}_ms" for metric in ("ttft", "tpot", "itl") for kind in ("mean", "p99")
]


def runs(work: Workspace) -> list[Run]:
    """Llama-3.1-8B on one chip; the artifact's profile and cluster file where its copy has them."""
    trace = work.of_artifact("dataset/sharegpt_req300_rate10_llama.jsonl")
    options = (*published.SYNCHRONOUS, *published.NO_PREFIXES, *_profile(work))
    title = "Llama-3.1-8B on one v6e chip"
    return [Run("TPU-v6e", title, _cluster(work), str(trace or LLAMA), options)]


def _profile(work: Workspace) -> tuple[str, ...]:
    if not work.of_artifact("perf_models/TPU-v6e-1"):
        return ()
    return ("--profile-dir", str(work.of_artifact("perf_models")), *published.PROFILED)


def _cluster(work: Workspace) -> Json | Path:
    config = work.of_artifact("figure_9/config/SD_config.json")
    if config:
        return config
    profiled = work.of_artifact("perf_models/TPU-v6e-1")
    device = {**TPU_V6E, "hardware": "TPU-v6e-1"} if profiled else TPU_V6E
    return cluster([instance(device, LLAMA_8B)], TPU_LINK)


def build(work: Workspace) -> FigureReport:
    """The series, the latencies as bars, and how sure the numbers are."""
    report = FigureReport(9, TITLE)
    (run,) = runs(work)
    outcome = work.execute(run)
    if outcome.failure:
        report.remarks.append(outcome.remark)
        return report
    series, summary = per_second(outcome, "generation_tokens"), outcome.summary
    work.write_table("TPU-v6e_throughput", ("time_s", "throughput"), list(enumerate(series)))
    work.write_table(
        "TPU-v6e_latency", ("metric", "ms"), [(name, summary[name]) for name in LATENCIES]
    )
    figure, axes = subplots(1, 2, width=3.2, height=3.0)
    measured = work.of_artifact("figure_9/reference/SD_throughput.tsv")
    if measured:
        axes[0][0].plot(read_series(measured), color=REAL, label="measured")
    axes[0][0].plot(series, color=OURS, label="llmsim")
    axes[0][0].set(
        title=run.title,
        xlabel="time, s",
        ylabel="generated tokens/s",
        ylim=(0, None),
        xlim=(0, None),
    )
    _latencies(axes[0][1], summary)
    save(figure, work.folder / "figure_9.pdf")
    shares = summary["sources"]["by_provenance"]
    report.remarks.append(
        "operator times: "
        + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items() if share)
    )
    for key, real in published.TPU_REAL.items():
        peer = 100 * (published.TPU_PEER[key] / real - 1)
        report.comparisons.append(
            Comparison(key.replace("_", " "), summary[key], real, published.ARTIFACT, peer)
        )
    if not shares["measured"] + shares["interpolated"]:
        report.remarks.append(
            "no kernel of this chip is measured here: the data sheet gives what its memory and "
            "matrix units could do, "
            "the server took twice as long; the paper's simulator has the chip's own profile"
        )
    report.remarks.append(
        f"the paper's own error of the series is {published.SERIES_ERROR['TPU-v6e']} %"
    )
    return report


def _latencies(axis: Any, summary: dict[str, Any]) -> None:
    """Bars of ours, and of what was measured and of the peer's where they were published."""
    bars: tuple[tuple[str, str, Mapping[str, float]], ...] = (
        ("measured", REAL, published.TPU_REAL),
        ("LLMServingSim 2.0", PEER, published.TPU_PEER),
        ("llmsim", OURS, summary),
    )
    for row, (label, color, values) in enumerate(bars):
        known = [
            (place + 0.26 * (row - 1), values[name])
            for place, name in enumerate(LATENCIES)
            if name in values
        ]
        axis.barh(
            [place for place, _ in known],
            [value for _, value in known],
            0.24,
            color=color,
            label=label,
        )
        for place, value in known:
            axis.annotate(f" {value:.0f}", (value, place), va="center", fontsize=6)
    axis.set_yticks(range(len(LATENCIES)), [_label(name) for name in LATENCIES])
    axis.set(title="latency, ms")
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)


def _label(name: str) -> str:
    kind, metric, _ = name.split("_")
    return f"{kind} {metric.upper()}"
