"""Names under which logs commonly have arrivals and token counts, in CSV columns and JSON keys
alike.
"""

from collections.abc import Sequence

from llmsim.workload.formats.table import Table

ARRIVALS = (
    "arrival_timestamp",
    "arrival_time",
    "arrived_at",
    "arrival",
    "timestamp",
    "created_at",
    "start_time",
    "time",
    "created",
    "starttime",
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
ROLES = (ARRIVALS, INPUTS, OUTPUTS)
PREFIXES = ("", "usage.", "response.", "response.usage.", "response.body.", "response.body.usage.")
"""Where OpenAI's answers have a name, alone, in a log or in the output file of a batch; a dot
stands between the key of an object and a key in it.
"""
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
ENDINGS = {"_seconds": "s", "_sec": "s", "_s": "s", "_ms": "ms", "_us": "us", "_ns": "ns"}


def known_column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """The column with the first of the usual names that is there, in either case, a unit behind it
    or not.
    """
    for prefix in PREFIXES:
        inside = [column for column in columns if column.lower().startswith(prefix)]
        for name in names if inside else ():
            for column in inside:
                word = column.lower().removeprefix(prefix)
                if word == name or word.removeprefix(name) in ENDINGS:
                    return column
    return None


def unit_of(column: str) -> str | None:
    """The unit with which a column's name ends."""
    return next((unit for end, unit in ENDINGS.items() if column.lower().endswith(end)), None)


def named_columns(table: Table, columns: Sequence[str], what: str) -> tuple[str, str, str]:
    """The columns of arrivals ("": none), prompts and answers, as `columns=` or usual names say;
    `what` is what the file calls them.
    """
    given = table.source.options.columns
    if given is not None:
        return given
    arrival, *lengths = (known_column(columns, names) or "" for names in ROLES)
    for name, side in zip(lengths, ("prompt", "answer"), strict=True):
        if not name:
            raise table.refusal(
                1,
                (
                    f"which {what} counts the tokens of the {side}? "
                    "'trace:FILE,columns=ARRIVAL|PROMPT|ANSWER' names them"
                ),
            )
    return arrival, lengths[0], lengths[1]


def note_no_arrivals(table: Table, arrival: str) -> None:
    """Notes that all requests begin at 0, where no column has arrivals and nothing spreads them."""
    if not arrival and table.source.options.rate is None:
        table.say("no arrivals are named, so all requests begin at 0; rate= spreads them")
