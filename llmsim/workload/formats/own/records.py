"""Structs of msgspec for lines of JSON whose keys are known only when a file is there.

A path such as `usage.prompt_tokens` names a key in the object under another key. A key that has the
dot in itself, as pandas writes nested values, goes first.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec

DEEPEST = 4
"""Keys of a path."""
Keys = tuple[str, ...]


def paths_of(row: Mapping[str, Any]) -> dict[str, Keys]:
    """The path of every value of an object that is no object itself, and its keys."""
    found: dict[str, Keys] = {}
    for keys, _ in _leaves(row, ()):
        found.setdefault(".".join(keys), keys)
    return found


def value_at(row: Any, keys: Keys) -> Any:
    """The value under nested keys; None where one of them is missing."""
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _leaves(row: Mapping[str, Any], above: Keys) -> Iterator[tuple[Keys, Any]]:
    for key, value in row.items():
        keys = (*above, key)
        if isinstance(value, dict) and len(keys) < DEEPEST:
            yield from _leaves(value, keys)
        else:
            yield keys, value


class Record:
    """A struct with an optional field for each of several paths.

    `kind` is the struct. `getters` has for each path what takes its value from a record, and raises
    AttributeError where an object on the way is missing. Raises ValueError with the path that
    cannot be read beside the others.
    """

    def __init__(self, wanted: Mapping[Keys, Any]) -> None:
        self._number = 0
        self.getters: dict[Keys, Callable[[Any], Any]] = {}
        self.kind: type[Any] = self._struct(wanted, (), "")

    def _struct(self, wanted: Mapping[Keys, Any], above: Keys, attribute: str) -> type[Any]:
        below: dict[str, dict[Keys, Any]] = {}
        for keys, kind in wanted.items():
            below.setdefault(keys[0], {})[keys[1:]] = kind
        fields, names = [], {}
        for key, inside in below.items():
            field = f"f{self._number}"
            self._number += 1
            path = f"{attribute}.{field}" if attribute else field
            leaf = inside.pop((), None)
            if leaf is not None and inside:
                raise ValueError(".".join((*above, key)))
            if leaf is None:
                leaf = self._struct(inside, (*above, key), path)
            else:
                self.getters[(*above, key)] = attrgetter(path)
            fields.append((field, leaf | None, None))
            names[field] = key
        try:
            return msgspec.defstruct("Row", fields, rename=names, gc=False)
        except (ValueError, UnicodeEncodeError):
            raise ValueError(".".join((*above, *names.values()))) from None
