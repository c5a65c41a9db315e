"""Walks the rows of JSON Lines, JSON documents and CSV files; says file, line and column of what is wrong."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llmsim.config.errors import InputError, nearest
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.table import Table
from llmsim.workload.limits import MAX_TIME_NS
from llmsim.workload.opening import opened

Record = TypeVar("Record")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BYTE = re.compile(r"byte (\d+)")
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_BLANKS = re.compile(r"\s*")
_CHUNK_CHARACTERS = 1 << 20


def json_lines(table: Table, kind: type[Record]) -> Iterator[tuple[int, Record]]:
    """(line number, record) of every line, decoded into the msgspec struct `kind`, whose fields are the keys used."""
    path = table.source.path
    decode = msgspec.json.Decoder(kind).decode
    noted = False
    with opened(Path(path)) as stream:
        for number, line in enumerate(stream, 1):
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if line.isspace() or not line:
                continue
            if not noted:
                noted = _note_unknown(table, kind, line, number)
            try:
                yield number, decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise _line_error(path, number, line, error) from None


def _note_unknown(table: Table, kind: type[Any], line: bytes, number: int) -> bool:
    """Notes, for the first line only, the keys that are not used; always True."""
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    if isinstance(fields, dict):
        note_unused(table, number, fields, [str(name) for name in kind.__struct_encode_fields__])
    return True


def note_unused(table: Table, number: int, found: Sequence[str] | dict[str, Any], used: Sequence[str]) -> None:
    """One line about columns or keys that a reader passes over."""
    names = sorted(set(found) - set(used))
    if names:
        shown = ", ".join(f'"{name}"' for name in names[:12]) + (", ..." if len(names) > 12 else "")
        table.notes.append(f"{table.source.path}:{number}: not used, here and below: {shown}")


def _line_error(path: str, number: int, line: bytes, error: Exception) -> InputError:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as bad:
        return InputError(f"{path}:{number}:{bad.start + 1}: byte 0x{line[bad.start]:02x} is not UTF-8 text")
    if isinstance(error, RecursionError):
        return InputError(f"{path}:{number}:1: nested too deeply for a trace")
    return json_error(path, number, line, error)


def json_error(path: str, number: int, text: bytes, error: Exception) -> InputError:
    """What msgspec refused in one line or document: malformed at a byte, or a field that has the wrong type or
    range."""
    said = str(error)
    at_byte = _BYTE.search(said)
    if at_byte or "truncated" in said:
        offset = int(at_byte[1]) if at_byte else len(text.rstrip())
        line, column = number + text.count(b"\n", 0, offset), offset - (text.rfind(b"\n", 0, offset) + 1) + 1
        reason = said.removeprefix("JSON is malformed: ").split(" (byte")[0]
        return InputError(f"{path}:{line}:{column}: not valid JSON: {reason}")
    found = _PATH.search(said)
    field = found[1] if found else ""
    key = re.findall(r"[A-Za-z_ ][\w ]*", field)[-1:] or re.findall(r"field `([^`]*)`", said)
    place = text.find(b'"' + key[0].encode() + b'"') if key else -1
    offset = max(place, 0)
    line, column = number + text.count(b"\n", 0, offset), offset - (text.rfind(b"\n", 0, offset) + 1) + 1
    reason = _PATH.sub("", said)
    reason = reason[0].lower() + reason[1:].replace("`", '"')
    return InputError(f"{path}:{line}:{column}: " + (f'"{field}": {reason}' if field else reason))


def json_values(path: str) -> Iterator[tuple[int, int, Any]]:
    """(line, column, value) of the elements of a top-level array, or of the documents of a file, one at a time."""
    scan = json.JSONDecoder().raw_decode
    with opened(Path(path)) as stream:
        reader = _Text(path, stream.read)
        reader.skip()
        in_array = reader.peek() == "["
        if in_array:
            reader.take(1)
        while True:
            reader.skip()
            if in_array and reader.peek() == "]":
                return
            if reader.peek() == "":
                if in_array:
                    raise reader.refusal("the list is cut short")
                return
            line, column = reader.line, reader.column
            value, length = reader.scan(scan)
            yield line, column, value
            reader.take(length)
            reader.skip()
            if in_array and reader.peek() == ",":
                reader.take(1)
            elif in_array and reader.peek() not in ("]", ""):
                raise reader.refusal('the elements of a list are divided by ","')


class _Text:
    """A text of any length through a window; knows its line and column."""

    def __init__(self, path: str, read: Callable[[int], bytes]) -> None:
        import codecs

        self._path, self._read = path, read
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._ended = "", 0, False
        self.line, self.column = 1, 1

    def _more(self) -> bool:
        if self._ended:
            return False
        data = self._read(max(_CHUNK_CHARACTERS, len(self._text) - self._at))
        self._ended = not data
        try:
            added = self._decode(data, self._ended)
        except UnicodeDecodeError:
            raise self.refusal("not UTF-8 text from here on") from None
        self._text, self._at = self._text[self._at :] + added, 0
        return True

    def peek(self) -> str:
        while self._at >= len(self._text) and self._more():
            pass
        return self._text[self._at : self._at + 1]

    def skip(self) -> None:
        while True:
            blank = _BLANKS.match(self._text, self._at)
            self.take(blank.end() - self._at if blank else 0)
            if self._at < len(self._text) or not self._more():
                return

    def take(self, count: int) -> None:
        part = self._text[self._at : self._at + count]
        lines = part.count("\n")
        self.line += lines
        self.column = len(part) - part.rfind("\n") if lines else self.column + len(part)
        self._at += count

    def scan(self, scan: Callable[[str, int], tuple[Any, int]]) -> tuple[Any, int]:
        while True:
            try:
                value, end = scan(self._text, self._at)
                if end < len(self._text) or self._ended:
                    return value, end - self._at
                self._more()
            except RecursionError:
                raise self.refusal("nested too deeply for a trace") from None
            except json.JSONDecodeError as error:
                if not self._more():
                    self.take(max(error.pos - self._at, 0))
                    raise self.refusal(f"not valid JSON: {error.msg}") from None

    def refusal(self, problem: str) -> InputError:
        return InputError(f"{self._path}:{self.line}:{self.column}: {problem}")


class CsvRows:
    """The rows of a CSV whose header holds `wanted` (found by name, anywhere); `optional` may be missing."""

    def __init__(self, table: Table, head: Head, wanted: Sequence[str], optional: Sequence[str] = ()) -> None:
        self.table = table
        for name in wanted:
            if name not in head.columns:
                suggestion = nearest(name, head.columns)
                raise table.refusal(1, f'the column "{name}" is missing{suggestion}')
        note_unused(table, 1, head.columns, [*wanted, *optional])
        self.names = head.columns
        self.columns = [head.columns.index(name) for name in wanted]
        self.optional = [head.columns.index(name) if name in head.columns else -1 for name in optional]

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, fields) of every row but the header; blank lines are skipped."""
        path, width = self.table.source.path, max([*self.columns, *self.optional]) + 1
        with opened(Path(path)) as stream:
            reader = csv.reader(_lines(path, stream))
            try:
                next(reader, None)
                for fields in reader:
                    if len(fields) < width:
                        if not fields or (len(fields) == 1 and not fields[0].strip()):
                            continue
                        raise self.table.refusal(
                            reader.line_num, f"{len(fields)} fields, but the header names {len(self.names)}"
                        )
                    yield reader.line_num, fields
            except csv.Error as error:
                raise self.table.refusal(reader.line_num, f"not valid CSV: {error}") from None

    def bad(self, number: int, fields: list[str], index: int, wanted: str) -> InputError:
        """The error for field `index` of a row."""
        column = len(",".join(fields[:index])) + (index > 0) + 1
        value = fields[index].replace("\n", "\\n").replace("\r", "\\r")
        value = value if len(value) <= 60 else value[:57] + "..."
        return self.table.refusal(number, f'"{self.names[index]}" is "{value}", but must be {wanted}', column)

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
    for number, line in enumerate(stream, 1):
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as bad:
            raise InputError(
                f"{path}:{number}:{bad.start + 1}: byte 0x{line[bad.start]:02x} is not UTF-8 text"
            ) from None


def scaled_ns(table: Table, number: int, value: float, ns_per_unit: int, name: str) -> int:
    """A time as ns; refuses what no clock says."""
    time_ns = value * ns_per_unit
    if not abs(time_ns) < 1 << 62:
        raise table.refusal(number, f'"{name}" is {value}, beyond {MAX_TIME_NS} ns')
    return round(time_ns)
