"""Tables of external hardware simulators (docs/how-to/external_simulators.md): checked, and what is
of the target kept.

They stay rows of single operators: llmsim prices them by utilisation at run time, which a bundle's
grid would round.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.costs.sources.external.checks import same_heads, same_matrix
from llmsim.costs.sources.external.importers import write_table
from llmsim.costs.sources.external.table import ATTENTION, ExternalTable, Point, read_external
from llmsim.model import Attention, Operator
from llmsim.model.hardware import same_device
from llmsim.plurals import plural
from llmsim.profiler.importing.report import Report
from llmsim.profiler.importing.sources import table_files
from llmsim.profiler.importing.target import Target

ENDINGS = (".csv", ".json", ".parquet")


def import_external(sources: Sequence[Path], target: Target, report: Report) -> list[Path]:
    """Writes the rows of the target's device, degree and operators as one cost table for
    `--cost-table`.

    Raises InputError for the first row that breaks the contract, and where no row is of the target.
    """
    operators = target.operators()
    kept: list[ExternalTable] = []
    for path in table_files(sources, ENDINGS):
        table = read_external(path)
        points = []
        for point in table.points:
            reason = _not_ours(point, target, operators)
            if reason:
                report.skip(path.name, reason)
            else:
                points.append(point)
        if points:
            report.took(path.name, target.cost_table.name, len(points))
        if table.ignored:
            report.note(
                f"{path}: columns that the contract does not know: {', '.join(table.ignored)}"
            )
        kept.append(ExternalTable(path, tuple(points), ()))
    if not any(table.points for table in kept):
        raise InputError(
            f"no row is of {target.model.name} on {target.hardware} with tp {target.tp}: "
            + _why(report)
        )
    write_table(kept, target.cost_table)
    report.note(f"use it with --cost-table {target.cost_table}")
    return [target.cost_table]


def _not_ours(point: Point, target: Target, operators: Sequence[Operator]) -> str:
    """Why a row cannot be used for the target; "" where it can."""
    if point.device and not same_device(point.device, target.hardware):
        return f"of the device {point.device}"
    if point.get("tp", target.tp) != target.tp:
        return f"of tp {point.get('tp')}"
    if point.operator == "gemm":
        return ""  # other shapes help to interpolate
    if point.operator in ATTENTION:
        own = any(isinstance(op, Attention) and same_heads(point, op) for op in operators)
        return "" if own else "of attention with other heads"
    named = [op for op in operators if op.name == point.operator]
    if not named:
        return f'of the operator "{point.operator}", which the model does not have'
    return (
        ""
        if any(same_matrix(point, op) for op in named)
        else f"of {point.operator} with another shape"
    )


def _why(report: Report) -> str:
    return "; ".join(
        f"{rows} {plural(rows, f'row of {file} is', f'rows of {file} are')} {reason}"
        for (file, reason), rows in sorted(report.skipped.items())
    )
