"""`python -m llmsim.profiler import`: tells the format, reads it, writes a bundle, reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.profiler.importing.aiconfigurator import read_aiconfigurator
from llmsim.profiler.importing.bundle import BundleRows
from llmsim.profiler.importing.external import import_external
from llmsim.profiler.importing.llmservingsim import read_bundle, read_older
from llmsim.profiler.importing.report import Report
from llmsim.profiler.importing.sources import KINDS, SourceTable, open_tables
from llmsim.profiler.importing.target import Target
from llmsim.profiler.importing.vidur import read_vidur

Reader = Callable[[Sequence[SourceTable], Target, Report], BundleRows]
READERS: dict[str, Reader] = {
    "llmservingsim": read_bundle,
    "older": read_older,
    "vidur": read_vidur,
    "aiconfigurator": read_aiconfigurator,
}
"""Family of a table's kind -> its reader; Frontier's tables are Vidur's with more columns."""
EXTERNAL = "external"
"""The contract of external simulators (docs/how-to/external_simulators.md), whose tables do not
become bundles.
"""
OLDER_COMPANIONS = ("vidur attention",)
"""Tables that the older generation shares with Vidur."""


def import_profiles(
    sources: Sequence[Path], target: Target, wanted: str | None = None
) -> tuple[Report, list[Path]]:
    """Writes the bundle of the target's degree, or of an external simulator's tables the cost
    table.

    Returns the report and the written files. Raises InputError where nothing can be read.
    """
    if wanted not in (None, *READERS, EXTERNAL):
        raise InputError(f'--format is "{wanted}"; it may be {", ".join([*READERS, EXTERNAL])}')
    tables = [] if wanted == EXTERNAL else open_tables(sources)  # that format may be JSON
    family = wanted or _family(tables)
    if family == EXTERNAL:
        report = Report(EXTERNAL)
        return report, import_external(sources, target, report)
    report = Report("vidur or frontier" if family == "vidur" else family)
    mine = []
    for table in tables:
        if table.kind.split(" ")[0] == family or (
            family == "older" and table.kind in OLDER_COMPANIONS
        ):
            mine.append(table)
        else:
            known = (
                f"it is a table of {table.kind}"
                if table.kind
                else "its columns are of no known table"
            )
            report.skip(table.path.name, known, len(table.rows))
    if not mine:
        raise InputError(
            f"none of the {len(tables)} tables is of the format {family}; the report of --help "
            "names them"
        )
    rows = READERS[family](mine, target, report)
    provenance: dict[str, object] = {
        "profiler_version": "import",
        "imported_from": family,
        "sources": [str(table.path) for table in mine],
        "imported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": target.hardware,
        "model": target.model.name,
        "variant": target.dtype,
        "report": report.lines(),
    }
    return report, rows.write(target.folder, provenance)


def _family(tables: Sequence[SourceTable]) -> str:
    """The family of most tables; the older generation wins where its layers.csv is there."""
    kinds = [table.kind for table in tables if table.kind]
    if "older layers" in kinds:
        return "older"
    families = [kind.split(" ")[0] for kind in kinds]
    if not families:
        first = tables[0]
        raise InputError(
            f"{first.path}:1: the columns {', '.join(first.header[:6])} are of no known table; "
            "known are those of "
            f"{', '.join(sorted({kind.split(' ')[0] for kind in KINDS}))} and Frontier"
        )
    return max(dict.fromkeys(families), key=families.count)
