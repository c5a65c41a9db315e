"""Reads the files of searches and studies; what is wrong with one is said by line or by field."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from llmsim.config.constraints import shown
from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files

Kind = TypeVar("Kind", bound=Struct)
Steps = tuple[str | int, ...]
ANY = "[...]"
"""What msgspec says for the key of a mapping."""
TYPES = {
    "int": "a whole number",
    "int | float": "a number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
}
"""What JSON's types are called in sentences."""


class Form(Struct, frozen=True):
    """What a kind of file holds, for the sentences about it."""

    sections: Mapping[str, type[Struct]]
    """Types of the objects by the field that holds them, `*` for any key; "": the whole."""
    examples: Mapping[str, str]
    """What a field may be, by its path, `*` for any key."""
    mappings: tuple[str, ...]
    """Fields whose keys are the user's."""
    page: str
    """Where a whole file is."""


def read_json_or_yaml(path: Path) -> Any:
    """What a JSON or YAML file holds; InputError where it cannot be read or is neither."""
    try:
        text = input_files.read_text(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})", file=str(path)
        ) from None
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            where = f"{path}:{error.lineno}:{error.colno}"
            raise InputError(f"{where}: not valid JSON ({error.msg}); correct the line") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not valid JSON ({error})", file=str(path)) from None
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise InputError(_broken_yaml(path, error)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(
            f"{path}: not valid YAML ({' '.join(str(error).split())})", file=str(path)
        ) from None


def _broken_yaml(path: Path, error: Any) -> str:
    """Line, column and problem, and where what is broken begins."""
    mark, begin = error.problem_mark or error.context_mark, error.context_mark
    where = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
    begun = "" if begin is None else f" {error.context} from line {begin.line + 1}"
    return f"{path}{where}: not valid YAML ({error.problem}{begun}); correct the line"


def converted(path: Path, data: Any, kind: type[Kind], form: Form) -> Kind:
    """The data as a type; InputError names the field, its value, and what would have worked."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        steps = _named(data, kind, str(error))
        sentence = _sentence(data, steps, str(error), form)
        raise InputError(f"{path}: {sentence}", file=str(path), field=_path(steps)) from None
    except UnicodeEncodeError:
        raise InputError(
            f"{path}: a key or a text holds one half of a surrogate pair, which is no character",
            file=str(path),
        ) from None


def _sentence(data: Any, steps: Steps, said: str, form: Form) -> str:
    """What an error of msgspec says about the field at `steps`."""
    field, pattern = _path(steps), _pattern(steps, form)
    if unknown := re.search(r"unknown field `(.*?)`", said):
        section = form.sections.get(pattern)
        known = [one.encode_name for one in msgspec.structs.fields(section)] if section else []
        name = _path((*steps, unknown[1]))
        near = nearest(unknown[1], known) or f"; known here: {', '.join(known)}"
        return f"unknown field {name}{near}; {form.page}"
    if missing := re.search(r"missing required field `(.*?)`", said):
        absent = (*steps, missing[1])
        example = form.examples.get(_pattern(absent, form), "")
        return f"{_path(absent)} is missing{f'; give {example}' if example else ''}; {form.page}"
    value = _value_at(data, steps)
    wanted = form.examples.get(pattern) or _expected(said)
    if "`key`" in said or not wanted:
        return f"{said.replace('`', '')}; {form.page}"
    return f"{field or 'the file'} is {shown(value)}; give {wanted}; {form.page}"


def _expected(said: str) -> str:
    """The types that an error asks for, in words; empty where it names none."""
    found = re.match(r"Expected `(.*?)`", said)
    if found is None:
        return ""
    names = [found[1]] if found[1] in TYPES else found[1].split(" | ")
    return " or ".join(TYPES.get(name, name) for name in names)


def _named(data: Any, kind: type[Struct], said: str) -> Steps:
    """The place that an error names, with the key where msgspec says that it is any."""
    found = re.search(r" - at `\$(.*?)`$", said)
    steps: list[str | int] = []
    for key, index in re.findall(r"\.([^.\[\]]+)|(\[(?:\d+|\.\.\.)\])", found[1] if found else ""):
        if index == ANY:
            inside = _value_at(data, steps)
            keys = list(inside) if isinstance(inside, dict) else []
            failing = (one for one in keys if _fails(data, kind, said, (*steps, one)))
            steps.append(next(failing, "*"))
        else:
            steps.append(key or int(index[1:-1]))
    return tuple(steps)


def _fails(data: Any, kind: type[Struct], said: str, steps: Steps) -> bool:
    """Whether the same error stays where a mapping has but the last key of the path."""
    try:
        msgspec.convert(_with_one_key(data, steps), kind)
    except msgspec.ValidationError as error:
        return str(error) == said
    return False


def _with_one_key(data: Any, steps: Steps) -> Any:
    """The data, whose mapping above the last step has that key alone."""
    first, *rest = steps
    if not rest:
        return {first: data[first]}
    inside = _with_one_key(data[first], tuple(rest))
    if isinstance(data, list):
        return [inside if i == first else one for i, one in enumerate(data)]
    return {**data, first: inside}


def _value_at(data: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _path(steps: Sequence[str | int]) -> str:
    """`minimise[0]`, `vary.--max-num-seqs`."""
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in steps).lstrip(".")


def _pattern(steps: Sequence[str | int], form: Form) -> str:
    """The path by which a form knows a field: keys of a user's own as `*`, without indices."""
    found = ""
    for one in steps:
        if isinstance(one, str):
            found = f"{found}.{'*' if found in form.mappings else one}".lstrip(".")
    return found
