"""Where the requests of a run come from: a file or generator, a table, or objects."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.errors import InputError, nearest
from llmsim.core import MAX_HORIZON_PS

if TYPE_CHECKING:
    from llmsim.core import Workload

PER_S = {
    "arrival_s": 1,
    "arrival_ms": 1000,
    "arrival_us": 10**6,
    "arrival_time_ns": 10**9,
    "arrival_ps": 10**12,
}
"""Columns that may hold the arrivals, and their units in a second."""
LATEST_NS = MAX_HORIZON_PS // 1000
ARRIVALS_BY_UNIT = {"ms": "arrival_ms", "us": "arrival_us", "ns": "arrival_time_ns"}
"""Unit of a column with a usual name -> its name in `PER_S`; seconds else."""
COLUMNS = {
    "input_tokens": "input_toks",
    "input_toks": "input_toks",
    "output_tokens": "output_toks",
    "output_toks": "output_toks",
    "input_tok_ids": "input_tok_ids",
    "output_tok_ids": "output_tok_ids",
    "model": "model",
    "request_id": "request_id",
    "priority": "priority",
    "slo_class": "slo_class",
    "adapter": "adapter",
    "encoder_inputs": "encoder_inputs",
    "cancel_after_ns": "cancel_after_ns",
    "cancel_after_toks": "cancel_after_toks",
    "acceptance_rate": "acceptance_rate",
    "accepted_drafts": "accepted_drafts",
    "num_speculative_tokens": "num_speculative_tokens",
}
"""Columns of a table of requests, and their keys in a trace."""


@runtime_checkable
class WorkloadSource(Protocol):
    """Gives the requests once the models and the size of KV blocks are known."""

    def load(self, models: Sequence[str], granularity: int, limit: int) -> "Workload":
        """The first `limit` requests (0: all); raises InputError."""


class DatasetText(Struct, frozen=True):
    """A path, `trace:PATH,...` or `synthetic:...`, as `--dataset` takes it."""

    text: str

    def load(self, models: Sequence[str], granularity: int, limit: int) -> "Workload":
        """The requests of the file or generator."""
        from llmsim.workload import load_dataset

        return load_dataset(self.text, known_models=models, granularity=granularity, limit=limit)


@dataclass(frozen=True)
class Request:
    """One request: when it arrives (seconds), and the tokens of its prompt and of its answer.

    A lower `priority` is more urgent; `slo_class` names a class with latency targets, and `adapter`
    a LoRA adapter. Equal beginnings of `input_tok_ids` are equal content, which prefix caching
    shares.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    model: str | None = None
    request_id: str | None = None
    priority: int | None = None
    input_tok_ids: Sequence[int] | None = None
    slo_class: str | None = None
    adapter: str | None = None
    encoder_inputs: Sequence[Mapping[str, Any]] | None = None
    """Images and other parts of the prompt that an encoder computes: `offset`, `tokens`, `id`."""


class Rows(Struct, frozen=True):
    """Requests as lines of a trace; errors name them as `name:N`, from 1."""

    name: str
    lines: bytes
    columns: tuple[tuple[str, str], ...] = ()
    """Keys of the lines, and the columns or attributes that they were made of."""

    def load(self, models: Sequence[str], granularity: int, limit: int) -> "Workload":
        """The requests, in order of arrival."""
        from llmsim.workload.jsonl import read_lines

        try:
            workload = read_lines(
                io.BytesIO(self.lines),
                self.name,
                known_models=models,
                granularity=granularity,
                limit=limit,
            )
        except InputError as error:
            self._reword(error)
            raise
        return replace(workload, source=self.name)

    def _reword(self, error: InputError) -> None:
        """Names the column that was given, and no position in a line that nobody wrote."""
        row = re.sub(rf"^({re.escape(self.name)}:\d+):\d+:", r"\1:", str(error))
        column = dict(self.columns).get(error.field or "")
        if column is not None:
            row = row.replace(f'"{error.field}"', f'"{column}"')
            error.field = column
        error.args = (row,)


def workload_source(workload: Any) -> WorkloadSource:
    """A source of what `llmsim.run` takes as workload.

    Takes a path or dataset text, a pandas DataFrame, a pyarrow Table or a mapping of columns
    (`input_tokens`, `output_tokens`, one of `PER_S`, and optionally the others of `COLUMNS`), or a
    sequence of `Request` objects or mappings with such keys. Where these names are absent, the
    usual ones of CSV traces stand for them (`arrival`, `input`, `output`, `isl`, ...), and times
    without a unit are seconds or dates. Raises InputError for anything else.
    """
    if isinstance(workload, str) and not workload:
        raise InputError(
            "workload is empty; give a path, or a dataset such as synthetic:...", field="workload"
        )
    if isinstance(workload, str | PathLike):
        return DatasetText(str(fspath(workload)))
    if hasattr(workload, "to_pydict"):  # a pyarrow Table
        return _rows_of("table", _from_columns("table", workload.to_pydict()))
    if hasattr(workload, "to_dict") and hasattr(workload, "columns"):  # a pandas DataFrame
        return _rows_of("DataFrame", _from_columns("DataFrame", _named_columns(workload)))
    if isinstance(workload, Mapping):
        return _rows_of("columns", _from_columns("columns", workload))
    if isinstance(workload, Iterable):
        return _rows_of("requests", map(_fields, workload))
    if isinstance(workload, WorkloadSource):
        return workload
    raise InputError(
        f"workload is {type(workload).__name__}; give a path, a dataset such as "
        "synthetic:n=100,rate=10, a DataFrame, or a list of llmsim.Request",
        field="workload",
        value=workload,
    )


def _named_columns(frame: Any) -> Mapping[str, Any]:
    """The columns of a pandas DataFrame by name; InputError for names that are none, or not
    unique.
    """
    names = frame.columns.tolist()
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"DataFrame: a column is named {name!r:.60}; give each column a text as its name",
                field="workload",
                value=name,
            )
        if names.count(name) > 1:
            raise InputError(
                f"DataFrame: {names.count(name)} columns are named {name}; give each its own name",
                field="workload",
                value=name,
            )
    columns: Mapping[str, Any] = frame.to_dict(orient="list")
    return columns


def _fields(request: Any) -> Mapping[str, Any]:
    if not isinstance(request, Mapping) and not hasattr(request, "__dict__"):
        raise InputError(
            f"workload holds a {type(request).__name__}; give llmsim.Request objects or mappings",
            field="workload",
            value=request,
        )
    given = request if isinstance(request, Mapping) else vars(request)
    return {name: value for name, value in given.items() if value is not None}


def _from_columns(name: str, columns: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for column, values in columns.items():
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise InputError(
                f"{name}: {column} is {values!r:.60}; give a list with a value for each request",
                field=column,
                value=values,
            )
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{column} {length}" for column, length in lengths.items())
        raise InputError(
            f"{name}: the columns have different lengths ({shown}); give each request every column",
            field="workload",
        )
    columns = {column: _as_numbers(column, values) for column, values in columns.items()}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        yield {key: value for key, value in row.items() if not _missing(value)}


def _as_numbers(column: str, values: Sequence[Any]) -> Sequence[Any]:
    """Dates as time since the first of them, and durations, in the unit of the column's name
    (seconds where it has none); other values as they are.
    """
    from llmsim.workload.formats.own.names import UNITS, unit_of

    durations = _since_the_first(values)
    if durations is None:
        return values
    per_s = PER_S.get(column) or UNITS["s"] // UNITS[unit_of(column) or "s"]
    return [one if one is None else one.total_seconds() * per_s for one in durations]


def _since_the_first(values: Sequence[Any]) -> Sequence[Any] | None:
    """Durations, or dates as durations since the first of them, with None where one is missing;
    None where the values are neither.
    """
    known = [None if _missing(value) else value for value in values]
    given = [value for value in known if value is not None]
    if not given:
        return None
    if all(hasattr(value, "total_seconds") for value in given):
        return known
    if not all(hasattr(value, "timestamp") for value in given):
        return None
    first = min(given)
    return [None if value is None else value - first for value in known]


@lru_cache(maxsize=64)
def _our_words(columns: tuple[str, ...]) -> Mapping[str, str]:
    """Columns under usual names, and the name of `PER_S` or `COLUMNS` that each stands for."""
    from llmsim.workload.formats.own.names import ARRIVALS, INPUTS, OUTPUTS, known_column, unit_of

    found: dict[str, str] = {}
    for names, ours in ((INPUTS, "input_tokens"), (OUTPUTS, "output_tokens")):
        is_given = any(COLUMNS.get(name) == COLUMNS[ours] for name in columns)
        column = None if is_given else known_column(columns, names)
        if column is not None:
            found[column] = ours
    column = None if any(name in PER_S for name in columns) else known_column(columns, ARRIVALS)
    if column is not None:
        found[column] = ARRIVALS_BY_UNIT.get(unit_of(column) or "s", "arrival_s")
    return found


def _missing(value: Any) -> bool:
    """None, NaN, and pandas' NA and NaT."""
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _rows_of(name: str, rows: Iterable[Mapping[str, Any]]) -> Rows:
    import msgspec

    encode = msgspec.json.Encoder(enc_hook=_plain).encode
    lines, columns = [], dict[str, str]()
    for number, row in enumerate(rows, 1):
        if number == 1:
            columns = _columns_by_key(tuple(row))
        lines.append(encode(_line(name, number, row)))
    if not lines:
        raise InputError(
            f"workload is empty ({name}); give a row, or a llmsim.Request, for each request",
            field="workload",
        )
    return Rows(name, b"\n".join(lines), tuple(columns.items()))


def _columns_by_key(given: tuple[str, ...]) -> dict[str, str]:
    """Keys of a trace's line, and the column that each is made of."""
    words = _our_words(given)
    ours = {column: words.get(column, column) for column in given}
    return {COLUMNS[name]: column for column, name in ours.items() if name in COLUMNS}


def _plain(value: Any) -> Any:
    """The Python value of a numpy scalar or array; anything else cannot be part of a request."""
    if not hasattr(value, "tolist"):
        raise InputError(
            f"a request holds a {type(value).__name__}; give numbers and texts",
            field="workload",
            value=value,
        )
    return value.tolist()


def _line(name: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """A request as a line of a trace; columns that no trace has are left out."""
    line: dict[str, Any] = {}
    given = tuple(row)
    words = _our_words(given)
    if words:
        row = {words.get(key, key): value for key, value in row.items()}
    arrivals = [key for key in row if key in PER_S]
    if len(arrivals) != 1:
        known = ", ".join(PER_S)
        found = " and ".join(arrivals) or "none"
        raise InputError(
            f"{name}:{number}: the arrival is given by {found}; give exactly one of {known}",
            field=arrivals[0] if arrivals else "arrival_s",
        )
    line["arrival_time_ns"] = _nanoseconds(name, number, arrivals[0], row[arrivals[0]])
    for key, value in row.items():
        if key in COLUMNS:
            line[COLUMNS[key]] = _whole(value) if key != "request_id" else str(_whole(value))
    for needed in ("input_toks", "output_toks"):
        if needed not in line:
            column = needed.replace("toks", "tokens")
            unknown = [key for key in given if key not in words and key not in COLUMNS]
            raise InputError(
                f"{name}:{number}: {column} is missing{nearest(column, unknown)}; give the number "
                f"of tokens beside {', '.join(given)}",
                field=column,
            )
    return line


def _whole(value: Any) -> Any:
    """A float that is a whole number, as pandas makes of integers beside a missing one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _nanoseconds(name: str, number: int, column: str, value: Any) -> int:
    try:
        nanoseconds: int = round(value * 10**9 / PER_S[column])
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name}:{number}: {column} is {value!r:.60}; give a finite number of at least 0",
            field=column,
            value=value,
        ) from None
    if not 0 <= nanoseconds <= LATEST_NS:
        raise InputError(
            f"{name}:{number}: {column} is {_plain_number(value)!r:.60}; give a time from 0 to 53 "
            "days, counted from the first request",
            field=column,
            value=value,
        )
    return nanoseconds


def _plain_number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
