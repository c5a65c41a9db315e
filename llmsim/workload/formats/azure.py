"""Azure's LLM inference traces of 2023 and 2024: CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""

from datetime import UTC, datetime

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import CsvRows
from llmsim.workload.formats.table import Source, Table

NAME, TITLE = "azure", "Azure LLM inference"
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
            raise rows.bad(number, fields, at, "a date and time such as 2023-11-16 18:15:46.6805900") from None
        add(number, at_ns, tokens(number, fields, context), tokens(number, fields, generated))
        if table.full:
            break
    return table


def timestamp_ns(text: str, minutes: dict[str, int]) -> int:
    """ns since 1970 of an ISO date and time (UTC where it names no zone), exact to the ns; `minutes` remembers the
    beginnings of minutes. Raises ValueError."""
    minute, seconds = text[:17], text[17:]
    if "+" in seconds or "-" in seconds or "Z" in seconds:
        at = max(seconds.find("+"), seconds.find("-"), seconds.find("Z"))
        minute, seconds = minute + seconds[at:], seconds[:at]
    begin = minutes.get(minute)
    if begin is None:
        moment = datetime.fromisoformat(minute[:17] + "00" + minute[17:])
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        begin = minutes[minute] = round(moment.timestamp()) * 10**9
    whole, _, fraction = seconds.partition(".")
    if len(whole) != 2 or not 0 <= int(whole) <= 60:
        raise ValueError
    return begin + int(whole) * 10**9 + int(fraction[:9].ljust(9, "0") or 0)
