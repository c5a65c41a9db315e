"""Parses the short text form of a synthetic workload, such as
`synthetic:n=1000,rate=10,input=lognormal:220,output=lognormal:190,seed=1`."""

import math
from collections.abc import Callable, Sequence

from llmsim.config.errors import InputError, nearest
from llmsim.workload.limits import MAX_REQUESTS, MAX_TOKENS
from llmsim.workload.options import SYNTHETIC
from llmsim.workload.synthetic.classes import ByClass, ClassMix, parse_mix
from llmsim.workload.synthetic.distributions import (
    MAX_ZIPF_VALUES,
    UNLIMITED,
    Arrivals,
    AtOnce,
    Bursts,
    Exponential,
    Fixed,
    FixedInterval,
    Gamma,
    Lengths,
    LogNormal,
    Pareto,
    Poisson,
    Uniform,
    Zipf,
)
from llmsim.workload.synthetic.patterns import Diurnal, Spikes
from llmsim.workload.synthetic.workload import Sessions, SharedPrefixes, SyntheticSpec

PREFIX = SYNTHETIC
KEYS = (
    "n", "rate", "arrivals", "classes", "input", "output", "prefixes", "calls", "tool_ms", "model",
    "seed",
)  # fmt: skip
EXAMPLE = "synthetic:n=1000,rate=10,input=lognormal:220,output=lognormal:190,seed=1"
GRAIN_S = 1e-9
"""Shortest time of a pattern: the clock of a trace has nanoseconds."""
SMALLEST_CV = 1e-9
"""Of gaps: the shape of their gamma distribution, cv^-2, stays a number."""


def parse_synthetic(text: str) -> SyntheticSpec:
    """Reads `synthetic:` and comma-separated `key=value`:

    n (lines), rate (requests per second, inf: all at once), arrivals (poisson, gamma:cv=2, fixed,
    burst:size=50:every_s=15, diurnal:period_s=86400:amplitude=0.5,
    spike:every_s=300:length_s=20:factor=5), input and output (tokens: lognormal:MEAN with cv= (1)
    or sigma=, zipf:EXPONENT or pareto:ALPHA with min= and max=, uniform:MIN-MAX, exponential:MEAN,
    fixed:N or N; min= and max= limit a lognormal), prefixes (COUNT with tokens= and share= (1)),
    calls and tool_ms (sessions; distributions too), model (names separated by |), classes
    (NAME:SHARE separated by |; input and output may then have a distribution for each), seed (0).
    Raises InputError naming the part at fault.
    """
    values = split_fields(
        text, text.removeprefix(PREFIX).split(","), KEYS, ("n", "input", "output"), EXAMPLE
    )
    by_class = ("classes", "input", "output")
    fields = {key: Field(text, key, values[key]) for key in values if key not in by_class}
    classes = parse_mix(text, values["classes"]) if "classes" in values else None
    return SyntheticSpec(
        n=fields["n"].alone_integer(1, MAX_REQUESTS),
        arrivals=parse_arrivals(text, fields),
        input_lengths=_lengths(text, "input", values["input"], classes),
        output_lengths=_lengths(text, "output", values["output"], classes),
        seed=fields["seed"].alone_integer(0, (1 << 63) - 1) if "seed" in fields else 0,
        prefixes=_prefixes(fields),
        sessions=_sessions(text, fields),
        models=tuple(values["model"].split("|")) if "model" in values else (),
        classes=classes,
    )


def _lengths(text: str, key: str, value: str, classes: ClassMix | None) -> Lengths | ByClass:
    """One distribution for all requests, or one for each class."""
    words = value.split("|")
    if len(words) > 1 and (classes is None or len(words) != len(classes.names)):
        count = 0 if classes is None else len(classes.names)
        raise InputError(
            f'{text}: "{key}" has {len(words)} distributions, and "classes" has {count} classes; '
            "give one for all, or one for each class"
        )
    parts = tuple(parse_lengths(Field(text, key, word), 1) for word in words)
    return ByClass(parts) if len(parts) > 1 else parts[0]


_USUAL_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("qps", "rps", "request_rate", "request-rate"), ("rate",)),
    **dict.fromkeys(("requests", "num_requests", "num_prompts", "num-prompts", "count"), ("n",)),
    **dict.fromkeys(("isl", "input_len", "input-len", "prompt_tokens"), ("input", "prompt")),
    **dict.fromkeys(("osl", "output_len", "output-len", "max_tokens"), ("output",)),
    "prompt": ("input",),
    "concurrency": ("clients",),
}
"""What benchmarks of servers call the keys."""
_SESSION_KEYS = (
    "sessions",
    "num_sessions",
    "conversations",
    "num_conversations",
    "turns",
    "rounds",
)
SESSIONS = "; synthetic:reasoning,n=60,rate=1 generates sessions of several rounds"


def split_fields(
    text: str, parts: list[str], known: Sequence[str], required: Sequence[str], example: str
) -> dict[str, str]:
    """The `key=value` parts of a specification; raises InputError for unknown, repeated and missing
    keys.
    """
    values: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise InputError(f'{text}: "{part}" is not key=value; an example is {example}')
        if key not in known:
            usual = next((ours for ours in _USUAL_KEYS.get(key, ()) if ours in known), None)
            near = nearest(key, known) if usual is None else f' (did you mean "{usual}"?)'
            sessions = SESSIONS if key in _SESSION_KEYS else ""
            raise InputError(
                f'{text}: unknown key "{key}"{near}; known: {", ".join(known)}{sessions}',
                field=key,
                value=value,
            )
        if key in values:
            raise InputError(f'{text}: "{key}" is given twice', field=key, value=value)
        values[key] = value
    for key in required:
        if key not in values:
            raise InputError(f'{text}: "{key}" is missing; an example is {example}', field=key)
    return values


class Field:
    """One `key=value`, whose value is a word and colon-separated arguments; every argument must be
    taken.
    """

    def __init__(self, text: str, key: str, value: str) -> None:
        self.where = f'{text}: "{key}={value}"'
        self.key, self.given = key, value
        self.word, *arguments = value.split(":")
        self.arguments: dict[str, str] = {}
        for argument in arguments:
            name, equals, given = argument.partition("=")
            # An argument without a name is the distribution's main one.
            if not equals and "" in self.arguments:
                raise self.refused(
                    "the value is given twice; name the second one, as in lognormal:220:cv=0.8, "
                    "or give a range, as in uniform:1-100"
                )
            self.set(name if equals else "", given if equals else name)

    def refused(self, problem: str) -> InputError:
        """The error for what is wrong with the value."""
        return InputError(f"{self.where}: {problem}", field=self.key, value=self.given)

    def set(self, name: str, value: str) -> None:
        if name in self.arguments:
            raise self.refused(f"{_called(name)} is given twice")
        self.arguments[name] = value

    def take_word(self) -> None:
        """The word itself is the value (`n=5`), so another value after it is one too many."""
        self.set("", self.word)

    def word_among(self, what: str, known: tuple[str, ...]) -> None:
        if self.word not in known:
            suggestion = nearest(self.word, known)
            raise self.refused(
                f'unknown {what} "{self.word}"{suggestion}; known: {", ".join(known)}'
            )

    def alone_integer(self, low: int, high: int) -> int:
        self.take_word()
        value = self.integer("", low, high)
        self.done()
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._take(name, default)
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise self.refused(
                f"{_called(name)} is {value}, but must be an integer from {low} to {high}"
            )
        return number

    def positive(
        self, name: str, default: float | None = None, *, least: float = 0.0, most: float = 1e12
    ) -> float:
        """A number above 0, and not below `least`; InputError says what it is."""
        value = self._take(name, default)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (0 < number <= most and number >= least):
            span = f"from {least:g} to {most:g}" if least else f"above 0, at most {most:g}"
            wanted = f"must be a number {span}"
            raise self.refused(f"{_called(name)} is {value}, but {wanted}")
        return number

    def _take(self, name: str, default: object) -> str:
        value = self.arguments.pop(name, None)
        if value is None and default is None:
            raise self.refused(f"{_called(name)} is missing")
        return str(default) if value is None else value

    def done(self) -> None:
        if self.arguments:
            name, value = next(iter(self.arguments.items()))
            raise self.refused(f'"{name + "=" if name else ""}{value}" means nothing here')


def _called(name: str) -> str:
    return f'"{name}"' if name else "the value"


def parse_arrivals(text: str, fields: dict[str, Field]) -> Arrivals:
    field = fields.get("arrivals") or Field(text, "arrivals", "poisson")
    field.word_among("arrivals", ("poisson", "gamma", "fixed", "burst", "diurnal", "spike"))
    if field.word == "burst":
        if "rate" in fields:
            raise InputError(f"{field.where}: bursts have size= and every_s=, so leave rate= out")
        bursts = Bursts(
            field.integer("size", 1, MAX_REQUESTS), field.positive("every_s", least=GRAIN_S)
        )
        field.done()
        return bursts
    if "rate" not in fields:
        raise InputError(f'{text}: "rate" is missing: requests per second, for example rate=10')
    rate = fields["rate"]
    if rate.word == UNLIMITED:
        if "arrivals" in fields:
            raise InputError(
                f"{rate.where}: requests without a limit of the rate come at once, so leave "
                "arrivals= out"
            )
        return AtOnce()
    rate.take_word()
    rate_per_s = rate.positive("")
    rate.done()
    arrivals: Arrivals = Poisson(rate_per_s)
    if field.word == "gamma":
        arrivals = Gamma(rate_per_s, field.positive("cv", least=SMALLEST_CV, most=100))
    elif field.word == "fixed":
        arrivals = FixedInterval(rate_per_s)
    elif field.word == "diurnal":
        period_s = field.positive("period_s", 86_400.0, least=GRAIN_S)
        arrivals = Diurnal(rate_per_s, period_s, field.positive("amplitude", 0.5, most=1))
    elif field.word == "spike":
        every_s = field.positive("every_s", least=GRAIN_S)
        length_s = field.positive("length_s", least=GRAIN_S, most=every_s)
        arrivals = Spikes(
            rate_per_s, every_s, length_s, field.positive("factor", least=GRAIN_S, most=1e6)
        )
    field.done()
    return arrivals


def parse_lengths(field: Field, smallest: int) -> Lengths:
    makers: dict[str, Callable[[Field, int], Lengths]] = {
        "lognormal": _lognormal,
        "zipf": _zipf,
        "pareto": _pareto,
        "uniform": _uniform,
        "fixed": _fixed,
        "exponential": _exponential,
    }
    if field.word.isdecimal() and not field.arguments:
        field.arguments[""], field.word = field.word, "fixed"
    field.word_among("distribution", tuple(makers))
    lengths = makers[field.word](field, smallest)
    field.done()
    return lengths


def _range(
    field: Field, smallest: int, *, lowest: int | None, highest: int | None
) -> tuple[int, int]:
    minimum = field.integer("min", smallest, MAX_TOKENS, lowest)
    maximum = field.integer("max", smallest, MAX_TOKENS, highest)
    if minimum > maximum:
        raise InputError(f'{field.where}: "min" is {minimum}, above "max", {maximum}')
    return minimum, maximum


def _lognormal(field: Field, smallest: int) -> Lengths:
    mean = field.positive("", most=MAX_TOKENS)
    minimum, maximum = _range(field, smallest, lowest=smallest, highest=MAX_TOKENS)
    if "sigma" in field.arguments:
        return LogNormal(mean, field.positive("sigma", most=10), minimum, maximum)
    return LogNormal.with_cv(mean, field.positive("cv", 1.0, most=100), minimum, maximum)


def _zipf(field: Field, smallest: int) -> Lengths:
    exponent = field.positive("", most=100)
    minimum, maximum = _range(field, max(smallest, 1), lowest=1, highest=None)
    if maximum - minimum >= MAX_ZIPF_VALUES:
        count = maximum - minimum + 1
        raise InputError(
            f"{field.where}: min= to max= holds {count} values, but at most {MAX_ZIPF_VALUES} "
            "are possible"
        )
    return Zipf(exponent, minimum, maximum)


def _pareto(field: Field, smallest: int) -> Lengths:
    alpha = field.positive("", most=100)
    minimum, maximum = _range(field, max(smallest, 1), lowest=1, highest=MAX_TOKENS)
    return Pareto(alpha, minimum, maximum)


def _uniform(field: Field, smallest: int) -> Lengths:
    if "" in field.arguments:
        low, dash, high = field.arguments.pop("").partition("-")
        if not dash:
            raise InputError(
                f"{field.where}: {low} is no range; write two lengths, as uniform:1-{low}"
            )
        field.set("min", low)
        field.set("max", high)
    return Uniform(*_range(field, smallest, lowest=None, highest=None))


def _exponential(field: Field, smallest: int) -> Lengths:
    return Exponential(field.positive("", most=MAX_TOKENS), smallest)


def _fixed(field: Field, smallest: int) -> Lengths:
    return Fixed(field.integer("", smallest, MAX_TOKENS))


def _prefixes(fields: dict[str, Field]) -> SharedPrefixes | None:
    field = fields.get("prefixes")
    if field is None:
        return None
    tokens = field.integer("tokens", 1, MAX_TOKENS)
    share = field.positive("share", 1.0, most=1)
    return SharedPrefixes(field.alone_integer(1, MAX_REQUESTS), tokens, share)


def _sessions(text: str, fields: dict[str, Field]) -> Sessions | None:
    if "calls" not in fields:
        if "tool_ms" in fields:
            raise InputError(f'{text}: "tool_ms" needs "calls", the number of calls of a session')
        return None
    tool = fields.get("tool_ms") or Field(text, "tool_ms", "0")
    return Sessions(parse_lengths(fields["calls"], 1), parse_lengths(tool, 0))
