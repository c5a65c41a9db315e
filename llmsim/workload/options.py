"""What a user may ask of a trace file besides reading it, as options and as the text
`trace:PATH,key=value,...`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.errors import InputError, nearest

PREFIX = "trace:"
SYNTHETIC = "synthetic:"
"""How a text begins that describes a workload instead of naming a file."""


class TraceOptions(Struct, frozen=True):
    """`window_s` is in the trace's own time from its first arrival, and whole sessions fall in or
    out by their first call; then each line (request or session) is kept with probability `sample`,
    then the first `limit` (0: all); then arrivals are divided by `speedup`. Times between a
    session's calls stay as they are.
    """

    speedup: float = 1.0
    window_s: tuple[float, float] | None = None
    sample: float = 1.0
    seed: int = 0
    limit: int = 0
    rate: float | None = None
    """Lines per second, Poisson, instead of the file's own arrivals: for files that have none."""
    failures: str = "drop"
    """"drop" or "keep" (as one token) what has no prompt or no answer tokens."""
    turns: str = "all"
    """Of a ShareGPT conversation: "all" as a session, or the "first" exchange only."""
    block: int | None = None
    """Tokens per content id, where the file does not say and its format's usual number is wrong."""
    tokenizer: str | None = None
    """A tokenizer.json for text, read by the package `tokenizers`."""
    format: str | None = None
    columns: tuple[str, str, str] | None = None
    """Of a CSV or JSON Lines with names of its own: the columns or keys of arrivals ("": it has
    none), prompt tokens and answer tokens.
    """
    unit: str | None = None
    """Of those arrivals: s, ms, us or ns."""
    models: tuple[tuple[str, str], ...] = ()
    """(the trace's name of a model, another); the name "" stands for all without one of their own,
    and for lines that name no model.
    """

    @property
    def changes_workload(self) -> bool:
        """Whether anything is asked beyond `limit` and how to read."""
        return (
            self.window_s is not None
            or self.sample < 1
            or self.rate is not None
            or self.speedup != 1
        )


def is_trace_text(text: str) -> bool:
    """Whether a dataset is a path with options rather than a path."""
    return text.startswith(PREFIX)


def parse_trace_text(text: str) -> tuple[str, TraceOptions]:
    """Path and options of `trace:PATH,key=value,...`; a comma that no known key follows belongs to
    the path.
    """
    parts = text.removeprefix(PREFIX).split(",")
    given: dict[str, str] = {}
    while len(parts) > 1 and parts[-1].partition("=")[0] in _PARSERS:
        key, _, value = parts.pop().partition("=")
        if key in given:
            raise InputError(f'{text}: "{key}" is given twice')
        given[key] = value
    path = ",".join(parts)
    if "," in path and "=" in path.rsplit(",", 1)[1]:
        key = path.rsplit(",", 1)[1].partition("=")[0]
        raise InputError(
            f'{text}: unknown option "{key}"{nearest(key, _PARSERS)}; known: {", ".join(_PARSERS)}'
        )
    return path, options_from(given, text)


def options_from(given: Mapping[str, str], where: str) -> TraceOptions:
    """Options from their texts; raises InputError that begins with `where`."""
    fields: dict[str, Any] = {}
    for key, value in given.items():
        name, parse, wanted = _PARSERS[key]
        try:
            fields[name] = parse(value)
        except ValueError:
            raise InputError(f'{where}: "{key}" is {value}, but must be {wanted}') from None
    return replace(TraceOptions(), **fields)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def _share(text: str) -> float:
    value = _positive(text)
    if value > 1:
        raise ValueError
    return value


def _natural(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1 << 63:
        raise ValueError
    return value


def _block(text: str) -> int:
    value = _natural(text)
    if not 1 <= value <= 1 << 20:
        raise ValueError
    return value


def _window(text: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    if not dash or not (low or high):
        raise ValueError
    start, end = float(low or 0), float(high) if high else math.inf
    if not 0 <= start < end:
        raise ValueError
    return start, end


def _word(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError
        return text

    return parse


def _columns(text: str) -> tuple[str, str, str]:
    arrival, prompt, answer = (name.strip() for name in text.split("|"))
    if not prompt or not answer:
        raise ValueError
    return arrival, prompt, answer


def _models(text: str) -> tuple[tuple[str, str], ...]:
    renamed = {}
    for part in text.split("|"):
        old, equals, new = part.rpartition("=")
        if not new or (equals and not old) or old in renamed:
            raise ValueError
        renamed[old] = new
    return tuple(renamed.items())


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


_PARSERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "speedup": ("speedup", _positive, "a number above 0"),
    "window": (
        "window_s",
        _window,
        "START-END in seconds from the first arrival, such as 60-120, 60- or -60",
    ),
    "sample": ("sample", _share, "a share above 0, at most 1"),
    "seed": ("seed", _natural, "an integer from 0"),
    "limit": ("limit", _natural, "an integer from 0 (all)"),
    "rate": ("rate", _positive, "requests or sessions per second, above 0"),
    "failures": ("failures", _word("drop", "keep"), "drop or keep"),
    "turns": ("turns", _word("all", "first"), "all or first"),
    "block": ("block", _block, "an integer from 1 to 1048576"),
    "tokenizer": ("tokenizer", _text, "the path of a tokenizer.json"),
    "format": ("format", _text, "the name of a format"),
    "columns": (
        "columns",
        _columns,
        "three names of columns, ARRIVAL|PROMPT|ANSWER; the first may be left empty",
    ),
    "model": (
        "models",
        _models,
        "a name for all requests, or OLD=NEW, or several of these separated by |",
    ),
    "unit": ("unit", _word("s", "ms", "us", "ns"), "s, ms, us or ns"),
}
