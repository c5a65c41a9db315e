"""Figure 7: KV memory and prefix hit rate over time, on one instance and on two that share a pool
in host memory.
"""

from itertools import accumulate
from typing import Any

from figures import published
from figures.clusters import A6000, A6000_LINK, LLAMA_8B, cluster, instance
from figures.report import Comparison, FigureReport
from figures.runs import Outcome, Run, Workspace
from figures.style import PARTS, REAL, note, save, subplots

TRACE = "dataset/sharegpt_pulse_req50_n6_delay15_pc.jsonl"
TITLE = "memory use and prefix hit rate"
PULSES = (
    "synthetic:n=300,arrivals=burst:size=50:every_s=15,input=lognormal:200:cv=1.3:min=1:max=1807,"
    "output=lognormal:250:cv=0.68:min=2:max=771,prefixes=12:tokens=256:share=0.6,seed=7"
)
"""Bursts of 50 requests every 15 s, as in the paper's trace; prefixes of a CPU pool's chunk (256
tokens).
"""


def runs(work: Workspace) -> list[Run]:
    """One instance with the device's own cache; two with a pool in host memory that both use."""
    trace = work.of_artifact(TRACE)
    profiles = work.of_artifact("perf_models")
    source = ("--profile-dir", str(profiles)) if profiles else ()
    engine = (*published.EAGER, *source)
    shared = ("--prefix-storage", "CPU", "--enable-prefix-sharing")
    dataset = str(trace or PULSES)
    return [
        Run(
            "single",
            "one instance",
            cluster([instance(A6000, LLAMA_8B)], A6000_LINK),
            dataset,
            engine,
        ),
        Run(
            "multi",
            "two instances, shared host pool",
            cluster([instance(A6000, LLAMA_8B)] * 2, A6000_LINK),
            dataset,
            ("--request-routing-policy", "RR", *shared, *engine),
        ),
    ]


def build(work: Workspace) -> FigureReport:
    """Memory above, hit rate below; a column per configuration."""
    report = FigureReport(7, TITLE)
    figure, axes = subplots(2, 2, width=3.4, height=1.7)
    for column, run in enumerate(runs(work)):
        outcome = work.execute(run)
        axes[0][column].set_title(run.title)
        if outcome.failure:
            report.remarks.append(outcome.remark)
            note(axes[0][column], "not run")
            axes[1][column].set_axis_off()
            continue
        _panel(work, outcome, axes[0][column], axes[1][column])
        if _same_trace(work):
            _compare(work, outcome, report)
        hits = outcome.summary["prefix_cache"]
        for pool in outcome.summary.get("kv_tiers") or ():
            report.remarks.append(
                f"{run.title}: {pool['hit_tokens']} tokens came from the pool {pool['name']}"
            )
        report.remarks.append(
            f"{run.title}: {100 * (hits['hit_rate'] or 0):.1f} % of the prompt tokens found in the "
            f"device's cache, peak KV use {100 * outcome.summary['kv_cache'][0]['peak_usage']:.0f} "
            f"% (the paper's own average error is {published.MEMORY_ERROR[run.name]} %)"
        )
    axes[0][0].set_ylabel("KV held, GB")
    axes[1][0].set_ylabel("hit rate, %")
    for axis in axes[1]:
        axis.set_xlabel("time, s")
    save(figure, work.folder / "figure_7.pdf")
    return report


def _same_trace(work: Workspace) -> bool:
    """The measured figures are of the artifact's trace; no other is compared with them."""
    return work.of_artifact(TRACE) is not None


def _compare(work: Workspace, outcome: Outcome, report: FigureReport) -> None:
    """What is held at the end, and the hits, beside what the servers measured on the same trace."""
    name = outcome.run.name
    lines = (
        (work.folder / "parsed" / f"{name}_memory.tsv").read_text(encoding="utf-8").splitlines()[1:]
    )
    last = {int(cells[0]): cells for cells in (line.split("\t") for line in lines)}
    for number, real in enumerate(published.MEMORY_REAL[name]):
        label = (
            f"{outcome.run.title}, {number}"
            if len(published.MEMORY_REAL[name]) > 1
            else outcome.run.title
        )
        held_mib, hits = float(last[number][2]) * 1e9 / 2**20, float(last[number][4])
        report.comparisons += [
            Comparison(
                f"{label}: KV held at the end, MiB", held_mib, real.held_mib, published.ARTIFACT
            ),
            Comparison(
                f"{label}: prompt tokens found, %", hits, real.hit_percent, published.ARTIFACT
            ),
        ]
    for pool in outcome.summary.get("kv_tiers") or ():
        hits = 100 * pool["hit_tokens"] / max(outcome.summary["prefix_cache"]["queried_tokens"], 1)
        held_mib, real = pool["used_bytes"] / 2**20, published.POOL_REAL
        report.comparisons += [
            Comparison(
                "shared pool: held at the end, MiB", held_mib, real.held_mib, published.ARTIFACT
            ),
            Comparison(
                "shared pool: prompt tokens found, %", hits, real.hit_percent, published.ARTIFACT
            ),
        ]


def _measured(work: Workspace, name: str, group: int, memory: Any, rate: Any) -> None:
    """The server's own series below ours, where the artifact's copy has it; its memory counts the
    weights.
    """
    kind = "SD+PC" if name == "single" else f"MD+PC+PS_inst{group}"
    path = work.of_artifact(f"figure_7/reference/{kind}.tsv")
    if path is None:
        return
    lines = [
        [float(cell) for cell in line.split("\t")]
        for line in path.read_text(encoding="utf-8").splitlines()[1:]
    ]
    seconds = [line[0] for line in lines]
    held = [max(0.0, line[1] - published.WEIGHTS_MIB) * 2**20 / 1e9 for line in lines]
    memory.plot(seconds, held, color=REAL, linewidth=2.4, alpha=0.35, label="measured")
    rate.plot(seconds, [line[2] for line in lines], color=REAL, linewidth=2.4, alpha=0.35)


def _panel(work: Workspace, outcome: Outcome, memory: Any, rate: Any) -> None:
    columns = outcome.columns
    caches = outcome.summary["kv_cache"]
    rows = []
    for group, about in enumerate(caches):
        mine = [i for i, g in enumerate(columns["group"]) if g == group]
        time_s = [columns["time_ps"][i] / 1e12 for i in mine]
        held = [
            (columns["kv_blocks_used"][i] + columns["kv_blocks_cached"][i])
            * about["block_bytes"]
            / 1e9
            for i in mine
        ]
        used = [columns["kv_blocks_used"][i] * about["block_bytes"] / 1e9 for i in mine]
        hits = list(accumulate(columns["hit_tokens"][i] for i in mine))
        queried = list(accumulate(columns["queried_tokens"][i] for i in mine))
        rates = [100 * hit / max(asked, 1) for hit, asked in zip(hits, queried, strict=True)]
        _measured(work, outcome.run.name, group, memory, rate)
        if _same_trace(work):
            real = published.MEMORY_REAL[outcome.run.name][group]
            ring: dict[str, Any] = {
                "color": REAL,
                "marker": "o",
                "markerfacecolor": "none",
                "linestyle": "none",
            }
            memory.plot(
                time_s[-1:], [real.held_mib * 2**20 / 1e9], **ring, label="measured, at the end"
            )
            rate.plot(time_s[-1:], [real.hit_percent], **ring)
        label = f"instance {group}"
        first, second = PARTS[2 * group], PARTS[2 * group + 1]
        memory.plot(time_s, held, color=first, label=f"{label}, all with content")
        memory.plot(time_s, used, color=second, label=f"{label}, of running requests")
        rate.plot(time_s, rates, color=first)
        rows += [
            (group, f"{t:g}", f"{a:.4f}", f"{b:.4f}", f"{c:.3f}")
            for t, a, b, c in zip(time_s, held, used, rates, strict=True)
        ]
    memory.set(ylim=(0, None), xlim=(0, None))
    rate.set(ylim=(0, None), xlim=(0, None))
    header = ("instance", "time_s", "held_GB", "used_GB", "hit_rate_percent")
    work.write_table(f"{outcome.run.name}_memory", header, rows)
