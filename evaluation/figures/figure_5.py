"""Figure 5: throughput over time of four serving configurations on RTX A6000 and on H100."""

from pathlib import Path

import numpy as np

from figures import published
from figures.clusters import (
    A6000,
    A6000_LINK,
    H100,
    H100_LINK,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    PHI_MOE,
    Json,
    cluster,
    instance,
)
from figures.report import Comparison, FigureReport
from figures.runs import Outcome, Run, Workspace, per_second
from figures.style import OURS, PEER, REAL, note, save, subplots
from llmsim.api.cluster import LINK_LATENCY_NS
from llmsim.config.errors import InputError
from llmsim.validation.compare.throughput import (
    SeriesErrors,
    completed,
    read_series,
    series_errors,
    total_throughput,
)

TITLE = "throughput over time"
TITLES = {
    "MD": "two dense instances",
    "SD+PC": "one instance, prefix caching",
    "PDD": "prefill and decode apart",
    "SM": "mixture of experts",
}
LLAMA = (
    "synthetic:n=300,rate=10,input=lognormal:224:cv=1.7:max=2000,"
    "output=lognormal:278:cv=0.64:min=2:max=769,seed=5"
)
PHI = (
    "synthetic:n=300,rate=10,input=lognormal:234:cv=1.7:max=1743,"
    "output=lognormal:323:cv=0.65:min=2:max=1064,seed=5"
)
SHARED = (
    "synthetic:n=300,rate=10,input=lognormal:214:cv=1.7:max=2000,"
    "output=lognormal:278:cv=0.64:min=2:max=769,"
    "prefixes=8:tokens=128:share=0.08,seed=5"
)
"""Mean, spread and ends of the lengths of the artifact's 300 ShareGPT requests (Llama, Phi); 4.6 %
of the first's prompt tokens begin like an earlier prompt.
"""


def runs(work: Workspace) -> list[Run]:
    """Four panels per machine; the artifact's files where there are some."""
    found = []
    for name, title in TITLES.items():
        found.append(_a6000(work, name, title))
    for name, title in TITLES.items():
        found.append(_h100(work, name, title))
    return found


def _a6000(work: Workspace, name: str, title: str) -> Run:
    profiles = work.of_artifact("perf_models")
    config = work.of_artifact(f"figure_5/A6000/config/{name}_config.json")
    trace = work.of_artifact(
        f"dataset/sharegpt_req300_rate10_{'phi' if name == 'SM' else 'llama'}.jsonl"
    )
    source = ("--profile-dir", str(profiles)) if profiles else ()
    return Run(
        f"A6000_{name}",
        f"A6000, {title}",
        config or cluster(instances(name, A6000, LLAMA_8B, PHI_MOE, 1), A6000_LINK),
        str(trace) if trace else _synthetic(name),
        ("--request-routing-policy", "RR", *published.EAGER, *_prefixes(name), *source),
    )


def _h100(work: Workspace, name: str, title: str) -> Run:
    trace = work.of_artifact(
        f"dataset/sharegpt_req300_rate10_{'mixtral' if name == 'SM' else 'llama'}.jsonl"
    )
    options = ("--request-routing-policy", "RR", *h100_options(work), *_prefixes(name))
    return Run(
        f"H100_{name}",
        f"H100, {title}",
        h100_cluster(work, name),
        str(trace) if trace else _synthetic(name),
        options,
    )


def h100_cluster(work: Workspace, name: str) -> Json | Path:
    """The artifact's own cluster file of a configuration, else one with the data sheet's links."""
    config = work.of_artifact(f"figure_5/H100/config/{name}_config.json")
    served = instances(name, H100, LLAMA_70B, MIXTRAL, 4)
    return config or cluster(served, H100_LINK, link_latency=LINK_LATENCY_NS)


def h100_options(work: Workspace) -> tuple[str, ...]:
    """The artifact's own H100 profiles where it has them, else the silicon database."""
    profiles = work.of_artifact("perf_models") if work.of_artifact("perf_models/H100") else None
    source = (
        ("--profile-dir", str(profiles), *published.PROFILED)
        if profiles
        else ("--cost-source", "silicon")
    )
    return (*published.SYNCHRONOUS, *source)


def _prefixes(name: str) -> tuple[str, ...]:
    return () if name == "SD+PC" else published.NO_PREFIXES


def _synthetic(name: str) -> str:
    return {"SM": PHI, "SD+PC": SHARED}.get(name, LLAMA)


def instances(name: str, device: Json, dense: str, experts: str, tp: int) -> list[Json]:
    """The instances of one of the paper's configurations: SD(+PC), MD, PDD or SM."""
    if name == "MD":
        return [instance(device, dense, tp)] * 2
    if name == "PDD":
        return [instance(device, dense, tp, "prefill"), instance(device, dense, tp, "decode")]
    return [instance(device, experts if name == "SM" else dense, tp)]


def build(work: Workspace) -> FigureReport:
    """Runs, tables, the plot and the comparison."""
    report = FigureReport(5, TITLE)
    outcomes = [work.execute(run) for run in runs(work)]
    figure, axes = subplots(2, 4)
    for outcome, axis in zip(outcomes, axes.ravel(), strict=True):
        axis.set_title(outcome.run.title)
        if outcome.failure:
            report.remarks.append(outcome.remark)
            note(axis, "not run")
            continue
        ours = per_second(outcome, "generation_tokens")
        work.write_table(
            f"{outcome.run.name}_throughput", ("time_s", "throughput"), list(enumerate(ours))
        )
        for path, color, label in _references(work, outcome.run.name):
            axis.plot(read_series(path), color=color, label=label, linewidth=1.1)
        axis.plot(ours, color=OURS, label="llmsim")
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        _compare(work, outcome, np.array(ours), report)
    for row in axes:
        row[0].set_ylabel("generated tokens/s")
    for axis in axes[-1]:
        axis.set_xlabel("time, s")
    save(figure, work.folder / "figure_5.pdf")
    return report


def _references(work: Workspace, name: str) -> list[tuple[Path, str, str]]:
    device, panel = name.split("_")
    sources = (("reference", REAL, "vLLM, measured"), ("peer", PEER, "LLMServingSim 2.0"))
    found = [
        (work.of_artifact(f"figure_5/{device}/{kind}/{panel}_throughput.tsv"), color, label)
        for kind, color, label in sources
    ]
    return [(path, color, label) for path, color, label in found if path]


def _compare(work: Workspace, outcome: Outcome, ours: np.ndarray, report: FigureReport) -> None:
    name = outcome.run.name
    device, panel = name.split("_")
    references = {label: read_series(path) for path, _, label in _references(work, name)}
    real = references.get("vLLM, measured")
    recorded = outcome.run.dataset.endswith(".jsonl")
    if real is not None and recorded:
        _measured(outcome, ours, real, references.get("LLMServingSim 2.0"), report)
    elif device == "H100" and panel in published.H100_REAL and recorded:
        _published(outcome, panel, report)
    else:
        report.remarks.append(
            f"{name}: {outcome.summary['output_throughput']:.0f} output tok/s; nothing published "
            f"for this trace (the paper's own error per second on {device} is "
            f"{published.SERIES_ERROR[device]} % on average)"
        )


def _measured(
    outcome: Outcome,
    ours: np.ndarray,
    real: np.ndarray,
    peer: np.ndarray | None,
    report: FigureReport,
) -> None:
    """Totals up to the second of the last token, for all three alike, and the sum of differences
    per second.
    """
    name, errors = outcome.run.name, series_errors(ours, real)
    measured = total_throughput(real)
    whole, said = _peer(outcome, real, peer)
    report.comparisons.append(
        Comparison(
            f"{name}: output tok/s", measured * (1 + errors.total / 100), measured,
            "measured series of the artifact", whole.total if whole else None,
        )
    )  # fmt: skip
    last = int(np.flatnonzero(real > 0)[-1])
    report.remarks.append(
        f"{name}: last token {outcome.summary['duration']:.1f} s after the first arrival, of the "
        f"recording in second {last} of its own clock (a second is {100 / last:.1f} % of the "
        f"total); error of the throughput per second {errors.series:.1f} % (sum of "
        f"differences){said}"
    )


def _peer(
    outcome: Outcome, real: np.ndarray, peer: np.ndarray | None
) -> tuple[SeriesErrors | None, str]:
    """The peer's errors, its series completed: it stops at the last whole second, some tokens
    before the end.
    """
    if peer is None:
        return None, ""
    stored = series_errors(peer, real)
    try:
        whole = series_errors(completed(peer, outcome.summary["total_output_tokens"]), real)
    except InputError as error:
        return stored, f"; LLMServingSim 2.0's is {stored.series:.1f} %, as stored ({error})"
    return whole, (
        f"; LLMServingSim 2.0's is {whole.series:.1f} %, its total {whole.total:+.1f} %, or "
        f"{stored.total:+.1f} % without the last part of a second, which its series lacks"
    )


def _published(outcome: Outcome, panel: str, report: FigureReport) -> None:
    real, peer = published.H100_REAL[panel], published.H100_PEER_ERRORS[panel]
    names = (
        ("output tok/s", "output_throughput"),
        ("mean TTFT, ms", "mean_ttft_ms"),
        ("mean TPOT, ms", "mean_tpot_ms"),
    )
    values = (real.throughput, real.ttft_ms, real.tpot_ms)
    for (label, key), value, error in zip(names, values, peer, strict=True):
        report.comparisons.append(
            Comparison(
                f"{outcome.run.name}: {label}", outcome.summary[key], value, "published mean", error
            )
        )
