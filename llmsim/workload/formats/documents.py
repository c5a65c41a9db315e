"""Walks JSON documents and lists, in batches where they are plain, otherwise one value
at a time.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llmsim.config.errors import InputError
from llmsim.config.files.reading import MAX_LINE_BYTES, too_long
from llmsim.workload.formats.batches import (
    BYTE_ORDER_MARK,
    CHUNK_BYTES,
    Batch,
    Elements,
    lines_of,
    whole_lines,
)
from llmsim.workload.formats.rows import integral
from llmsim.workload.open_trace import opened

Record = TypeVar("Record")
HALF = "a key or a text holds one half of a surrogate pair, which is no character"
_BLANKS = re.compile(r"\s*")


def json_documents(path: str, kind: type[Record]) -> Iterator[Batch[Record] | tuple[int, int, Any]]:
    """The elements of a top-level array, or the documents of a file, decoded into the msgspec
    struct `kind`; or (line, column, value as Python's json reads it) from where that is not
    possible.
    """
    with opened(Path(path)) as stream:
        if stream.peek(3)[:3] == BYTE_ORDER_MARK:
            stream.read(3)
        if stream.peek(1)[:1] == b"{":
            yield from _documents(path, kind, stream)
            return
        elements = Elements(kind, stream)
        yield from elements
        if not elements.ended:
            text = _Text(path, stream.read, elements.rest, elements.line, elements.column)
            yield from _values(text, elements.inside)


def _documents(
    path: str, kind: type[Record], stream: BufferedReader
) -> Iterator[Batch[Record] | tuple[int, int, Any]]:
    decode, line = msgspec.json.Decoder(kind).decode_lines, 1
    for text in whole_lines(stream, path):
        batch = lines_of(decode, text, line)
        if batch is None:
            yield from _values(_Text(path, stream.read, text, line, 1), False)
            return
        yield batch
        line += len(batch.records)


def _values(reader: "_Text", in_array: bool) -> Iterator[tuple[int, int, Any]]:
    """(line, column, value), one at a time; `in_array`: the text begins inside of a list."""
    scan = json.JSONDecoder(parse_float=integral).raw_decode
    reader.skip()
    if not in_array and reader.peek() == "[":
        in_array = True
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

    def __init__(
        self, path: str, read: Callable[[int], bytes], begun: bytes, line: int, column: int
    ) -> None:
        """`begun` was read ahead; it stands at `line` and `column`."""
        self._path, self._read, self._begun = path, read, begun
        self._decode = codecs.getincrementaldecoder(
            "utf-8-sig" if line == column == 1 else "utf-8"
        )().decode
        self._text, self._at, self._ended = "", 0, False
        self.line, self.column = line, column

    def _more(self) -> bool:
        if self._ended:
            return False
        data = self._begun or self._read(max(CHUNK_BYTES, len(self._text) - self._at))
        self._begun = b""
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
                self._more_of_value()
            except RecursionError:
                raise self.refusal("nested too deeply for a trace") from None
            except json.JSONDecodeError as error:
                if not self._more_of_value():
                    self.take(max(error.pos - self._at, 0))
                    raise self.refusal(f"not valid JSON: {error.msg}") from None
            except ValueError:  # the only other one: an integer of more digits than Python converts
                raise self.refusal("a number has thousands of digits") from None

    def _more_of_value(self) -> bool:
        """Reads on where a value is not complete; refuses one that is too long."""
        if len(self._text) - self._at > MAX_LINE_BYTES:
            raise too_long(f"{self._path}:{self.line}:{self.column}")
        return self._more()

    def refusal(self, problem: str) -> InputError:
        return InputError(
            f"{self._path}:{self.line}:{self.column}: {problem}", file=str(self._path)
        )
