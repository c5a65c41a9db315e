"""Values of options as Python callers give them: checked by type, and as the command line has them.

Options of engines are checked where their table is; these are the others.
"""

import sys
import types
from collections.abc import Mapping
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from llmsim.api.checked.given import Given
from llmsim.config.errors import InputError


def option_value(name: str, value: Any) -> Any:
    """The value of an option of `Given`, in its declared type; raises InputError for another type.

    A class stands for its `module:Class`, a number for its text, one text for a list of texts, and
    a mapping for pairs such as `ttft:500`.
    """
    return typed(name, value, _declared()[name])


def typed(name: str, value: Any, kind: Any) -> Any:
    """The value as one of the kinds that options have; raises InputError for another type."""
    read = _READERS[kind](value)
    if read is None:
        raise InputError(
            f"{name} is {_shown(value)}; give {_EXPECTED[kind]}", field=name, value=value
        )
    return read


def check_kinds(kinds: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises InputError for a value of `given` that is not of its kind; None is of every kind."""
    for name, kind in kinds.items():
        if given[name] is not None:
            typed(name, given[name], kind)


def class_name(value: Any) -> Any:
    """`module:Class` of a class; other values as they are. Raises InputError for a class that its
    module does not hold by its name, such as one within a function.
    """
    if not isinstance(value, type):
        return value
    module, name = value.__module__, value.__name__
    if getattr(sys.modules.get(module), name, None) is not value:
        raise InputError(
            f"the class {value.__qualname__} is not found as {name} in {module}; define it at the "
            "top level of a module",
            value=value,
        )
    return f"{module}:{name}"


def pairs_text(value: Any) -> Any:
    """A mapping such as {"ttft": 500, "tpot": 30} as `ttft:500,tpot:30`; other values as they
    are.
    """
    if not isinstance(value, Mapping):
        return value
    return ",".join(f"{key}:{one}" for key, one in value.items())


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)[:60]
    return f"a value of type {type(value).__name__}"


@cache
def _declared() -> Mapping[str, Any]:
    """The type of each option without None, by name."""
    return {name: _without_none(kind) for name, kind in get_type_hints(Given).items()}


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    (only,) = (one for one in get_args(kind) if one is not type(None))
    return only


def _text(value: Any) -> str | None:
    value = class_name(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str] | None:
    value = pairs_text(value)
    several = [value] if isinstance(value, str) else value
    is_list = isinstance(several, list | tuple) and all(isinstance(one, str) for one in several)
    return list(several) if is_list else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _switch(value: Any) -> bool | None:
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


def _path(value: Any) -> Path | None:
    return Path(value) if isinstance(value, str | PathLike) else None


def _paths(value: Any) -> list[Path] | None:
    several = [value] if isinstance(value, str | PathLike) else value
    is_list = isinstance(several, list | tuple) and None not in map(_path, several)
    return [Path(one) for one in several] if is_list else None


_READERS = {
    str: _text,
    list[str]: _texts,
    int: _whole,
    float: _number,
    bool: _switch,
    Path: _path,
    list[Path]: _paths,
}
_EXPECTED = {
    str: 'a text, such as one of `llmsim run --help`, or for a plug-in its class or "module:Class"',
    list[str]: 'a text, such as "ttft:500", or a list of texts',
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "the path of a file",
    list[Path]: "a path, or a list of paths",
}
