"""What two runs were given differently: fields of the resolved clusters, options, and the load."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmsim.config import input_files

SHOWN = 6
"""Differences that a sentence names; the others are counted."""
LONGEST = 40
"""Characters of a value that a sentence shows."""
_GROUP = re.compile(r"^groups\[\d+\]\.")
_NOT_GIVEN = ("index", "field_path", "origin")
"""Fields of a resolved group that say where a value is from."""


def given_differently(a: Path, b: Path) -> str | None:
    """A sentence about what differs between what the runs of two folders were given; None where one
    of them is no run folder.
    """
    first, second = _given(a), _given(b)
    if first is None or second is None:
        return None
    changes = [
        change
        for before, after in zip(first, second, strict=True)
        for change in _changes(before, after)
    ]
    if not changes:
        return "Both runs were given the same."
    named = changes[:SHOWN]
    more = len(changes) - len(named)
    return f"Given differently: {'; '.join(named)}{f'; and {more} more' if more else ''}."


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Every value that differs, once where it does so in several groups."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    said = [
        f"{_GROUP.sub('', name)} {_shown(before, name)} -> {_shown(after, name)}" for name in names
    ]
    return list(dict.fromkeys(said))


def _given(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """What the manifest of a run folder says that was asked, and what became of it, by paths."""
    try:
        manifest = json.loads(input_files.read_bytes(folder / "manifest.json"))
        asked = manifest["run"]
        load = {"dataset": asked.get("dataset") or manifest.get("inputs")}
        words = {**load, "seed": manifest["seed"], **asked["options"]}
        return dict(_leaves(words, "")), dict(_leaves(manifest["config"], ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name not in _NOT_GIVEN:
                yield from _leaves(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for at, one in enumerate(value):
            yield from _leaves(one, f"{path}[{at}]")
    else:
        yield path, value


def _shown(given: Mapping[str, Any], name: str) -> str:
    if name not in given:
        return "(not given)"
    value = given[name]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
