"""Reads a JSON file into plain data, and turns whatever is wrong with the file into one sentence
with its position.
"""

import json
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from llmsim.config.cluster_file.json_positions import (
    Location,
    entries,
    field_path,
    line_at,
    line_of,
    lines_of,
)
from llmsim.config.cluster_file.yaml_text import is_yaml, read_yaml
from llmsim.config.errors import InputError
from llmsim.config.files import input_files

_NOT_JSON = ("NaN", "Infinity", "-Infinity")


class Document(Struct, frozen=True):
    """A JSON text with the name to blame; `text` is empty for data that never was in a file."""

    name: str
    text: str
    data: Any
    lines: Mapping[Location, int] = field(default_factory=dict)
    """Lines of the fields of a YAML text, or of one of which many are asked for; another text is
    searched when a line is asked for.
    """

    def with_lines(self) -> Self:
        """The same document where every line is found at once."""
        return self if self.lines or not self.text else replace(self, lines=lines_of(self.text))

    def place(self, location: Location) -> Location:
        """Where the text has a field of the cluster."""
        return location

    def line(self, location: Location) -> int:
        """The 1-based line of a field, or of its nearest ancestor that the text has."""
        location = self.place(location)
        if not self.lines:
            return line_of(self.text, location)
        known = (location[:depth] for depth in range(len(location), -1, -1))
        return next(self.lines[one] for one in known if one in self.lines)

    def position(self, location: Location) -> str:
        """`file:line: field.path` of a field, or of its nearest ancestor in the file, for the head
        of an error.
        """
        line = f":{self.line(location)}" if self.text else ""
        path = field_path(self.place(location))
        return f"{self.name}{line}: {path}" if path else f"{self.name}{line}:"


class LayoutDocument(Document, frozen=True):
    """The same text where a layout's instances stand for those of nodes."""

    places: tuple[tuple[Location, ...], ...] = ()
    """Of each instance of each node."""

    def place(self, location: Location) -> Location:
        """Of a field of a node, in its layout."""
        if location[:1] != ("nodes",) or len(location) == 1:
            return location
        _, node, *rest = location
        if rest[:1] != ["instances"] or len(rest) == 1:
            return ("node", *rest)
        assert isinstance(node, int) and isinstance(rest[1], int)
        return (*self.places[node][rest[1]], *rest[2:])


class _DuplicateKey(Exception):
    pass


class _NotFinite(Exception):
    pass


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; InputError says what is wrong with the file."""
    try:
        input_files.note(path)
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{path} is a directory; expected a JSON or YAML file", file=str(path))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise InputError(
                f"{path} is a device, not a file; expected a JSON or YAML file", file=str(path)
            )
        raw = input_files.read_bytes(path)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; expected a JSON or YAML file{_neighbours(path)}",
            file=str(path),
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be read ({reason}); expected a readable JSON or YAML file",
            file=str(path),
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = raw[error.start]
        raise InputError(
            f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8", file=str(path)
        ) from None
    if not text.strip():
        raise InputError(f"{path} is empty; expected a JSON or YAML object", file=str(path))
    return text


def _neighbours(path: Path) -> str:
    """The files beside a missing one that may be cluster files."""
    try:
        entries = path.parent.iterdir()
        names = sorted(one.name for one in entries if one.suffix == ".json" or is_yaml(one.name))
    except OSError:
        return ""
    return f" (its folder holds {', '.join(names[:8])})" if names else ""


def parse_json(text: str, name: str) -> Document:
    """The document of a JSON text, which may hold `//` and `/* */` comments.

    Raises InputError with line and column for what is else no plain, finite, unambiguous JSON.
    """
    if "//" in text or "/*" in text:
        text = without_comments(text)
    try:
        data = json.loads(text, object_pairs_hook=_unique_object, parse_constant=_refuse_constant)
        _refuse_lone_surrogates(data, text, name)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}", file=name
        ) from None
    except _DuplicateKey:
        raise InputError(_duplicate_sentence(text, name)) from None
    except _NotFinite as error:
        offset = _constant_offset(text, str(error))
        column = offset - text.rfind("\n", 0, offset)
        position = f"{name}:{line_at(text, offset)}:{column}"
        raise InputError(
            f"{position}: {error} is not JSON; expected a finite number", file=name
        ) from None
    except RecursionError:
        raise InputError(
            f"{name}: the JSON is nested too deeply; a cluster needs fewer than 10 levels",
            file=name,
        ) from None
    except ValueError:  # the only other one: an integer of more digits than Python converts
        raise InputError(
            f"{name}: a number has thousands of digits; expected numbers that fit 64 bits",
            file=name,
        ) from None
    return Document(name, text, data)


def parse_text(text: str, name: str) -> Document:
    """The document of a JSON text, or of a YAML text whose name says so; raises InputError.

    JSON under the name of a YAML file is read as JSON.
    """
    if not is_yaml(name):
        return parse_json(text, name)
    if text.lstrip().startswith("{"):
        with suppress(InputError):
            return parse_json(text, name)
    data, lines = read_yaml(text, name)
    _refuse_lone_surrogates_of(data, name)
    return Document(name, text, data, lines)


def _refuse_lone_surrogates_of(data: Any, name: str) -> None:
    """YAML's escapes can write half of a character, too."""
    field = _field_of_lone_surrogate(data, "")
    if field:
        raise InputError(
            f"{name}: {field} is a text with half of a character; expected whole characters",
            file=name,
        )


_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def without_comments(text: str) -> str:
    """The text with blanks in place of comments, so that every other character keeps its place."""

    def blank(found: re.Match[str]) -> str:
        part = found[0]
        return part if part[0] == '"' else re.sub(r"[^\n]", " ", part)

    return _STRING_OR_COMMENT.sub(blank, text)


_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def _refuse_lone_surrogates(data: Any, text: str, name: str) -> None:
    """Half of a character's escape is JSON, but no text that an output can hold."""
    if "\\ud" not in text and "\\uD" not in text:
        return
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        found = _LONE_SURROGATE.search(text)
        position = f"{name}:{line_at(text, found.start())}" if found else name
        half = found[0] if found else "an escape"
        field = _field_of_lone_surrogate(data, "")
        raise InputError(
            f"{position}: {field} is a text with {half}, half of a character; expected whole "
            "characters",
            file=name,
        ) from None


def _field_of_lone_surrogate(value: Any, path: str) -> str:
    """Path of the first field whose text, or a key of whose object, cannot be encoded; empty if
    there is none.
    """
    if isinstance(value, str):
        return path if _is_lone(value) else ""
    if isinstance(value, dict) and any(_is_lone(key) for key in value):
        return f"a key of {path or 'the document'}"
    found = (_field_of_lone_surrogate(entry, below) for below, entry in _entries(value, path))
    return next(filter(None, found), "")


def _entries(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    """Paths and values of what an array or an object holds; nothing of other values."""
    if isinstance(value, list):
        return [(f"{path}[{index}]", entry) for index, entry in enumerate(value)]
    if isinstance(value, dict):
        return [(f"{path}.{key}" if path else key, entry) for key, entry in value.items()]
    return ()


def _is_lone(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _DuplicateKey
    return result


def _refuse_constant(constant: str) -> Any:
    raise _NotFinite(constant)


def _constant_offset(text: str, constant: str) -> int:
    """Where the constant stands outside of strings: the decoder stops at the first value that it
    does not know.
    """
    position = 0
    while True:
        offset = text.index(constant, position)
        head = text[:offset].replace("\\\\", "").replace('\\"', "")
        if head.count('"') % 2 == 0:
            return offset
        position = offset + 1


def _duplicate_sentence(text: str, name: str) -> str:
    first_lines: dict[Location, int] = {}
    for location, offset in entries(text):
        line = line_at(text, offset)
        if location in first_lines:
            first = first_lines[location]
            return (
                f"{name}:{line}: {field_path(location)} is given twice (first on line {first}); "
                "keep one of them"
            )
        first_lines[location] = line
    raise AssertionError("the decoder met a duplicate key that the scanner does not see")
