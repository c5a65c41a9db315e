"""Any CSV with a column of prompt tokens and one of answer tokens, told by usual names or named by
`columns=`.

Such are the traces of splitwise-sim (arrival_timestamp, prompt_size, token_size) and what ServeGen
writes (timestamp, input_tokens, output_tokens). Times are dates, or numbers whose unit the column's
name ends with; where it names none, numbers beyond the year 5000 as seconds are taken as ms, us or
ns since 1970, all others as seconds.
"""

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import CsvRows
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import LATEST_NS, Table
from llmsim.workload.formats.times import timestamp_ns

ARRIVALS = (
    "arrival_timestamp",
    "arrival_time",
    "arrived_at",
    "arrival",
    "timestamp",
    "created_at",
    "start_time",
    "time",
)
INPUTS = (
    "prompt_size",
    "prompt_tokens",
    "prompt_len",
    "prompt_length",
    "input_tokens",
    "input_toks",
    "input_len",
    "input_length",
    "context_tokens",
    "num_prefill_tokens",
    "prefill_tokens",
    "isl",
    "input",
)
OUTPUTS = (
    "token_size",
    "completion_tokens",
    "output_tokens",
    "output_toks",
    "output_len",
    "output_length",
    "generated_tokens",
    "response_tokens",
    "num_decode_tokens",
    "decode_tokens",
    "osl",
    "output",
)
OPTIONAL = ("model", "session_id", "request_id")
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_ENDINGS = {"_seconds": "s", "_sec": "s", "_s": "s", "_ms": "ms", "_us": "us", "_ns": "ns"}
_LATEST_S = 1e11
"""The year 5138: what is more cannot be seconds since 1970."""


def detect(head: Head) -> bool:
    return head.kind == "csv" and all(
        known_column(head.columns, names) for names in (ARRIVALS, INPUTS, OUTPUTS)
    )


def read(source: Source, head: Head) -> Table:
    table = Table(source, labels=True)
    if head.kind != "csv":
        raise table.refusal(
            1, "not a CSV: its first line does not name columns with commas between them"
        )
    arrival, *lengths = _columns(table, head)
    rows = CsvRows(table, head, [name for name in (*lengths, arrival) if name], OPTIONAL)
    asked, answered, *at = rows.columns
    model, session, request = rows.optional
    clock = _Clock(rows, at[0]) if at else None
    if clock is None and source.options.rate is None:
        table.notes.append(
            f"{source.path}: no arrivals are named, so all requests begin at 0; rate= spreads them"
        )
    for number, fields in rows:
        added = table.add(
            number,
            clock.ns(number, fields) if clock else 0,
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


def known_column(columns: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The column with the first of the usual names that is there, in either case, a unit behind it
    or not.
    """
    for name in names:
        for column in columns:
            if column.lower() == name or column.lower().removeprefix(name) in _ENDINGS:
                return column
    return None


def _columns(table: Table, head: Head) -> tuple[str, str, str]:
    """The columns of arrivals ("": none), prompts and answers."""
    given = table.source.options.columns
    if given is not None:
        return given
    found = [known_column(head.columns, names) for names in (ARRIVALS, INPUTS, OUTPUTS)]
    for name, what in zip(found[1:], ("prompt", "answer"), strict=True):
        if name is None:
            raise table.refusal(
                1,
                (
                    f"which column counts the tokens of the {what}? "
                    "'trace:FILE,columns=ARRIVAL|PROMPT|ANSWER' names them"
                ),
            )
    return found[0] or "", found[1] or "", found[2] or ""


def unit_of(column: str) -> str | None:
    """The unit with which a column's name ends."""
    return next((unit for end, unit in _ENDINGS.items() if column.lower().endswith(end)), None)


class _Clock:
    """Turns the texts of one column into ns; the first row says whether they are dates, or numbers
    of which unit.
    """

    def __init__(self, rows: CsvRows, column: int) -> None:
        self._rows, self._column = rows, column
        self._minutes: dict[str, int] | None = None
        self._ns_per_unit = 0

    def ns(self, number: int, fields: list[str]) -> int:
        """The time in one row; refuses what is none."""
        text = fields[self._column].strip()
        if not self._ns_per_unit and self._minutes is None:
            self._look(text)
        try:
            if self._minutes is not None:
                return timestamp_ns(text, self._minutes)
            time_ns = (
                int(text) * self._ns_per_unit
                if text.isdecimal()
                else float(text) * self._ns_per_unit
            )
        except ValueError:
            time_ns = float("nan")
        if not abs(time_ns) < LATEST_NS:
            raise self._rows.bad(number, fields, self._column, self._wanted())
        return round(time_ns)

    def _wanted(self) -> str:
        """What a time must be."""
        if self._minutes is not None:
            return "a date and time such as 2023-11-16 18:15:46.68"
        most = LATEST_NS // self._ns_per_unit
        unit = next(name for name, ns in UNITS.items() if ns == self._ns_per_unit)
        return (
            f"a time of at most {most} {unit}; 'trace:FILE,unit=ns', in quotes, names another unit"
        )

    def _look(self, first: str) -> None:
        table, name = self._rows.table, self._rows.names[self._column]
        unit = table.source.options.unit or unit_of(name)
        try:
            value = abs(float(first))
        except ValueError:
            self._minutes = {}
            return
        if unit is None:
            unit = "s"
            for coarser, finer in (("s", "ms"), ("ms", "us"), ("us", "ns")):
                if value * UNITS[coarser] / UNITS["s"] > _LATEST_S:
                    unit = finer
            table.notes.append(
                f'{table.source.path}: "{name}" is taken to be in {unit}; unit= says otherwise'
            )
        self._ns_per_unit = UNITS[unit]
