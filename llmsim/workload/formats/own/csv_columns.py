"""Any CSV with a column of prompt tokens and one of answer tokens, told by usual names or named by
`columns=`.

Such are the traces of splitwise-sim (arrival_timestamp, prompt_size, token_size) and what ServeGen
writes (timestamp, input_tokens, output_tokens). Times are those of `clock`.
"""

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.own.clock import Clock
from llmsim.workload.formats.own.names import ROLES, known_column, named_columns, note_no_arrivals
from llmsim.workload.formats.rows import CsvRows
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table

OPTIONAL = ("model", "session_id", "request_id")


def detect(head: Head) -> bool:
    return head.kind == "csv" and all(known_column(head.columns, names) for names in ROLES)


def read(source: Source, head: Head) -> Table:
    table = Table(source, labels=True)
    if head.kind != "csv":
        raise table.refusal(
            1, "not a CSV: its first line does not name columns with commas between them"
        )
    arrival, *lengths = named_columns(table, head.columns, "column")
    rows = CsvRows(table, head, [name for name in (*lengths, arrival) if name], OPTIONAL)
    asked, answered, *at = rows.columns
    model, session, request = rows.optional
    clock = Clock(table, arrival)
    note_no_arrivals(table, arrival)
    for number, fields in rows:
        added = table.add(
            number,
            _arrival_ns(rows, clock, number, fields, at[0]) if at else 0,
            rows.tokens(number, fields, asked),
            rows.tokens(number, fields, answered),
            session=rows.text(fields, session),
            model=rows.text(fields, model),
        )
        request_id = rows.text(fields, request)
        if added and request_id:
            table.detail(request_id=request_id)
        if table.full:
            break
    return table


def _arrival_ns(rows: CsvRows, clock: Clock, number: int, fields: list[str], column: int) -> int:
    """The time in one row; refuses what is none."""
    at_ns = clock.ns(fields[column])
    if at_ns is None:
        raise rows.bad(number, fields, column, clock.wanted())
    return at_ns
