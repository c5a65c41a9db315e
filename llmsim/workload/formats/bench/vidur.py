"""Vidur's CSV: num_prefill_tokens, num_decode_tokens, and arrived_at in s unless it holds lengths
alone.

Frontier adds columns of sessions and of content.
"""

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import CsvRows
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table

COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
OPTIONAL = ("arrived_at", "session_id", "block_hash_ids")
BLOCK_TOKENS = 16


def detect(head: Head) -> bool:
    return head.kind == "csv" and head.has("num_prefill_tokens", "num_decode_tokens")


def read(source: Source, head: Head) -> Table:
    table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS, labels=True)
    rows = CsvRows(table, head, COLUMNS, OPTIONAL)
    (prefill, decode), (at, session, hashes) = rows.columns, rows.optional
    if hashes >= 0 and source.options.block is None:
        table.notes.append(
            f"{source.path}: block_hash_ids are taken as blocks of {BLOCK_TOKENS} tokens; block= "
            "says otherwise"
        )
    if at < 0 and source.options.rate is None:
        table.say("no arrived_at, so all requests begin at 0; rate= spreads them")
    for number, fields in rows:
        table.add(
            number,
            rows.seconds_ns(number, fields, at) if at >= 0 else 0,
            rows.tokens(number, fields, prefill),
            rows.tokens(number, fields, decode),
            session=rows.text(fields, session),
            ids=_ids(fields[hashes]) if hashes >= 0 else None,
        )
        if table.full:
            break
    return table


def _ids(text: str) -> list[int | str]:
    """`11|22`, or a list as Python or JSON write it; ids that are no numbers stay text."""
    parts = text.strip().strip("[]").replace(",", "|").split("|")
    names = [part.strip().strip("'\"") for part in parts if part.strip()]
    return [int(name) if name.isdecimal() and len(name) <= 20 else name for name in names]
