"""`llmsim cost`: what deployments cost beside a baseline."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from llmsim.config import input_files
from llmsim.config.errors import InputError

HELP = (
    "Compare what finished runs cost: spend ratio and cost efficiency of each against the first (both above 1: the run "
    "is cheaper, and gives more tokens per dollar)."
)
COLUMNS = (
    "run", "USD/h", "USD/M output", "tokens/s", "J/token", "p95 TTFT ms", "p95 TPOT ms", "good %", "spend",
    "efficiency", "times within %",
)  # fmt: skip
"""Of the table and of each row of --json; "good %": the requests that met the run's `--goodput`; "times within %": what
nine in ten of the run's operator times are expected to be off by at most."""

GUESSED_APART = 0.2
"""Shares of analytic times that differ by more are said."""


def command(
    baseline: Annotated[Path, typer.Argument(help="Run folder, or a summary (--json).", show_default=False)],
    candidates: Annotated[list[Path], typer.Argument(help="The runs to compare with it.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")] = False,
) -> int:
    """Prints the comparison; InputError for what is no summary, or has no price. Returns the exit code."""
    from llmsim.export.json import json_text
    from llmsim.power import compare

    first = _summary(baseline)
    rows = [_row(baseline, first, 1.0, 1.0)]
    notes = []
    for path in candidates:
        summary = _summary(path)
        scores = compare(first, summary)
        if scores is None:
            raise InputError(
                f"{path}: this run or {baseline} has no price or no throughput; give price_per_device_hour"
            )
        rows.append(_row(path, summary, scores.spend_ratio, scores.cost_efficiency))
        notes += [f"{path} beside {baseline}: {what}" for what in _unlike(first, summary)]
    sys.stdout.write(json_text({"runs": rows, "notes": notes}) if as_json else _table(rows))
    if not as_json:
        sys.stdout.writelines(f"Note: {note}\n" for note in notes)
    return 0


def _unlike(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Why the figures of two runs should not be put side by side, or not without a thought."""
    notes = []
    loads = [run.get("workload") or {} for run in (first, other)]
    if loads[0] != loads[1]:
        was, now = (f"{load.get('requests')} requests of {load.get('source')}" for load in loads)
        notes.append(f"another load ({now}; {was}), so their ratios compare more than the clusters")
    guessed = [((run.get("sources") or {}).get("by_provenance") or {}).get("analytic") or 0.0 for run in (first, other)]
    if abs(guessed[0] - guessed[1]) > GUESSED_APART:
        notes.append(
            f"{100 * guessed[1]:.0f} % of the one's times are from data sheets alone, {100 * guessed[0]:.0f} % of the "
            "other's; sheets promise what kernels do not reach, so that run looks the better for it"
        )
    return notes


def _summary(path: Path) -> dict[str, Any]:
    file = path / "summary.json" if path.is_dir() else path
    try:
        data = json.loads(input_files.read_text(file))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{file}: cannot be read as a summary ({reason}); name a run folder or a --json file"
        ) from None
    if not isinstance(data, dict) or "total_token_throughput" not in data:
        raise InputError(f"{file}: not a summary of a run; name a run folder (--run-dir) or a --json file")
    if not data.get("cost"):
        raise InputError(f"{file}: the run has no price; give its instances price_per_device_hour in the cluster file")
    return data


def _row(path: Path, summary: dict[str, Any], spend: float, efficiency: float) -> dict[str, Any]:
    energy = summary.get("energy") or {}
    cost = summary["cost"]
    good = (summary.get("goodput") or {}).get("share")
    values = (
        str(path),
        cost["price_per_hour"],
        cost["per_million_output_tokens"],
        summary["total_token_throughput"],
        energy.get("j_per_token"),
        summary["p95_ttft_ms"],
        summary["p95_tpot_ms"],
        None if good is None else 100 * good,
        spend,
        efficiency,
        ((summary.get("sources") or {}).get("expected_error_percent") or {}).get("most"),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for row in rows:
        cells = [cell if isinstance(cell, str) else _number(cell) for cell in row.values()]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def _number(value: float | None) -> str:
    """Four digits; large numbers whole, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
