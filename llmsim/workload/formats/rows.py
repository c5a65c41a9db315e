"""Walks the rows of JSON Lines and CSV files; says file, line and column of what is wrong."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from llmsim.config.errors import InputError, nearest
from llmsim.config.files.reading import MAX_LINE_BYTES, too_long
from llmsim.core import Int64
from llmsim.workload.formats.batches import BYTE_ORDER_MARK, Batch, each, lines_of, whole_lines
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.table import LATEST_NS, Table
from llmsim.workload.limits import MAX_TIME_NS
from llmsim.workload.open_trace import opened

Record = TypeVar("Record")
_BYTE = re.compile(r"byte (\d+)")
_PATH = re.compile(r" - at `\$\.?(.*)`$")


def json_lines(table: Table, kind: type[Record]) -> Iterator[tuple[int, Record]]:
    """(line number, record) of every line, decoded into the msgspec struct `kind`, whose fields are
    the keys used.
    """
    for batch in json_batches(table, kind):
        yield from each(batch)


def json_batches(table: Table, kind: type[Record]) -> Iterator[Batch[Record] | tuple[int, Record]]:
    """The same in batches; one by one where a piece of the file is not a plain object in every
    line.
    """
    path = table.source.path
    decoder = msgspec.json.Decoder(kind)
    noted, number = False, 1
    with opened(Path(path)) as stream:
        for text in whole_lines(stream, path):
            if number == 1:
                text = text.removeprefix(BYTE_ORDER_MARK)
            batch = lines_of(decoder.decode_lines, text, number)
            if batch is not None and not noted:
                noted = _note_unknown(table, kind, text.split(b"\n", 1)[0], number)
            if batch is not None:
                yield batch
            else:
                for line_number, line in enumerate(BytesIO(text), number):
                    if line.isspace() or not line:
                        continue
                    if not noted:
                        noted = _note_unknown(table, kind, line, line_number)
                    try:
                        yield line_number, decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        record = with_integers(kind, line)
                        if record is None:
                            raise _line_error(path, line_number, line, error) from None
                        yield line_number, record
            number += text.count(b"\n") if batch is None else len(batch.records)


def with_integers(kind: type[Record], line: bytes) -> Record | None:
    """The record of a line that writes integers as 12.0, as pandas does; None where that is not
    what is wrong.
    """
    try:
        return msgspec.convert(json.loads(line, parse_float=integral), kind)
    except (ValueError, msgspec.ValidationError, RecursionError):
        return None


def integral(text: str) -> float:
    """A number of JSON: an integer where it is one, so that 12.0 may stand for a count."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value


def _note_unknown(table: Table, kind: type[Any], line: bytes, number: int) -> bool:
    """Notes, for the first line only, the keys that are not used; always True."""
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    if isinstance(fields, dict):
        note_unused(table, number, fields, [str(name) for name in kind.__struct_encode_fields__])
    return True


def note_unused(
    table: Table, number: int, found: Sequence[str] | dict[str, Any], used: Sequence[str]
) -> None:
    """One line about columns or keys that a reader passes over."""
    names = sorted(set(found) - set(used))
    if names:
        shown = ", ".join(f'"{name}"' for name in names[:12]) + (", ..." if len(names) > 12 else "")
        table.notes.append(f"{table.source.path}:{number}: not used, here and below: {shown}")


def _line_error(path: str, number: int, line: bytes, error: Exception) -> InputError:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as bad:
        return InputError(
            f"{path}:{number}:{bad.start + 1}: byte 0x{line[bad.start]:02x} is not UTF-8 text",
            file=str(path),
        )
    if isinstance(error, RecursionError):
        return InputError(f"{path}:{number}:1: nested too deeply for a trace", file=str(path))
    return json_error(path, number, line, error)


def json_error(path: str, number: int, text: bytes, error: Exception) -> InputError:
    """What msgspec refused in one line or document: malformed at a byte, or a field that has the
    wrong type or range.
    """
    said = str(error)
    at_byte = _BYTE.search(said)
    if at_byte or "truncated" in said:
        offset = int(at_byte[1]) if at_byte else len(text.rstrip())
        line, column = (
            number + text.count(b"\n", 0, offset),
            offset - (text.rfind(b"\n", 0, offset) + 1) + 1,
        )
        reason = said.removeprefix("JSON is malformed: ").split(" (byte")[0]
        return InputError(f"{path}:{line}:{column}: not valid JSON: {reason}", file=str(path))
    found = _PATH.search(said)
    field = found[1] if found else ""
    key = re.findall(r"[A-Za-z_ ][\w ]*", field)[-1:] or re.findall(r"field `([^`]*)`", said)
    position = text.find(b'"' + key[0].encode() + b'"') if key else -1
    offset = max(position, 0)
    line, column = (
        number + text.count(b"\n", 0, offset),
        offset - (text.rfind(b"\n", 0, offset) + 1) + 1,
    )
    reason = _PATH.sub("", said)
    reason = reason[0].lower() + reason[1:].replace("`", '"') + _got(said, text, key)
    return InputError(f"{path}:{line}:{column}: " + (f'"{field}": {reason}' if field else reason))


def _got(said: str, text: bytes, key: Sequence[str]) -> str:
    """`, got` and the number of a field that is out of its range; empty where `said` tells what
    there is, or where the key is there more than once.
    """
    if ", got" in said or not key:
        return ""
    number = rb'"' + re.escape(key[0].encode()) + rb'"\s*:\s*(-?\d[\d.eE+-]*)'
    found = re.findall(number, text)
    return f", got {found[0].decode()}" if len(found) == 1 else ""


class CsvRows:
    """The rows of a CSV whose header holds `wanted` (found by name, anywhere); `optional` may be
    missing.
    """

    def __init__(
        self, table: Table, head: Head, wanted: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        self.table = table
        for name in wanted:
            if name not in head.columns:
                suggestion = nearest(name, head.columns)
                raise table.refusal(1, f'the column "{name}" is missing{suggestion}')
            if head.columns.count(name) > 1:
                raise table.refusal(
                    1, f'two columns are named "{name}"; rename the one that is not meant'
                )
        note_unused(table, 1, head.columns, [*wanted, *optional])
        self.names = head.columns
        self.columns = [head.columns.index(name) for name in wanted]
        self.optional = [
            head.columns.index(name) if name in head.columns else -1 for name in optional
        ]

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, fields) of every row but the header; blank lines are skipped."""
        path, width = self.table.source.path, max([*self.columns, *self.optional]) + 1
        with opened(Path(path)) as stream:
            reader = csv.reader(_lines(path, stream), skipinitialspace=True)
            try:
                while not any(next(reader, ["the end"])):  # blank lines before the header
                    pass
                for fields in reader:
                    if len(fields) < width:
                        if not fields or (len(fields) == 1 and not fields[0].strip()):
                            continue
                        raise self.table.refusal(
                            reader.line_num,
                            f"{len(fields)} fields, but the header names {len(self.names)}",
                        )
                    if len(fields) > len(self.names) and any(
                        map(str.strip, fields[len(self.names) :])
                    ):
                        raise self.table.refusal(
                            reader.line_num,
                            f"{len(fields)} fields, but the header names {len(self.names)}: a "
                            "value with a comma in it needs quotes",
                        )
                    yield reader.line_num, fields
            except csv.Error as error:
                raise self.table.refusal(reader.line_num, f"not valid CSV: {error}") from None

    def bad(self, number: int, fields: list[str], index: int, wanted: str) -> InputError:
        """The error for field `index` of a row."""
        column = len(",".join(fields[:index])) + (index > 0) + 1
        value = fields[index].replace("\n", "\\n").replace("\r", "\\r")
        value = value if len(value) <= 60 else value[:57] + "..."
        name = self.names[index]
        problem = f'"{name}" is "{value}", but must be {wanted}'
        return self.table.refusal(number, problem, column, field=name, value=fields[index])

    @staticmethod
    def text(fields: list[str], index: int) -> str | None:
        """An optional column's text; None where the column is missing or the field is empty."""
        return fields[index] or None if index >= 0 else None

    def tokens(self, number: int, fields: list[str], index: int) -> int:
        """A count of tokens; "12.0" is 12."""
        text = fields[index]
        try:
            return int(text)
        except ValueError:
            pass
        try:
            value = float(text)
        except ValueError:
            value = 0.5
        if not value.is_integer():
            raise self.bad(number, fields, index, "an integer number of tokens")
        return int(value)

    def seconds_ns(self, number: int, fields: list[str], index: int) -> int:
        """A time in seconds, as ns."""
        try:
            time_ns = float(fields[index]) * 1e9
        except ValueError:
            time_ns = float("nan")
        if not abs(time_ns) < 1 << 62:
            raise self.bad(number, fields, index, "a time in seconds")
        return round(time_ns)


def _lines(path: str, stream: Any) -> Iterator[str]:
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > MAX_LINE_BYTES:
            raise too_long(f"{path}:{number}:1")
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as bad:
            raise InputError(
                f"{path}:{number}:{bad.start + 1}: byte 0x{line[bad.start]:02x} is not UTF-8 text",
                file=str(path),
            ) from None


def scaled_ns(table: Table, number: int, value: float, ns_per_unit: int, name: str) -> int:
    """A time as ns; refuses what no clock says."""
    if value != value:
        raise table.refusal(number, f'"{name}" is NaN, but must be a number')
    time_ns = value * ns_per_unit
    if not abs(time_ns) < 1 << 62:
        raise table.refusal(number, f'"{name}" is {value}, beyond {MAX_TIME_NS} ns')
    return round(time_ns)


def all_scaled_ns(values: Sequence[float], ns_per_unit: int) -> Int64 | None:
    """`scaled_ns` of many; None where one of them is to be refused."""
    with np.errstate(over="ignore"):  # what overflows is refused by the one who looks at each
        times_ns = np.array(values, dtype=np.float64) * ns_per_unit
    within = bool((np.abs(times_ns) < LATEST_NS).all())
    return np.rint(times_ns).astype(np.int64) if within else None
