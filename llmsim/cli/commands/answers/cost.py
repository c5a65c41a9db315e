"""`llmsim cost`: what deployments cost beside a baseline."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite, json_file, shown
from llmsim.plurals import plural

HELP = (
    "Compare the cost of finished runs. The table has the spend ratio and the cost efficiency "
    "of each run against the first run. A spend ratio above 1 means a cheaper run; a cost "
    "efficiency above 1 means more tokens, prompts and answers together, per dollar."
)
COLUMNS = (
    "run",
    "USD/h",
    "USD/M output",
    "tokens/s",
    "output tokens/s",
    "J/token",
    "p95 TTFT ms",
    "p95 TPOT ms",
    "good %",
    "spend",
    "efficiency",
    "times within %",
)
"""Of the table and of each row of --json; "tokens/s" and "J/token" count prompt tokens, too;
"good %": the requests that met the run's `--goodput`; "times within %": what nine in ten of the
run's operator times are expected to be off by at most.
"""

HEADINGS = {"tokens/s": "prompt + output tokens/s", "J/token": "J/token (prompt + output)"}
"""Of columns of the table that say less under their name in --json."""
GUESSED_APART = 0.2
"""Shares of analytic times that differ by more are said."""


_FIGURES = {
    "total_token_throughput": True,
    "output_throughput": False,
    "cost.price_per_hour": True,
    "cost.per_million_output_tokens": False,
    "p95_ttft_ms": False,
    "p95_tpot_ms": False,
    "energy.j_per_token": False,
    "goodput.share": False,
    "sources.expected_error_percent.most": False,
    "sources.by_provenance.analytic": False,
}
"""Figures of a summary that are compared, and whether a comparison needs them."""


def command(
    baseline: Annotated[
        Path,
        typer.Argument(
            help="Names the first run: its folder, or its summary (--json).", show_default=False
        ),
    ],
    candidates: Annotated[
        list[Path],
        typer.Argument(help="Names the runs to compare with the first run.", show_default=False),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Prints JSON on stdout instead of a table.")
    ] = False,
) -> int:
    """Prints the comparison; InputError for what is no summary, or has no price. Returns the exit
    code.
    """
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
                f"{path}: this run or {baseline} has no price or no throughput; give "
                "price_per_device_hour",
                file=str(path),
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
        was, now = (
            f"{load.get('requests')} {plural(load.get('requests') or 0, 'request')} of "
            f"{load.get('source')}"
            for load in loads
        )
        notes.append(f"another load ({now}; {was}), so their ratios compare more than the clusters")
    guessed = [
        ((run.get("sources") or {}).get("by_provenance") or {}).get("analytic") or 0.0
        for run in (first, other)
    ]
    if abs(guessed[0] - guessed[1]) > GUESSED_APART:
        notes.append(
            f"{100 * guessed[1]:.0f} % of the one's times are from data sheets alone, "
            f"{100 * guessed[0]:.0f} % of the "
            "other's; sheets promise what kernels do not reach, so that run looks the better for it"
        )
    return notes


def _summary(path: Path) -> dict[str, Any]:
    file = path / "summary.json" if path.is_dir() else path
    wanted = "a summary of a run: name a run folder (--run-dir) or a --json file"
    data = json_file(file, wanted)
    if not isinstance(data, dict) or "total_token_throughput" not in data:
        raise InputError(
            f"{file}: not a summary of a run; name a run folder (--run-dir) or a --json file"
        )
    if not data.get("cost"):
        raise InputError(
            f"{file}: the run has no price; give its instances price_per_device_hour in the "
            "cluster file"
        )
    if data.get("completed") == 0:
        raise InputError(
            f"{file}: no request of the run finished, so it has no cost per token; compare runs "
            "whose requests finish"
        )
    _check(file, data)
    return data


def _check(file: Path, summary: dict[str, Any]) -> None:
    """Raises InputError for a figure of the comparison that the summary does not have, or that is
    no number.
    """
    for path, needed in _FIGURES.items():
        value: Any = summary
        for key in path.split("."):
            if value is not None and not isinstance(value, dict):
                raise InputError(
                    f"{file}: {path} cannot be read, since what should hold {key} is {shown(value)}"
                )
            value = (value or {}).get(key)
        if finite(value) is None and (needed or value is not None):
            found = "missing" if value is None else shown(value)
            raise InputError(
                f"{file}: {path} is {found}; it must be a number, as `llmsim run --json` writes it"
            )
    load = summary.get("workload")
    if load is not None and not isinstance(load, dict):
        raise InputError(f"{file}: workload is {shown(load)}; it must be an object")


def _row(path: Path, summary: dict[str, Any], spend: float, efficiency: float) -> dict[str, Any]:
    energy = summary.get("energy") or {}
    cost = summary["cost"]
    good = (summary.get("goodput") or {}).get("share")
    values = (
        str(path),
        cost["price_per_hour"],
        cost.get("per_million_output_tokens"),
        summary["total_token_throughput"],
        summary.get("output_throughput"),
        energy.get("j_per_token"),
        summary.get("p95_ttft_ms"),
        summary.get("p95_tpot_ms"),
        None if good is None else 100 * good,
        spend,
        efficiency,
        ((summary.get("sources") or {}).get("expected_error_percent") or {}).get("most"),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _table(rows: list[dict[str, Any]]) -> str:
    headings = [HEADINGS.get(name, name) for name in COLUMNS]
    lines = [" | ".join(headings), " | ".join("---" for _ in COLUMNS)]
    for row in rows:
        cells = [cell if isinstance(cell, str) else _number(cell) for cell in row.values()]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def _number(value: float | None) -> str:
    """Four digits; large numbers whole, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
