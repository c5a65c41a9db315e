"""The first bytes of a trace file, looked at once, from which its format is told."""

import csv
import json
import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from llmsim.config.errors import InputError
from llmsim.workload.open_trace import opened

HEAD_BYTES = 1 << 18
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""How a file begins that PowerShell or Excel wrote as "Unicode"."""


class Head(Struct, frozen=True):
    """`kind` is "lines" (a JSON object per line), "object" or "array" (one JSON document), "csv",
    "parquet", "arrow", "empty" or "" (nothing known). `first` is the first JSON object where the
    head holds it whole; `keys` its keys, or all keys, at any depth, of the part that is there;
    `columns` the fields of a CSV's first line, without blanks around them, or the columns of a
    Parquet or Arrow file.
    """

    kind: str
    keys: frozenset[str] = frozenset()
    first: dict[str, Any] | None = None
    columns: tuple[str, ...] = ()
    shown: str = ""

    def has(self, *names: str) -> bool:
        """Whether all these keys or columns are there."""
        return set(names) <= self.keys or set(names) <= set(self.columns)


def head_of(path: Path) -> Head:
    """Looks at a file. Raises InputError where it cannot be read."""
    with opened(path) as stream:
        data = stream.read(HEAD_BYTES).removeprefix(_BYTE_ORDER_MARK).lstrip()
    if not data:
        return Head("empty")
    for magic, kind in ((b"PAR1", "parquet"), (b"ARROW1", "arrow")):
        if data.startswith(magic):
            from llmsim.workload.formats.parquet import stored_columns

            return Head(kind, columns=stored_columns(str(path), kind))
    if data.startswith(_UTF_16):
        raise InputError(f"{path}: the text is UTF-16; save it as UTF-8", file=str(path))
    line = data.split(b"\n", 1)[0]
    shown = line[:60].decode("utf-8", "replace").rstrip()
    if data[:1] == b"{":
        return _json_head(data, line, shown)
    if data[:1] == b"[":
        return Head("array", _keys(data), _first_element(data), shown=shown)
    try:
        fields = next(csv.reader([line.decode("utf-8").rstrip("\r")], skipinitialspace=True))
    except (UnicodeDecodeError, csv.Error, StopIteration):
        return Head("", shown=shown)
    return Head(
        "csv" if len(fields) > 1 else "",
        columns=tuple(field.strip() for field in fields),
        shown=shown,
    )


def _json_head(data: bytes, line: bytes, shown: str) -> Head:
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return Head("object", _keys(data), shown=shown)
    rest = data[len(line) :].strip()
    # One line alone may be either: a format that takes whole documents takes a line, too.
    return Head("lines" if rest else "object", frozenset(first), first, shown=shown)


def _keys(data: bytes) -> frozenset[str]:
    return frozenset(key.decode("utf-8", "replace") for key in _KEY.findall(data))


def _first_element(data: bytes) -> dict[str, Any] | None:
    text = data[1:].decode("utf-8", "ignore").lstrip()
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
