"""Turns what pydantic found into one sentence: where, which value, and what would have worked."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from llmsim.config.cluster_file.json_positions import Location, field_path
from llmsim.config.cluster_file.loading import Document
from llmsim.config.constraints import shown
from llmsim.config.errors import InputError, UnknownKeyError, nearest
from llmsim.config.schema import schema_at, shared_schema

_OTHER_NAMES = {
    "expert_parallel_size": "ep_size",
    "num_gpus": "num_npus",
    "gpu": "hardware",
    "gpu_mem": "npu_mem",
    "bandwidth": "mem_bw",
    "capacity": "mem_size",
    "num_gpu_blocks": "num_gpu_blocks_override",
    "quantization": "dtype",
}
"""Keys that other tools use for what this file calls otherwise; spelling alone would not find them.
"""


def input_error(
    error: ValidationError,
    document: Document,
    schema: dict[str, Any] | None = None,
    inside: Location = (),
) -> InputError:
    """The first problem of a cluster file, or of another file by its `schema`; `inside` is where
    the validated part stands. Unknown keys come first, for they often explain a missing one.
    """
    found = _independent(error.errors(include_url=False))
    problems = [{**problem, "loc": (*inside, *problem["loc"])} for problem in found]
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    sentence = _sentence(problems[0], document, schema or shared_schema())
    others = len(problems) - 1
    more = f" (and {others} more problem{'s' * (others > 1)})" if others else ""
    location = _location(problems[0], document)
    kind = UnknownKeyError if problems[0]["type"] == "extra_forbidden" else InputError
    return kind(
        sentence + more,
        file=document.name,
        field=field_path(location),
        value=_given_at(document.data, location),
    )


def option_error(error: ValidationError, position: Callable[[str], str]) -> InputError:
    """The first problem of the command line's engine options; `position` turns an option's name
    into what was typed.
    """
    problem: Any = error.errors(include_url=False)[0]
    broken = problem["type"] == "broken_rule"
    name, *rest = (*problem["loc"], *problem["ctx"]["field"]) if broken else problem["loc"]
    inside = field_path(tuple(rest))
    where = position(str(name)) + ("." if inside and not inside.startswith("[") else "") + inside
    if broken:
        return InputError(f"{where} {problem['ctx']['sentence']}")
    schema = shared_schema()
    if problem["type"] == "extra_forbidden":
        return InputError(
            f"{where} is not a known key{_known_keys(('engine', *problem['loc']), schema)}"
        )
    expected = expectation(schema_at(schema, ("engine", *problem["loc"])))
    if problem["type"] == "missing":
        return InputError(f"{where} is missing; expected {expected}")
    return InputError(f"{where} is {shown(problem['input'])}; expected {expected}")


def _independent(problems: list[Any]) -> list[Any]:
    """Without the lists that are "too short" only because an entry of theirs failed."""
    locations = [problem["loc"] for problem in problems]
    return [
        problem
        for problem in problems
        if problem["type"] != "too_short"
        or not any(other[: len(problem["loc"])] == problem["loc"] != other for other in locations)
    ]


def _location(problem: Any, document: Document) -> Location:
    inside = problem["ctx"]["field"] if problem["type"] == "broken_rule" else ()
    return _in_file((*problem["loc"], *inside), document.data)


def _sentence(problem: Any, document: Document, schema: dict[str, Any]) -> str:
    location = _location(problem, document)
    if problem["type"] == "broken_rule":
        return f"{document.position(location)} {problem['ctx']['sentence']}"
    if not location:
        return (
            f"{document.name}: the file holds {shown(document.data)}; expected "
            f"{expectation(schema)}"
        )
    position = document.position(location)
    if problem["type"] == "extra_forbidden":
        return f"{position} is not a known key{_known_keys(location, schema)}"
    expected = expectation(schema_at(schema, location))
    if problem["type"] == "missing":
        return f"{position} is missing; expected {expected}"
    found = (
        problem["input"]
        if location == tuple(problem["loc"])
        else _value_at(document.data, location)
    )
    return f"{position} is {shown(found)}; expected {expected}"


def _in_file(location: Location, data: Any) -> Location:
    """Cuts what the model adds to a path: the index of a single number where a list may stand, the
    mark of a key, the name of one of several types.
    """
    kept: list[str | int] = []
    for part in location:
        in_its_place = isinstance(data, list if isinstance(part, int) else dict | None)
        if part == "[key]" or not in_its_place:
            break
        kept.append(part)
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
    return tuple(kept)


def _value_at(data: Any, location: Location) -> Any:
    for part in location:
        data = data[part]
    return data


def _given_at(data: Any, location: Location) -> Any:
    """The value at a location; None where the file gives none."""
    try:
        return _value_at(data, location)
    except (KeyError, IndexError, TypeError):
        return None


def _known_keys(location: Location, schema: dict[str, Any]) -> str:
    word = str(location[-1])
    known = list(schema_at(schema, location[:-1]).get("properties", {}))
    if _OTHER_NAMES.get(word) in known:
        return f' (did you mean "{_OTHER_NAMES[word]}"?)'
    suggestion = nearest(word, known)
    if suggestion:
        return suggestion
    if len(known) <= 12:
        return f"; known here: {', '.join(known)}"
    return "; remove it, or look it up in the JSON Schema of the cluster file"


_SHOWN_FIELDS = 20
_TYPE_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
}


def expectation(node: dict[str, Any]) -> str:
    """What a schema node accepts, in words: "a number from 0 to 1, in ns (Latency of
    one access.)".
    """
    kind = str(node.get("type", "value"))
    if "enum" in node or "const" in node:
        words = "one of " + ", ".join(
            shown(value) for value in node.get("enum", [node.get("const")])
        )
    elif "expected" in node:
        words = str(node["expected"])
    elif kind == "array":
        words = (
            f"a list of {node.get('minItems', 0)} to {node['maxItems']} entries"
            if "maxItems" in node
            else "a list"
        )
    elif kind == "object":
        required = list(node.get("required", node.get("properties", {})))
        required += [name for name in ("nodes",) if {"required": [name]} in node.get("anyOf", ())]
        more = (
            f", ... ({len(required) - _SHOWN_FIELDS} more)" if len(required) > _SHOWN_FIELDS else ""
        )
        words = (
            f"an object with {', '.join(required[:_SHOWN_FIELDS])}{more}"
            if required
            else "an object"
        )
    else:
        words = _TYPE_NAMES.get(kind, kind) + _range(node)
    if "unit" in node:
        words += f", in {node['unit']}"
    if node.get("or_list"):
        words += ", or a list of such numbers"
    description = str(node.get("description", ""))
    return f"{words} ({description.rstrip('.')})" if description and kind != "object" else words


def _range(node: dict[str, Any]) -> str:
    low = f"from {_number(node['minimum'])}" if "minimum" in node else ""
    if "exclusiveMinimum" in node:
        low = f"above {_number(node['exclusiveMinimum'])}"
    high = f"to {_number(node['maximum'])}" if "maximum" in node else ""
    if "exclusiveMaximum" in node:
        high = f"below {_number(node['exclusiveMaximum'])}"
    return "".join(f" {part}" for part in (low, high) if part)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"
