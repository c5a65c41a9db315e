"""Any JSON Lines with a count of prompt tokens and one of answer tokens, under usual names or those
that `columns=` gives.

Such are the user's own logs of OpenAI's answers (`usage.prompt_tokens`, `created`) and the output
files of OpenAI's and vLLM's batches (`response.body.usage`). Times are those of `clock`. A line
without counts, such as that of a failure, is a request without tokens.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from llmsim.config.errors import nearest
from llmsim.workload.formats.batches import Batch, each
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.own.clock import Clock, Moment, arrival_ns
from llmsim.workload.formats.own.names import (
    INPUTS,
    OUTPUTS,
    known_column,
    named_columns,
    note_no_arrivals,
)
from llmsim.workload.formats.own.records import Keys, Record, paths_of, value_at
from llmsim.workload.formats.rows import json_batches
from llmsim.workload.formats.source import Rows, Source, Texts
from llmsim.workload.formats.table import Table

Count = Annotated[int, Meta(ge=0)]
Name = str | int
MOST_SHOWN = 12
"""Keys that an error repeats."""
OPTIONAL = (("model",), ("session_id",), ("request_id", "custom_id"))
"""The names of what a line may also have: its model, its session's label, its own name."""


def detect(head: Head) -> bool:
    if head.kind not in ("lines", "object") or head.first is None:
        return False
    paths = paths_of(head.first)
    found = [known_column([*paths], names) for names in (INPUTS, OUTPUTS)]
    return all(
        name is not None and type(value_at(head.first, paths[name])) in (int, float)
        for name in found
    )


def read(source: Source, head: Head) -> Table:
    table = Table(source, labels=True)
    if head.kind not in ("lines", "object"):
        raise table.refusal(1, "not JSON Lines: its first line is no JSON object")
    columns = _Columns(table, head)
    for batch in json_batches(table, columns.kind):
        if not isinstance(batch, Batch) or not (
            table.wants(len(batch.records)) and columns.take_all(batch)
        ):
            for number, row in each(batch):
                columns.take(number, row)
                if table.full:
                    break
        if table.full:
            break
    if not len(table):
        columns.check()
    return table


class _Columns:
    """The values of a file under the names that were found or given, row by row or many at once."""

    def __init__(self, table: Table, head: Head) -> None:
        self._table = table
        paths = paths_of(head.first or {})
        self._known = [*paths]
        self._names = named_columns(table, self._known, "key")
        arrival, *lengths = self._names
        note_no_arrivals(table, arrival)
        optional = [known_column(self._known, names) for names in OPTIONAL]
        kinds: tuple[Any, ...] = (Moment, Count, Count, str, Name, Name)
        wanted: dict[Keys, Any] = {}
        keys = [
            paths.get(name, tuple(name.split("."))) if name else None
            for name in (arrival, *lengths, *optional)
        ]
        for each_keys, kind in zip(keys, kinds, strict=True):
            if each_keys is not None and wanted.setdefault(each_keys, kind) is not kind:
                raise table.refusal(1, f'"{".".join(each_keys)}" is named twice in columns=')
        try:
            record = Record(wanted)
        except ValueError as error:
            raise table.refusal(1, f'"{error}" cannot be the key of a value here') from None
        self.kind = record.kind
        self._getters = [
            record.getters[each_keys] if each_keys is not None else None for each_keys in keys
        ]
        self._clock = Clock(table, arrival)
        self._never = {*self._names}

    def take_all(self, batch: Batch[Any]) -> bool:
        """Adds rows all of which have a time and lengths; False where some have less."""
        at, asked, answered, model, session, request = (
            None if getter is None else _values(getter, batch.records) for getter in self._getters
        )
        has_gaps = any(column is not None and None in column for column in (at, asked, answered))
        if has_gaps:
            return False
        at_ns = np.zeros(len(batch.records), np.int64) if at is None else self._clock.all_ns(at)
        models = None if model is None else Texts.of(model)
        taken = at_ns is not None and self._table.extend(
            Rows(
                batch.numbers,
                at_ns,
                asked or [],
                answered or [],
                labels=_texts(session),
                models=models,
                request_ids=_texts(request),
            )
        )
        if taken:
            self._never.clear()
        return taken

    def take(self, number: int, row: Any) -> None:
        """Adds one row; refuses it where it has tokens, but no time."""
        at, asked, answered, model, session, request = (
            None if getter is None else _values(getter, [row])[0] for getter in self._getters
        )
        self._never -= {
            name
            for name, value in zip(self._names, (at, asked, answered), strict=True)
            if value is not None
        }
        added = self._table.add(
            number,
            self._at_ns(number, at, has_tokens=bool(asked and answered)),
            asked or 0,
            answered or 0,
            session=text_or_none(session),
            model=model,
        )
        if added and request is not None:
            self._table.detail(request_id=text_or_none(request))

    def _at_ns(self, number: int, at: Moment | None, *, has_tokens: bool) -> int:
        """The time of a row; 0 where a failure has none."""
        name = self._names[0]
        if not name or (at is None and not has_tokens):
            return 0
        return arrival_ns(self._table, self._clock, name, number, at)

    def check(self) -> None:
        """Refuses names that no line has, where no request was found."""
        for name in self._names[1:]:
            if name in self._never:
                there = ", ".join(self._known[:MOST_SHOWN])
                suggestion = nearest(name, self._known)
                raise self._table.refusal(
                    1,
                    f'no line has a number under "{name}"{suggestion}; the first has the '
                    f"keys {there}",
                )


def _values(getter: Callable[[Any], Any], rows: Sequence[Any]) -> list[Any]:
    """What rows have under one name, None where an object around it is missing."""
    try:
        return [*map(getter, rows)]
    except AttributeError:
        return [_value(getter, row) for row in rows]


def _value(getter: Callable[[Any], Any], row: Any) -> Any:
    try:
        return getter(row)
    except AttributeError:
        return None


def _texts(names: Sequence[Name | None] | None) -> list[str | None] | None:
    """A column of names; None where the file has none."""
    return None if names is None else [*map(text_or_none, names)]


def text_or_none(name: str | int | None) -> str | None:
    """A name that may be written as a number."""
    return None if name is None else str(name)
