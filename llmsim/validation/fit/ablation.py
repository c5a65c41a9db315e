"""What each fidelity term is worth: a recorded run against simulations with one term removed at a
time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim.lowering.adjust.ablation_terms import TERMS
from llmsim.validation.compare.compare import Comparison, compare
from llmsim.validation.logs.recording import Recording

ALL = "all terms"
COLUMNS = (
    ("mean TTFT", "mean_ttft"),
    ("mean TPOT", "mean_tpot"),
    ("mean latency", "mean_latency"),
    ("MAPE TTFT", "paired_mape_ttft"),
    ("MAPE TPOT", "paired_mape_tpot"),
    ("MAPE latency", "paired_mape_latency"),
    ("throughput", "output_throughput"),
)


@dataclass(frozen=True, eq=False)
class Row:
    """One simulation: the term that it lacks ("all terms": none), and whether that changed any
    request.
    """

    label: str
    comparison: Comparison
    changed: bool


def ablate(
    real: Recording,
    simulate: Callable[[tuple[str, ...]], Recording],
    terms: Sequence[str],
    skip_seconds: float,
) -> tuple[Row, ...]:
    """The run with all terms first, then without each; `simulate` takes the terms that are off."""
    full = simulate(())
    rows = [Row(ALL, compare(real, full, skip_seconds), False)]
    for term in terms or tuple(TERMS):
        without = simulate((term,))
        rows.append(
            Row(f"no {term}", compare(real, without, skip_seconds), not _equal(full, without))
        )
    return tuple(rows)


def _equal(a: Recording, b: Recording) -> bool:
    return (
        a.request_id == b.request_id
        and np.array_equal(a.ttft_s, b.ttft_s)
        and np.array_equal(a.latency_s, b.latency_s)
    )


def ablation_markdown(rows: Sequence[Row]) -> str:
    """The table, errors in percent; "=" where nothing changed. Ends in a line feed."""
    lines = [
        f"| removed | {' | '.join(label for label, _ in COLUMNS)} |",
        "| --- |" + " ---: |" * len(COLUMNS),
    ]
    for row in rows:
        errors = row.comparison.errors()
        cells = [_cell(name, errors.get(name)) for _, name in COLUMNS]
        if not row.changed and row.label != ALL:
            cells = ["="] * len(COLUMNS)
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(name: str, error: float | None) -> str:
    if error is None or not np.isfinite(error):
        return "-"
    return f"{error:.2f}" if name.startswith("paired") else f"{error:+.2f}"


def ablation_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Label -> errors in percent; and whether the term changed anything."""
    return {
        row.label: {
            "changed": row.changed,
            "errors_percent": {
                k: round(v, 4) for k, v in row.comparison.errors().items() if np.isfinite(v)
            },
        }
        for row in rows
    }
