"""Finds where in a JSON text a field stands; runs only when there is an error to report."""

import json
import re
from collections.abc import Iterator
from typing import Any

Location = tuple[str | int, ...]
"""Keys and list indices from the root, as in ("nodes", 0, "link_bw")."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_PLAIN_KEY = re.compile(r"[\w$-]+")


def entries(text: str) -> Iterator[tuple[Location, int]]:
    """Every member and element of a valid JSON text with its offset, in order; a duplicate key
    comes twice.
    """
    path: list[Any] = []  # the key, None before the first one, or index in each open container
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in ("}", "]"):
            path.pop()
        elif token == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif token != ":":
            is_key = bool(path) and path[-1] is None
            if is_key:
                path[-1] = _unquoted(token)
            if is_key or (path and isinstance(path[-1], int)):
                yield tuple(path), match.start()
            if token in ("{", "["):
                path.append(0 if token == "[" else None)


def _unquoted(token: str) -> str:
    """The text of a string's token; few have escapes, and reading those takes longer."""
    text: str = json.loads(token) if "\\" in token else token[1:-1]
    return text


def line_at(text: str, offset: int) -> int:
    """The 1-based line of a character offset."""
    return text.count("\n", 0, offset) + 1


def line_of(text: str, location: Location) -> int:
    """The 1-based line of a field, or of its nearest ancestor that the text has."""
    best_depth, best_offset = -1, 0
    for candidate, offset in entries(text):
        depth = len(candidate)
        if depth > best_depth and candidate == location[:depth]:
            best_depth, best_offset = depth, offset
            if depth == len(location):
                break
    return line_at(text, best_offset)


def lines_of(text: str) -> dict[Location, int]:
    """The 1-based line of every field, and of the root, in one pass."""
    lines: dict[Location, int] = {(): 1}
    line, seen = 1, 0
    for location, offset in entries(text):
        line += text.count("\n", seen, offset)
        seen = offset
        lines.setdefault(location, line)
    return lines


def field_path(location: Location) -> str:
    """`nodes[0].instances[1].npu_mem.mem_size`; empty for the root."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            path += f".{part}" if path else part
        else:
            path += f"[{json.dumps(part)}]"
    return path
