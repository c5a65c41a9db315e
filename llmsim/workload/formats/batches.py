"""Reads JSON Lines and lists of JSON objects in batches, for traces of millions of rows.

What cannot be read as a batch (a line at fault, a layout that is neither one object per line nor a
list of objects that begin with one key) is left to the readers of `rows`, which look at one value
at a time and know where each one stands.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Generic, TypeVar

import msgspec
import numpy as np

from llmsim.config.files.reading import MAX_LINE_BYTES, too_long

Record = TypeVar("Record")
CHUNK_BYTES = 1 << 20
LONGEST_SEARCH = 1 << 24
"""Bytes without an end of an object after which a list is read one value at a time."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
_FIRST_KEY = re.compile(rb'[ \t\r\n]*\{\s*("(?:[^"\\]|\\.)*")\s*:')
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class Batch(Generic[Record]):
    """Records that follow each other in a file; `line` and `column` (from 1) are where `text`
    begins.
    """

    records: list[Record]
    text: bytes
    line: int
    column: int = 1
    one_per_line: bool = False

    def numbers(self) -> list[int] | range:
        """The line of every record."""
        if self.one_per_line:
            return range(self.line, self.line + len(self.records))
        return [line for line, _ in self.positions()]

    def position(self, index: int) -> tuple[int, int]:
        """Line and column of one record."""
        return (self.line + index, 1) if self.one_per_line else self.positions()[index]

    def first_keys(self) -> tuple[int, list[str]]:
        """The keys of the first record as it stands in the file, none where one is not UTF-8; and
        its line.
        """
        first = next(_extents(self.text), (0, 0))
        try:
            fields = _decode_keys(self.text[slice(*first)])
        except _FAULTS:
            fields = {}
        return self.position(0)[0], list(fields)

    def positions(self) -> list[tuple[int, int]]:
        """Line and column of every record; reads the text again, which may hold what no decoder
        looked at.
        """
        found, at, line, begin = [], 0, self.line, 0
        before = self.column - 1
        for start, _ in _extents(self.text):
            newline = self.text.rfind(b"\n", at, start)
            if newline >= 0:
                line, begin, before = line + self.text.count(b"\n", at, start), newline + 1, 0
            width = len(self.text[begin:start].decode("utf-8", "replace"))
            found.append((line, before + width + 1))
            at = start
        return found


def _extents(text: bytes) -> Iterator[tuple[int, int]]:
    """Where the outermost objects of a text that was decoded begin and end; texts in them may hold
    any byte.
    """
    depth, start = 0, 0
    for match in _BRACKET.finditer(text):
        token = match[0]
        if token in (b"{", b"["):
            start = start if depth else match.start()
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                yield start, match.end()


def each(batch: Batch[Record] | tuple[int, Record]) -> Iterator[tuple[int, Record]]:
    """(line, record) one by one, of a batch or of what stands alone."""
    if isinstance(batch, Batch):
        yield from zip(batch.numbers(), batch.records, strict=True)
    else:
        yield batch


def whole_lines(stream: BufferedReader, path: str) -> Iterator[bytes]:
    """The bytes of a stream in pieces of about a megabyte that end with a line; InputError for one
    too long.
    """
    lines = 0
    while text := stream.read(CHUNK_BYTES):
        if not text.endswith(b"\n"):
            text += stream.readline(MAX_LINE_BYTES + 1)
            if not text.endswith(b"\n") and len(text) - text.rfind(b"\n") > MAX_LINE_BYTES:
                number = lines + text.count(b"\n") + 1
                raise too_long(f"{path}:{number}:1")
        lines += text.count(b"\n")
        yield text


def lines_of(
    decode: Callable[[bytes], list[Record]], text: bytes, line: int
) -> Batch[Record] | None:
    """The records of a piece with exactly one object in every line; None where it is not that."""
    try:
        records = decode(text)
    except _FAULTS:
        return None
    data = np.frombuffer(text, dtype=np.uint8)
    begins = np.flatnonzero(data[:-1] == ord("\n")) + 1
    if len(begins) + 1 != len(records) or data[0] != ord("{") or (data[begins] != ord("{")).any():
        return None
    return Batch(records, text, line, one_per_line=True)


class Elements(Generic[Record]):
    """The objects of a list, batch after batch.

    Ends early at what is not a list of objects that begin with one key. Then `rest` is what was
    read ahead, `inside` says whether the list has begun, and `line` and `column` say where `rest`
    stands in the file.
    """

    def __init__(self, kind: type[Record], stream: BufferedReader) -> None:
        self._decode = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]
        self._stream = stream
        self.rest = b""
        self.line, self.column = 1, 1
        self.inside = self.ended = False

    def __iter__(self) -> Iterator[Batch[Record]]:
        key = b""
        while not self.ended:
            more = self._stream.read(CHUNK_BYTES)
            self.rest += more
            key = key or self._first_key()
            if not key:
                return
            end = self._last_boundary(key) if more else len(self.rest.rstrip(_BLANKS)) - 1
            if end <= 0 and more and len(self.rest) < LONGEST_SEARCH:
                continue
            if end <= 0 or self.rest[end : end + 1] != (b"," if more else b"]"):
                return
            text = self.rest[:end]
            try:
                records: list[Record] = self._decode(b"[%b]" % text)
            except _FAULTS:
                return
            yield Batch(records, text, self.line, self.column)
            self._pass(end + 1)
            self.ended = not more

    def _first_key(self) -> bytes:
        """The first object's first key, with its quotes; the bracket before the object
        is passed.
        """
        opening = len(self.rest) - len(self.rest.lstrip(_BLANKS))
        found = (
            _FIRST_KEY.match(self.rest, opening + 1)
            if self.rest[opening : opening + 1] == b"["
            else None
        )
        if found is None:
            return b""
        self._pass(opening + 1)
        self.inside = True
        return found[1]

    def _last_boundary(self, key: bytes) -> int:
        """Where the last comma between two such objects is; in a text the key cannot stand: its
        quotes are escaped.

        An object further inside may begin with the same key. Then what ends there is no list, and
        is not read as one.
        """
        at = self.rest.rfind(key)
        while at > 0:
            brace = self._end_before(at)
            comma = self._end_before(brace - 1)
            end = self._end_before(comma - 1)
            if (
                self.rest[end - 1 : end]
                + self.rest[comma - 1 : comma]
                + self.rest[brace - 1 : brace]
                == b"},{"
            ):
                return comma - 1
            at = self.rest.rfind(key, 0, at)
        return 0

    def _end_before(self, at: int) -> int:
        """`at`, less the blanks before it."""
        while at > 0 and self.rest[at - 1] in _BLANKS:
            at -= 1
        return at

    def _pass(self, count: int) -> None:
        """Goes on behind `count` bytes."""
        passed = self.rest[:count]
        newline = passed.rfind(b"\n")
        width = len(passed[newline + 1 :].decode("utf-8", "replace"))
        self.line += passed.count(b"\n")
        self.column = width + 1 + (self.column - 1 if newline < 0 else 0)
        self.rest = self.rest[count:]
