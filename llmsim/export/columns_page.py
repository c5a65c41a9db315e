"""The reference page of the columns of a run's tables (`llmsim schema --columns`)."""

from collections.abc import Sequence

from llmsim.columns import (
    FILES,
    Column,
    FrontendCause,
    GroupCounters,
    KvTierTotals,
    LinkColumns,
    RequestClass,
    RequestDrafts,
)

HEADING = """\
# Columns

`llmsim schema --columns` prints this page. A run folder holds these tables as Parquet files, whose
fields carry unit and meaning as metadata. A time that never came is null.
"""
IN_MEMORY = {
    "kv_tiers of summary.json": KvTierTotals,
    "Results.counters": GroupCounters,
    "network() of a simulation": LinkColumns,
}


def columns_page() -> str:
    """The page in Markdown, a section per table."""
    sections = [_section(f"`{name}`", columns) for name, columns in FILES.items()]
    drafts = "`requests.parquet` of a run with speculation, in addition"
    frontend = "`requests.parquet` of a run with an endpoint of the API server, in addition"
    sections.insert(1, _section(drafts, RequestDrafts.COLUMNS))
    classes = "`requests.parquet` of a trace with `slo_class`, in addition"
    sections.insert(2, _section(classes, RequestClass.COLUMNS))
    sections.insert(3, _section(frontend, FrontendCause.COLUMNS))
    for name, table in IN_MEMORY.items():
        shown = [column for column in table.COLUMNS if column.in_files]
        sections.append(_section(f"`{name}`", shown))
    return HEADING + "".join(sections)


def _section(title: str, columns: Sequence[Column]) -> str:
    rows = [f"| `{one.name}` | {one.dtype} | {one.unit} | {one.meaning} |\n" for one in columns]
    return (
        f"\n## {title}\n\n| column | type | unit | meaning |\n| --- | --- | --- | --- |\n"
        + "".join(rows)
    )
