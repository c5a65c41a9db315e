"""Figure 6: power over time of three pulses of requests on one and two RTX A6000, and where the
energy goes.
"""

from dataclasses import replace
from typing import Any

from figures import published
from figures.clusters import A6000, A6000_LINK, LLAMA_8B, SERVER_POWER, cluster, instance
from figures.report import Comparison, FigureReport
from figures.runs import Outcome, Run, Workspace, read_columns
from figures.style import OURS, PARTS, REAL, note, part_label, save, subplots

TITLE = "power and energy"
PULSES = (
    "synthetic:n=30,arrivals=burst:size=10:every_s=60,input=lognormal:224:cv=1.7:min=1:max=2000,"
    "output=lognormal:278:cv=0.64:min=2:max=769,seed=6"
)
"""Three pulses of 10 requests, 60 s apart (section VII.A); ShareGPT's mean lengths."""
BASE_W = {1: 219, 2: 164}
"""What the rest of the server draws, its unused devices included: figure 6's configuration for one
device; for two, the artifact's own output, 21,431 J of others in 130.7 s.
"""


CPU_UTILISATION = {1: 0.5, 2: 0.7}
"""Share of the processors' power, as in the artifact's two configurations of this figure."""


def runs(work: Workspace) -> list[Run]:
    """Llama-3.1-8B on one and on two devices of a server with four."""
    profiles = work.of_artifact("perf_models")
    trace = work.of_artifact("dataset/sharegpt_pulse_req10_n3_delay60.jsonl")
    source = ("--profile-dir", str(profiles)) if profiles else ()
    found = []
    for tp in (1, 2):
        cpu = {**SERVER_POWER["cpu"], "util": CPU_UTILISATION[tp]}
        power = {**SERVER_POWER, "base_node_power": BASE_W[tp], "cpu": cpu}
        content = cluster([instance(A6000, LLAMA_8B, tp)], A6000_LINK, power=power)
        options = (*published.EAGER, *published.NO_PREFIXES, *source)
        found.append(
            Run(f"TP{tp}", f"tensor parallelism {tp}", content, str(trace or PULSES), options)
        )
    return found


def build(work: Workspace) -> FigureReport:
    """Two series and a stack per run."""
    report = FigureReport(6, TITLE)
    figure, axes = subplots(1, 3, width=2.7, height=2.0)
    stacks: dict[str, dict[str, float]] = {}
    for axis, run in zip(axes[0], runs(work), strict=False):
        outcome = work.execute(run)
        axis.set(title=run.title, xlabel="time, s", ylabel="power, W")
        if not outcome.failure and not outcome.summary.get("energy"):
            outcome = replace(outcome, failure="no energy in the summary")
        if outcome.failure:
            report.remarks.append(outcome.remark)
            note(axis, "not run")
            continue
        stacks[run.name] = outcome.summary["energy"]["components_j"]
        _power(work, outcome, axis)
        axis.axhline(
            published.POWER_REAL_W[run.name],
            color=REAL,
            alpha=0.4,
            linewidth=2.4,
            label="measured mean",
        )
        axis.axhline(
            outcome.summary["energy"]["mean_power_w"],
            color=OURS,
            linestyle="--",
            linewidth=1.0,
            label="llmsim mean",
        )
        energy = outcome.summary["energy"]
        report.remarks.append(
            f"{run.title}: {energy['total_j'] / 1e3:.1f} kJ in {energy['window_s']:.0f} s, mean "
            f"{energy['mean_power_w']:.0f} W, peak {energy['peak_power_w']:.0f} W, "
            f"{energy['j_per_output_token']:.2f} J per generated token"
        )
        real, peer = published.POWER_REAL_W[run.name], published.POWER_PEER_W[run.name]
        report.comparisons.append(
            Comparison(
                f"{run.title}: mean power, W",
                energy["mean_power_w"],
                real,
                published.ARTIFACT,
                100 * (peer / real - 1),
            )
        )
    if stacks:
        _breakdown(work, axes[0][2], stacks)
    else:
        note(axes[0][2], "not run")
    report.remarks.append(
        f"the paper's own error of the total energy is {published.ENERGY_ERROR} % on average"
    )
    if not work.of_artifact("dataset/sharegpt_pulse_req10_n3_delay60.jsonl"):
        report.remarks.append(
            "without the artifact's pulses the lengths are drawn: how long each pulse lasts is "
            "another"
        )
    save(figure, work.folder / "figure_6.pdf")
    return report


def _power(work: Workspace, outcome: Outcome, axis: Any) -> None:
    columns = read_columns(work.folder / "results" / outcome.run.name / "power.parquet")
    parts = [name for name in columns if name.endswith("_w")]
    time_s = [time / 1e12 for time in columns["time_ps"]]
    watts = [sum(columns[part][row] for part in parts) for row in range(len(time_s))]
    measured = work.of_artifact(f"figure_6/reference/server_power_{outcome.run.name.lower()}.tsv")
    if measured:
        lines = [line.split("\t") for line in measured.read_text(encoding="utf-8").splitlines()[1:]]
        axis.plot(
            [float(t) for t, _ in lines],
            [float(w) for _, w in lines],
            color=REAL,
            label="measured",
            linewidth=1.0,
        )
    axis.step(time_s, watts, color=OURS, where="pre", linewidth=1.0, label="llmsim")
    axis.set(ylim=(0, 1.06 * max(watts)), xlim=(0, None))
    rows = [(f"{t:g}", f"{w:.2f}") for t, w in zip(time_s, watts, strict=True)]
    work.write_table(f"{outcome.run.name}_power", ("time_s", "power_w"), rows)


def _breakdown(work: Workspace, axis: Any, stacks: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(stacks.values())))
    bottoms = [0.0] * len(stacks)
    for color, name in zip(PARTS, names, strict=False):
        values = [stack[name] / 1e3 for stack in stacks.values()]
        axis.bar(
            range(len(stacks)), values, 0.5, bottom=bottoms, color=color, label=part_label(name)
        )
        bottoms = [bottom + value for bottom, value in zip(bottoms, values, strict=True)]
    axis.set_xticks(range(len(stacks)), list(stacks))
    axis.set(title="energy, kJ")
    axis.grid(axis="x", visible=False)
    rows = [(run, name, f"{stack[name]:.3f}") for run, stack in stacks.items() for name in names]
    work.write_table("energy", ("run", "component", "J"), rows)
