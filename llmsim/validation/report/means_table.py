"""Published means beside simulated ones as Markdown."""

import math

from llmsim.plurals import counted
from llmsim.validation.compare.compare import Value
from llmsim.validation.fit.means import MeansComparison, MeansFit
from llmsim.validation.logs.recording import Finding

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}


def means_markdown(comparison: MeansComparison) -> str:
    """One line per published figure; ends in a line feed."""
    means, simulated = comparison.means, comparison.simulated
    lines = [
        f"{means.kind} `{means.source}` against {counted(len(simulated), 'request')} of "
        f"{simulated.kind} `{simulated.source}`. Errors are simulated minus published.",
        "",
        "| figure | published | simulated | error |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, value in comparison.values.items():
        scale, unit = _scale(name)
        shown = (
            f"{scale * value.real:.2f} {unit} | {scale * value.simulated:.2f} {unit} | "
            f"{_error(value)}"
        )
        lines.append(f"| {_label(name)} | {shown} |")
    return "\n".join([*lines, *_said(comparison.findings, comparison.sound)]) + "\n"


def means_fit_markdown(fit: MeansFit) -> str:
    """What was fitted on which figure, and what that does to the others; ends in a line feed."""
    lines = [
        (
            f"Fitted on {_label(fit.fitted_on)}; the other figures are predictions. Errors are "
            "simulated minus published."
        ),
        "",
        f"| figure | nothing fitted | {fit.name} {fit.value:.6g} |",
        "| --- | ---: | ---: |",
    ]
    for name, value in fit.fitted.values.items():
        lines.append(f"| {_label(name)} | {_error(fit.unfitted.values[name])} | {_error(value)} |")
    lines += [
        "",
        (
            f"Chosen: {fit.name} {fit.value:.6g} for {fit.hardware}. Nothing was held out: test it "
            "on another run."
        ),
    ]
    sound = not any(finding.unsound for finding in fit.findings)
    return "\n".join([*lines, *_said(fit.findings, sound)]) + "\n"


def _said(findings: tuple[Finding, ...], sound: bool) -> list[str]:
    lines = [
        "",
        "The comparison is sound, but:" if sound else "**The comparison is not sound:**",
        "",
    ]
    return [
        *lines,
        *(f"- {'**unsound** ' if one.unsound else ''}{one.sentence}" for one in findings),
    ]


def _label(name: str) -> str:
    return " ".join(NAMES.get(word, word) for word in name.split("_"))


def _scale(name: str) -> tuple[float, str]:
    if name == "output_throughput":
        return 1.0, "tok/s"
    return (1.0, "s") if name == "makespan" else (1e3, "ms")


def _error(value: Value) -> str:
    return "-" if not math.isfinite(value.error_percent) else f"{value.error_percent:+.2f} %"
