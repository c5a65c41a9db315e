"""A calibration as Markdown."""

import math
from collections.abc import Mapping

from llmsim.validation.compare.compare import Comparison
from llmsim.validation.fit.calibrate import (
    AXES,
    HELD_OUT_TARGET_PERCENT,
    NOT_ENOUGH,
    CalibrationReport,
    Fit,
    held_out_means_percent,
    why_not,
)

COLUMNS = (
    "mean_ttft",
    "mean_tpot",
    "mean_latency",
    "paired_mape_ttft",
    "paired_mape_tpot",
    "paired_mape_latency",
)


def calibration_markdown(report: CalibrationReport) -> str:
    """What was fitted, on which half, and the errors of both halves before and after; ends in a
    line feed.
    """
    chosen = report.chosen
    fit, held = len(chosen.fit_half.pairs.real), len(chosen.held_out.pairs.real)
    left = f" ({report.cold} of the cold engine left out)" if report.cold else ""
    lines = [
        f"Fitted on {fit} requests of the first half{left}, tested on the last {held}; errors in "
        "percent, simulated minus real.",
        "",
        (
            "| fitted | half | mean TTFT | mean TPOT | mean latency | MAPE TTFT | MAPE TPOT | MAPE "
            "latency |"
        ),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(line for one in (report.unfitted, *report.fits) for line in _rows(one)),
        "",
    ]
    for one in report.fits:
        why = why_not(one, report.unfitted)
        if why is not None:
            lines.append(f"Not kept: {_constants(one.constants)}, since {why}.")
    if not chosen.fitted:
        worst = held_out_means_percent(report.unfitted)
        agrees = worst <= HELD_OUT_TARGET_PERCENT
        why = "none is needed" if agrees else NOT_ENOUGH
        lines.append(
            f"Chosen: nothing, since {why}; held-out means differ by up to {worst:.2f} % (target: "
            f"at most {HELD_OUT_TARGET_PERCENT:g} %)."
        )
    else:
        lines.append(f"Chosen: {_constants(chosen.constants)} for {report.hardware}.")
        lines.append(f"Fitted on the other half it would be {_constants(report.other_half)}.")
        worst = held_out_means_percent(chosen)
        verdict = "within" if worst <= HELD_OUT_TARGET_PERCENT else "not within"
        lines.append(
            f"Held-out means differ by up to {worst:.2f} %, {verdict} the target of "
            f"{HELD_OUT_TARGET_PERCENT:g} % "
            f"(nothing fitted: {held_out_means_percent(report.unfitted):.2f} %)."
        )
    for finding in report.findings:
        lines.append(f"- {'**unsound** ' if finding.unsound else ''}{finding.sentence}")
    return "\n".join(lines) + "\n"


def _rows(fit: Fit) -> list[str]:
    name = _constants(fit.constants) if fit.fitted else "nothing"
    return [_row(name, "first", fit.fit_half), _row(name, "held out", fit.held_out)]


def _row(name: str, half: str, comparison: Comparison) -> str:
    errors = comparison.errors()
    cells = [_cell(column, errors[column]) for column in COLUMNS]
    return f"| {name} | {half} | {' | '.join(cells)} |"


def _cell(column: str, error: float) -> str:
    if not math.isfinite(error):
        return "-"
    return f"{error:+.2f}" if column.startswith("mean") else f"{error:.2f}"


def _constants(constants: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {constants[name]:.6g}" for name in AXES if name in constants)
