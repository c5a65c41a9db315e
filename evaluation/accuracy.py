"""Regenerates docs/explanation/accuracy.md: every validation that the data at hand allow, the rest
with its reason.

usage: python evaluation/accuracy.py [--data DIR] [--output docs/explanation/accuracy.md]

DIR holds the recorded runs and published traces, which are not part of this repository
(groundtruth/, artifact/, vllm_oracle/); by default the folder shared/data beside the checkout. A
section whose data is absent says so.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import accuracy_memory
import accuracy_published
import accuracy_static
from accuracy_data import SectionSkipped, needed
from drain import drain_markdown, read_drain, step_price
from msgspec.structs import replace
from prompt_steps import first_tokens, parts_markdown, steps_markdown
from targets import reach, targets_markdown

from llmsim.api.checked.run_options import RunOptions
from llmsim.api.preparation.prepare import trial
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import LlmsimError
from llmsim.validation import Comparison, read_recording
from llmsim.validation.compare.compare import compare
from llmsim.validation.fit.ablation import ablate, ablation_markdown
from llmsim.validation.fit.calibrate import MEANS, Calibrator, Simulate, calibrate, objective
from llmsim.validation.logs.recording import Recording, recording_of
from llmsim.validation.report.calibration_table import calibration_markdown

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
RUN = "groundtruth/rtxpro6000_llama31_8b"
TRACE = "groundtruth/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl"
BUNDLES = "groundtruth/profiler/perf"
HARDWARE = "RTXPRO6000"
COLD_S = 2.0
"""Requests that arrive earlier meet a cold engine."""
FACTORS = (1.0, 1.001, 1.002, 1.003, 1.004, 1.005, 1.006, 1.007, 1.008, 1.009, 1.010)
ENGINE = (
    "--engine-profile",
    "vllm-0.19",
    "--max-num-seqs",
    "128",
    "--max-num-batched-tokens",
    "2048",
)
SOURCES = {
    "profile bundle": ("--profile-dir", BUNDLES),
    "silicon database": ("--cost-source", "silicon"),
}
PEER = {
    "mean_ttft": -4.3,
    "mean_tpot": -1.0,
    "mean_latency": -1.9,
    "output_throughput": 1.9,
    "makespan": -1.9,
    "paired_mape_ttft": 15.0,
    "paired_mape_tpot": 1.5,
    "paired_mape_latency": 2.0,
}
"""LLMServingSim 2.0's own published output for this run against the same log, TTFT from the true
arrival.
"""
ROWS = (
    ("mean TTFT", "mean_ttft", "2.5"),
    ("p50 TTFT", "p50_ttft", "6"),
    ("p99 TTFT", "p99_ttft", "6"),
    ("mean TPOT", "mean_tpot", "1"),
    ("p50 TPOT", "p50_tpot", "2"),
    ("p99 TPOT", "p99_tpot", "2"),
    ("mean latency", "mean_latency", "1"),
    ("p50 latency", "p50_latency", "1.5"),
    ("p99 latency", "p99_latency", "1.5"),
    ("output throughput", "output_throughput", "1"),
    ("makespan", "makespan", "1"),
    ("per request, TTFT: mean absolute error", "paired_mape_ttft", "7"),
    ("per request, TTFT: median", "paired_median_ttft", "4"),
    ("per request, TPOT: mean absolute error", "paired_mape_tpot", "1"),
    ("per request, latency: mean absolute error", "paired_mape_latency", "1.2"),
)


@dataclass(frozen=True)
class RecordedRun:
    """The recorded run of section 1 and how it is simulated; `folder` holds all data."""

    folder: Path

    def options(self, source: str) -> RunOptions:
        """The deployment with one source of operator times, at the log's true arrivals."""
        where = [
            str(needed(self.folder, part)) if "/" in part else part for part in SOURCES[source]
        ]
        cluster, trace = needed(self.folder, f"{RUN}/cluster.json"), needed(self.folder, TRACE)
        arguments = ["--cluster-config", str(cluster), "--dataset", str(trace), *ENGINE, *where]
        return replace(checked_options(arguments), arrivals=self.log)

    @property
    def log(self) -> Path:
        """The engine's stamps."""
        return needed(self.folder, f"{RUN}/vllm/requests.jsonl")

    def real(self) -> Recording:
        """The log."""
        return read_recording(self.log)


def recorded_run(folder: Path) -> str:
    """Section 1: every metric, both sources, the peer and the target."""
    run = RecordedRun(folder)
    real = run.real()
    found: dict[str, Comparison] = {}
    for source in SOURCES:
        found[source] = compare(real, recording_of(trial(run.options(source))))
    lines = [
        accuracy_static.RECORDED_RUN,
        f"| metric, % | {' | '.join(SOURCES)} | LLMServingSim 2.0's own output | target (bundle) |",
        "| --- |" + " ---: |" * (len(SOURCES) + 2),
    ]
    errors = [comparison.errors() for comparison in found.values()]
    for label, name, target in ROWS:
        cells = [_signed(name, one[name]) for one in errors]
        peer = _signed(name, PEER[name], digits=1) if name in PEER else "-"
        lines.append(f"| {label} | {' | '.join(cells)} | {peer} | {target} |")
    findings = [
        f"- {source}: {one.sentence}"
        for source, comparison in found.items()
        for one in comparison.findings
    ]
    early = first_tokens(run.log, run.options("profile bundle"))
    parts = (
        "\n".join([*lines, "", *findings]),
        accuracy_static.RECORDED_RUN_NOTES,
        accuracy_static.FIRST_TOKENS,
        parts_markdown(early),
        accuracy_static.PROMPT_STEPS,
        steps_markdown(early.steps()),
        accuracy_static.PROMPT_STEPS_NOTES,
    )
    return "\n\n".join(part.strip("\n") for part in parts)


def _signed(name: str, value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if name.startswith("paired") else f"{value:+.{digits}f}"


def targets(folder: Path) -> str:
    """Section 2: every target of the recorded run, with nothing fitted and with one constant of the
    machine.
    """
    run = RecordedRun(folder)
    real = run.real()
    found = {source: reach(real, run.options(source)) for source in SOURCES}
    return accuracy_static.EVERY_TARGET + "\n" + targets_markdown(found)


def terms(folder: Path) -> str:
    """Section 3: the same run, one term removed at a time."""
    run = RecordedRun(folder)
    parts = [accuracy_static.TERMS]
    for source in SOURCES:
        options = run.options(source)

        def simulate(disabled: tuple[str, ...], options: RunOptions = options) -> Recording:
            return recording_of(trial(replace(options, disabled_terms=disabled)))

        parts += [
            f"From the {source}:",
            ablation_markdown(ablate(run.real(), simulate, (), COLD_S)),
        ]
    return "\n\n".join(part.strip("\n") for part in parts)


def half_split(folder: Path) -> str:
    """Section 4: one constant of the machine, fitted on the first half of the log and tested on the
    second.
    """
    run = RecordedRun(folder)
    parts = [accuracy_static.HALF_SPLIT]
    for source in SOURCES:
        report = calibrate(
            run.real(),
            _with_constants(run.options(source)),
            hardware=HARDWARE,
            wanted=(),
            available=("time_factor", "host_gap_ns"),
            skip_seconds=COLD_S,
        )
        parts += [f"From the {source}:", calibration_markdown(report)]
    parts += [accuracy_static.FACTORS, factors_table(run), accuracy_static.FACTORS_NOTES]
    prices = {source: step_price(run.options(source)) for source in SOURCES}
    drains = {source: (read_drain(run.real(), price), price) for source, price in prices.items()}
    parts += [accuracy_static.DRAIN, drain_markdown(drains), accuracy_static.DRAIN_NOTES]
    return "\n\n".join(part.strip("\n") for part in parts)


def _with_constants(options: RunOptions) -> Simulate:
    """The run with the constants of a machine."""
    return lambda calibration: recording_of(trial(replace(options, calibration=calibration)))


def factors_table(run: RecordedRun) -> str:
    """Time factors beside each other: the error that the first half shows, and the means of the
    other half.
    """
    options = run.options("profile bundle")
    calibrator = Calibrator(run.real(), _with_constants(options), HARDWARE, COLD_S)
    lines = [
        "| time_factor | error of the first half | held-out mean TTFT | mean TPOT | mean latency |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for factor in FACTORS:
        first, held_out = calibrator.halves({"time_factor": factor})
        means = (f"{held_out.errors()[name]:+.2f}" for name in MEANS)
        lines.append(f"| {factor:.3f} | {objective(first):.2f} | {' | '.join(means)} |")
    return "\n".join(lines)


def scheduler(folder: Path) -> str:
    """Section 8: recorded schedules, step by step."""
    from llmsim.scheduling.conformance.recorded import find_recordings, replay

    verdicts = [replay(path) for path in find_recordings([needed(folder, "vllm_oracle")])]
    identical, steps = sum(one.identical for one in verdicts), sum(one.steps for one in verdicts)
    return (
        f"`llmsim conformance schedules <data>/vllm_oracle`: {identical} of {len(verdicts)} "
        f"recordings of vLLM 0.24.0's own scheduler are identical at every step, {steps:,} steps. "
        + accuracy_static.SCHEDULER
    )


SECTIONS: Sequence[tuple[str, Callable[[Path], str]]] = (
    ("1. A real server, request by request: RTX PRO 6000, Llama-3.1-8B", recorded_run),
    ("2. Every target", targets),
    ("3. What each term is worth", terms),
    ("4. One constant of the machine, half of the log", half_split),
    ("5. Published means: H100, four devices per instance", accuracy_published.h100),
    ("6. KV blocks", accuracy_memory.kv_blocks),
    ("7. Throughput, power, memory and prefix hits over time: RTX A6000", accuracy_memory.figures),
    ("8. The scheduler", scheduler),
)


def document(folder: Path) -> tuple[str, list[str]]:
    """The whole page, and the sections that were skipped."""
    parts, skipped = [accuracy_static.INTRODUCTION], []
    for title, section in SECTIONS:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                text = section(folder)
        except SectionSkipped as reason:
            text = f"Skipped: {reason}."
            skipped.append(f"{title}: {reason}")
        parts.append(f"## {title}\n\n{text.strip()}")
    return "\n\n".join([*parts, accuracy_static.LIMITS]).rstrip() + "\n", skipped


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "explanation" / "accuracy.md"
    )
    arguments = parser.parse_args()
    try:
        text, skipped = document(arguments.data)
    except LlmsimError as error:
        print(f"accuracy: error: {error}", file=sys.stderr)
        return error.exit_code
    arguments.output.write_text(text, encoding="utf-8")
    for reason in skipped:
        print(f"skipped {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
