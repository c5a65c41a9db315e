"""Finds, makes and guards policies written in Python, so that what is wrong with one is said in one sentence."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

from llmsim.config.errors import InputError, LlmsimError, nearest


@dataclass(frozen=True)
class Kind:
    """One sort of policy: what messages call it, where packages offer it, and the methods that it must have."""

    word: str
    """"router", "queue order", ..."""
    option: str
    """The command line's."""
    group: str
    """Of entry points."""
    methods: Mapping[str, str]
    """Name -> how to write it and what it does, as "route(request, groups), which chooses a group's index"."""
    example: str
    """An option's value, for messages."""


def entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Policies that installed packages offer, by name."""
    from importlib.metadata import entry_points as installed

    return {point.name: point for point in installed(group=group)}


def split_options(option: str, text: str, example: str) -> tuple[str, dict[str, str]]:
    """The name, and the key=value pairs behind its last colon."""
    name, colon, tail = text.rpartition(":")
    if not colon or "=" not in tail:
        return text, {}
    given: dict[str, str] = {}
    for part in tail.split(","):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise InputError(f'{option} {text}: "{part}" is not key=value; an example is {example}')
        if key in given:
            raise InputError(f'{option} {text}: "{key}" is given twice')
        given[key] = value
    return name, given


def parse_class(kind: Kind, text: str) -> tuple[str, Callable[..., Any]]:
    """(name, maker) of `module:Class[:key=value,...]`, or of an entry point; what is wrong with it is found here.

    The maker takes positional arguments of the kind and makes a fresh object.
    """
    name, given = split_options(kind.option, text, kind.example)
    if ":" not in name and name not in entry_points(kind.group):
        points = entry_points(kind.group)
        raise InputError(
            f'{kind.option} is "{name}"{nearest(name, points)}; it may be a class such as my_module:MyClass, or an '
            f'entry point of the group "{kind.group}" ({", ".join(points) or "none is installed"})'
        )
    found(kind, name)
    return name, partial(create, kind, name, given)


def found(kind: Kind, name: str) -> Callable[..., Any]:
    """The class; raises InputError naming it when it cannot be found."""
    thing = _from_module(kind, name) if ":" in name else _from_entry_point(kind, name)
    if not callable(thing):
        raise InputError(f"{kind.word} {name} is not a class")
    return thing


def create(kind: Kind, name: str, given: Mapping[str, str], *arguments: object) -> Any:
    """An object of the class; options become its keyword arguments, as int or float where they look like one.

    Raises InputError naming the class when it cannot be found, made, or lacks a method.
    """
    make = found(kind, name)
    try:
        made = make(*arguments, **{key: _value(text) for key, text in given.items()})
    except LlmsimError:
        raise
    except Exception as error:
        options = f" with {', '.join(f'{key}={value}' for key, value in given.items())}" if given else ""
        raise InputError(f"{kind.word} {name} cannot be made{options}: {said(error)}") from error
    for method, meaning in kind.methods.items():
        if not callable(getattr(made, method, None)):
            raise InputError(f"{kind.word} {name} has no method {meaning}")
    return made


def _from_module(kind: Kind, name: str) -> object:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError(f'{kind.word} "{name}" is not module:Class, such as my_module:MyClass')
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` does: the user's file lies where the user is
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise InputError(f"{kind.word} {name}: {module_name} cannot be imported: {said(error)}") from error
        raise InputError(
            f"{kind.word} {name}: there is no module {module_name} in {os.getcwd()} or on Python's path"
        ) from None
    except Exception as error:
        raise InputError(f"{kind.word} {name}: {module_name} cannot be imported: {said(error)}") from error
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise InputError(f"{kind.word} {name}: {module_name} has no {attribute}{nearest(attribute, classes)}")
    return getattr(module, attribute)


def _from_entry_point(kind: Kind, name: str) -> object:
    point = entry_points(kind.group)[name]
    try:
        return point.load()
    except Exception as error:
        raise InputError(f"{kind.word} {name} (entry point {point.value}) cannot be imported: {said(error)}") from error


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def said(error: BaseException) -> str:
    """An exception on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")


def guarded(kind: Kind, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a policy, whose exceptions become an InputError that names the policy."""

    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except LlmsimError:
            raise
        except Exception as error:
            raise InputError(f"{kind.word} {name} failed: {said(error)}") from error

    return call
