"""Figure 10: a GPU against a GPU with PIM, with and without sub-batch interleaving."""

from typing import Any

from figures import published
from figures.clusters import A6000, A6000_LINK, A6000_POWER, LLAMA_8B, cluster, instance
from figures.report import Comparison, FigureReport
from figures.runs import Outcome, Run, Workspace, per_second
from figures.style import OURS, PARTS, PEER, REAL, part_label, save, subplots

TITLE = "processing in memory"
TRACE = "synthetic:n=256,rate=10,input=fixed:128,output=fixed:512,seed=10"
"""256 requests of 128 and 512 tokens, as many as PIM channels; they arrive over 25 s as in the
paper's figure.
"""
PIM = "HBM2_1GB_2000_pim"
"""256 channels of 1 GB of HBM2 at 2,000 MT/s (section VII.C)."""
COLORS = {"GPU": REAL, "GPU+PIM": OURS, "GPU+PIM+SBI": PEER}


def runs(work: Workspace) -> list[Run]:
    """Llama-3.1-8B on one A6000, its main memory replaced by PIM in two of three runs."""
    profiles = work.of_artifact("perf_models")
    source = (
        ("--profile-dir", str(profiles), "--max-num-seqs", "256")
        if profiles
        else ("--max-num-seqs", "256")
    )
    plain = cluster(
        [instance(A6000, LLAMA_8B)], A6000_LINK, {"mem_size": 256, "mem_bw": 256}, power=A6000_POWER
    )
    memory = {"mem_size": 256, "mem_bw": 256, "pim_config": PIM}
    pim = cluster([instance(A6000, LLAMA_8B)], A6000_LINK, memory, power=A6000_POWER)
    offload = ("--enable-attn-offloading",)
    return [
        Run("GPU", "GPU", plain, TRACE, source),
        Run("GPU+PIM", "GPU + PIM", pim, TRACE, (*offload, *source)),
        Run(
            "GPU+PIM+SBI",
            "GPU + PIM, sub-batches",
            pim,
            TRACE,
            (*offload, "--enable-sub-batch-interleaving", *source),
        ),
    ]


def decode_throughput(outcome: Outcome) -> float:
    """Generated tokens per second from the last arrival to the last token: what
    remains is decode.
    """
    series = per_second(outcome, "generation_tokens")
    last = max(second for second, value in enumerate(per_second(outcome, "prompt_tokens")) if value)
    rest = series[last + 1 :]
    return sum(rest) / len(rest) if rest else 0.0


def build(work: Workspace) -> FigureReport:
    """Throughput over time, and energy per token by component."""
    report = FigureReport(10, TITLE)
    figure, axes = subplots(1, 2, width=3.4, height=2.2)
    done = {}
    for run in runs(work):
        outcome = work.execute(run)
        if outcome.failure:
            report.remarks.append(outcome.remark)
            continue
        done[run.name] = outcome
        series = per_second(outcome, "generation_tokens")
        work.write_table(
            f"{run.name}_throughput", ("time_s", "throughput"), list(enumerate(series))
        )
        style = "--" if run.name.endswith("SBI") else "-"  # it may lie on the other
        axes[0][0].plot(series, color=COLORS[run.name], label=run.title, linestyle=style)
    axes[0][0].set(xlabel="time, s", ylabel="generated tokens/s", ylim=(0, None), xlim=(0, None))
    _energy(work, axes[0][1], done)
    _compare(done, report)
    save(figure, work.folder / "figure_10.pdf")
    return report


def _energy(work: Workspace, axis: Any, done: dict[str, Outcome]) -> None:
    axis.set(title="energy, J per generated token")
    rows = []
    for place, (name, outcome) in enumerate(done.items()):
        bottom = 0.0
        tokens = outcome.summary["total_output_tokens"]
        for color, (part, energy_j) in zip(
            PARTS, outcome.summary["energy"]["components_j"].items(), strict=False
        ):
            value = energy_j / tokens
            axis.bar(
                place,
                value,
                0.5,
                bottom=bottom,
                color=color,
                label="_" if place else part_label(part),
            )
            bottom += value
            rows.append((name, part, f"{value:.5f}"))
    titles = [outcome.run.title.replace(", ", ",\n") for outcome in done.values()]
    axis.set_xticks(range(len(done)), titles)
    axis.grid(axis="x", visible=False)
    work.write_table("energy_per_token", ("run", "component", "J_per_token"), rows)


def _compare(done: dict[str, Outcome], report: FigureReport) -> None:
    if "GPU" not in done:
        return
    base, base_j = (
        decode_throughput(done["GPU"]),
        done["GPU"].summary["energy"]["j_per_output_token"],
    )
    for name, outcome in done.items():
        rate, energy_j = decode_throughput(outcome), outcome.summary["energy"]["j_per_output_token"]
        report.remarks.append(
            f"{name}: {rate:.0f} tokens/s after the last prefill, {energy_j:.3f} J per token, "
            f"{outcome.summary['duration']:.1f} s in all, mean TPOT "
            f"{outcome.summary['mean_tpot_ms']:.1f} ms"
        )
    if "GPU+PIM" in done:
        speedup = decode_throughput(done["GPU+PIM"]) / base
        change = 100 * (done["GPU+PIM"].summary["energy"]["j_per_output_token"] / base_j - 1)
        ratio = done["GPU"].summary["mean_tpot_ms"] / done["GPU+PIM"].summary["mean_tpot_ms"]
        report.comparisons.append(
            Comparison(
                "mean TPOT without PIM over with",
                ratio,
                published.PIM_SPEEDUP,
                published.PAPER + ", VII.C",
            )
        )
        report.comparisons.append(
            Comparison(
                "throughput after the last prefill, with PIM over without",
                speedup,
                published.PIM_SPEEDUP,
                published.PAPER + ", VII.C",
            )
        )
        report.comparisons.append(
            Comparison(
                "change of J per token, %",
                change,
                published.PIM_ENERGY,
                published.PAPER + ", VII.C",
            )
        )
