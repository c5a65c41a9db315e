"""BurstGPT: CSV with Timestamp in s, Model, Request tokens, Response tokens; newer files add
Session ID.
"""

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import CsvRows
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
OPTIONAL = ("Model", "Session ID")


def detect(head: Head) -> bool:
    return head.kind == "csv" and head.has("Request tokens", "Response tokens")


def read(source: Source, head: Head) -> Table:
    table = Table(source, labels=True)
    rows = CsvRows(table, head, COLUMNS, OPTIONAL)
    (at, request, response), (model, session) = rows.columns, rows.optional
    for number, fields in rows:
        table.add(
            number,
            rows.seconds_ns(number, fields, at),
            rows.tokens(number, fields, request),
            rows.tokens(number, fields, response),
            session=rows.text(fields, session),
            model=rows.text(fields, model),
        )
        if table.full:
            break
    return table
