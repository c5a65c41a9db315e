"""A comparison as Markdown."""

import math

from llmsim.plurals import counted
from llmsim.validation.compare.compare import PERCENTILES, Comparison, Value

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "latency": "latency"}


def markdown(comparison: Comparison) -> str:
    """The tables and findings, ending in a line feed."""
    real, simulated = comparison.pairs.real, comparison.pairs.simulated
    lines = [
        f"{counted(len(real), 'request')}: {real.kind} `{real.source}` against {simulated.kind} "
        f"`{simulated.source}`. Errors are simulated minus real.",
        "",
        *_distributions(comparison),
        "",
        *_paired(comparison),
    ]
    for name, value in comparison.totals.items():
        unit = "tok/s" if name == "output_throughput" else "s"
        label = name.replace("_", " ")
        lines += [
            "",
            (
                f"{label}: real {value.real:.2f} {unit}, simulated {value.simulated:.2f} {unit}, "
                f"{_error(value)}"
            ),
        ]
    if comparison.findings:
        lines += [
            "",
            "The comparison is sound, but:"
            if comparison.sound
            else "**The comparison is not sound:**",
            "",
        ]
        lines += [
            f"- {'' if not finding.unsound else '**unsound** '}{finding.sentence}"
            for finding in comparison.findings
        ]
    return "\n".join(lines) + "\n"


def _distributions(comparison: Comparison) -> list[str]:
    percentiles = [f"p{q}" for q in PERCENTILES]
    lines = [
        (
            "| metric | real mean (ms) | simulated mean (ms) | mean error | "
            f"{' | '.join(percentiles)} |"
        ),
        "| --- | ---: | ---: |" + " ---: |" * (1 + len(percentiles)),
    ]
    for metric, values in comparison.statistics.items():
        mean = values["mean"]
        errors = " | ".join(_error(values[name]) for name in ("mean", *percentiles))
        lines.append(
            f"| {NAMES[metric]} | {1000 * mean.real:.2f} | {1000 * mean.simulated:.2f} | {errors} |"
        )
    return lines


def _paired(comparison: Comparison) -> list[str]:
    who = (
        f"{counted(comparison.num_paired, 'request')}, arrivals of the first "
        f"{comparison.skip_seconds:g} s "
        "left out"
    )
    lines = [
        f"| per request ({who}) | mean absolute error | median | p90 |",
        "| --- | ---: | ---: | ---: |",
    ]
    for metric, errors in comparison.paired.items():
        shown = " | ".join(_percent(value) for value in (errors.mape, errors.median, errors.p90))
        lines.append(f"| {NAMES[metric]} | {shown} |")
    return lines


def _error(value: Value) -> str:
    return "-" if not math.isfinite(value.error_percent) else f"{value.error_percent:+.2f} %"


def _percent(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.2f} %"
