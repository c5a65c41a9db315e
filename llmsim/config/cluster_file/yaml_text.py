"""Cluster files in YAML: the same data as in JSON, with the line of every field.

Scalars follow YAML 1.2: `1e9` is a number, and `on` and `12:30` are texts. Anchors and tags are
refused, since no cluster file needs them and they can make a small file large.
"""

import math
import re
from pathlib import Path
from typing import Any

from llmsim.config.cluster_file.json_positions import Location, field_path
from llmsim.config.errors import InputError

SUFFIXES = (".yaml", ".yml")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: True for word in ("true", "True", "TRUE")}
_WORDS |= {word: False for word in ("false", "False", "FALSE")}
_MOST_DIGITS = 400
"""Of a number: Python converts no more than some thousands."""
_MOST_LEVELS = 40


def is_yaml(name: str) -> bool:
    """Whether a text with this name is YAML."""
    return Path(name).suffix.lower() in SUFFIXES


def read_yaml(text: str, name: str) -> tuple[Any, dict[Location, int]]:
    """The data of a YAML text and the line of every field.

    Raises InputError with the line for what is not YAML, or has no counterpart in JSON.
    """
    import yaml

    try:
        _refuse_anchors(yaml, text, name)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise InputError(f"{name}{where}: not valid YAML: {error.problem}", file=name) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise InputError(f"{name}: not valid YAML: {said}", file=name) from None
    lines: dict[Location, int] = {}
    return (None if root is None else _value(root, (), lines, name)), lines


def _refuse_anchors(yaml: Any, text: str, name: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_LEVELS:
            raise InputError(
                f"{name}: the YAML is nested too deeply; a cluster needs fewer than 10 levels",
                file=name,
            )
        if getattr(event, "anchor", None) is not None:
            raise InputError(
                f"{name}:{event.start_mark.line + 1}: anchors and aliases are not read; write the "
                "value again",
                file=name,
            )
        if getattr(event, "tag", None) is not None:
            raise InputError(
                f"{name}:{event.start_mark.line + 1}: the tag {event.tag} is not read; write a "
                "plain value",
                file=name,
            )


def _value(node: Any, location: Location, lines: dict[Location, int], name: str) -> Any:
    lines.setdefault(location, node.start_mark.line + 1)
    if node.id == "scalar":
        return _scalar(node, location, name)
    if node.id == "sequence":
        return [_value(one, (*location, i), lines, name) for i, one in enumerate(node.value)]
    found: dict[str, Any] = {}
    for key, value in node.value:
        here = (*location, str(key.value))
        line = key.start_mark.line + 1
        if key.id != "scalar":
            raise InputError(
                f"{name}:{line}: a key is a list or an object; write a text", file=name
            )
        if key.value in found:
            raise InputError(
                f"{name}:{line}: {field_path(here)} is given twice (first on line {lines[here]}); "
                "keep one of them",
                file=name,
            )
        lines[here] = line
        found[key.value] = _value(value, here, lines, name)
    return found


def _scalar(node: Any, location: Location, name: str) -> Any:
    text = node.value
    if node.style is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    where = f"{name}:{node.start_mark.line + 1}: {field_path(location)}"
    if _NOT_FINITE.fullmatch(text):
        raise InputError(f"{where} is {text}; expected a finite number", file=name)
    if len(text) > _MOST_DIGITS and _FLOAT.fullmatch(text):
        raise InputError(
            f"{where} is a number of {len(text)} digits; expected one that fits 64 bits", file=name
        )
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise InputError(f"{where} is {text}; expected a finite number", file=name)
        return number
    return text
