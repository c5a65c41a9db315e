"""Azure's LLM inference traces of 2023 and 2024: CSV with TIMESTAMP, ContextTokens,
GeneratedTokens.
"""

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import CsvRows
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table
from llmsim.workload.formats.times import timestamp_ns

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def detect(head: Head) -> bool:
    return head.kind == "csv" and head.has("ContextTokens", "GeneratedTokens")


def read(source: Source, head: Head) -> Table:
    table = Table(source)
    rows = CsvRows(table, head, COLUMNS)
    at, context, generated = rows.columns
    minutes: dict[str, int] = {}
    tokens, add = rows.tokens, table.add
    for number, fields in rows:
        try:
            at_ns = timestamp_ns(fields[at], minutes)
        except ValueError:
            raise rows.bad(
                number, fields, at, "a date and time such as 2023-11-16 18:15:46.6805900"
            ) from None
        add(number, at_ns, tokens(number, fields, context), tokens(number, fields, generated))
        if table.full:
            break
    return table
