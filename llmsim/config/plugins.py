"""Finds, makes and guards policies written in Python, so that what is wrong with one is said in one
sentence.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from llmsim.config import plugin_calls
from llmsim.config.errors import InputError, LlmsimError, PluginRefused, nearest
from llmsim.config.files import input_files
from llmsim.config.plugin_calls import defined_at, foreign_code, in_library, said

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_ALLOWED: ContextVar[bool] = ContextVar("llmsim_plugins_allowed", default=True)


class Kind(Struct, frozen=True):
    """One sort of policy: what messages call it, where packages offer it, and the methods that it
    must have.
    """

    word: str
    """"router", "queue order", ..."""
    option: str
    """The command line's."""
    group: str
    """Of entry points."""
    methods: Mapping[str, str]
    """Name -> how to write it and what it does, as "route(request, groups), which chooses a group's
    index".
    """
    example: str
    """An option's value, for messages."""

    def position(self, thing: object, sentence: str = "") -> str:
        """`file:line` of the method that a sentence names, else of the first method of the
        protocol.
        """
        named = [method for method in self.methods if f"{method}(" in sentence]
        return defined_at(getattr(thing, (named or list(self.methods))[0], None))


@contextmanager
def plugins_allowed(allowed: bool) -> Iterator[None]:
    """Whether plug-ins run within the block; where they do not, naming one is an InputError."""
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def entry_points(group: str) -> "Mapping[str, EntryPoint]":
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


class Maker(Struct, frozen=True, eq=False):
    """Makes objects of a class that was found; the first one may be made early, to find errors
    before the run.
    """

    kind: Kind
    name: str
    given: Mapping[str, str]
    _made: list[Any] = field(default_factory=list)

    def __call__(self, *arguments: object) -> Any:
        """A fresh object."""
        if self._made and not arguments:
            return self._made.pop()
        return create(self.kind, self.name, self.given, *arguments)

    def try_early(self) -> None:
        """Makes the first object, which the first call returns."""
        self._made.append(create(self.kind, self.name, self.given))

    def check_arguments(self, *arguments: object) -> None:
        """Raises InputError where the class does not take these arguments and the options; nothing
        is made.
        """
        _check_arguments(self.kind, self.name, found(self.kind, self.name), self.given, *arguments)


def parse_class(kind: Kind, text: str) -> tuple[str, Maker]:
    """(name, maker) of `module:Class[:key=value,...]`, or of an entry point; what is wrong with it
    is found here.

    The maker takes positional arguments of the kind and makes a fresh object.
    """
    name, given = split_options(kind.option, text, kind.example)
    if ":" not in name and name not in entry_points(kind.group):
        points = entry_points(kind.group)
        raise InputError(
            f'{kind.option} is "{name}"{nearest(name, points)}; it may be a class such as '
            "my_module:MyClass, or an "
            f'entry point of the group "{kind.group}" ({", ".join(points) or "none is installed"})'
        )
    found(kind, name)
    return name, Maker(kind, name, given)


def found(kind: Kind, name: str) -> type[Any]:
    """The class; raises InputError naming it when it cannot be found or lacks a method. Nothing of
    it is called.
    """
    if not _ALLOWED.get():
        raise PluginRefused(
            f"{kind.option} {name} is a Python plug-in that a file names; give --allow-plugins to "
            f"run its code, or name a built-in {kind.word}"
        )
    before = set(sys.modules)
    with foreign_code():
        thing = _from_module(kind, name) if ":" in name else _from_entry_point(kind, name)
    _note_sources(before, getattr(thing, "__module__", None))
    if not isinstance(thing, type):
        raise InputError(
            f"{kind.word} {name} is not a class but a {type(thing).__name__}; name a class with "
            f"the method {next(iter(kind.methods.values()))}"
        )
    for method, meaning in kind.methods.items():
        if not callable(getattr(thing, method, None)):
            raise InputError(f"{kind.word} {name} has no method {meaning}")
    return thing


def _note_sources(before: set[str], module: str | None) -> None:
    """Records the source of the plug-in and of the modules that it imports, but for those of
    libraries.
    """
    package = (module or "").partition(".")[0]
    for name, loaded in list(sys.modules.items()):
        path = getattr(loaded, "__file__", None)
        if not path or not isinstance(path, str):
            continue
        of_plugin = name.partition(".")[0] == package
        if of_plugin or (name not in before and not in_library(os.path.abspath(path))):
            input_files.note(path)


def create(kind: Kind, name: str, given: Mapping[str, str], *arguments: object) -> Any:
    """An object of the class; options become its keyword arguments, as int or float where they look
    like one.

    Raises InputError naming the class when it cannot be found, made, or lacks a method.
    """
    make = found(kind, name)
    try:
        with foreign_code():
            return make(*arguments, **_options(given))
    except LlmsimError:
        raise
    except Exception as error:
        raise InputError(
            f"{kind.word} {name} cannot be made{_with(given)}: {said(error)}"
        ) from error


def _check_arguments(
    kind: Kind, name: str, make: type[Any], given: Mapping[str, str], *arguments: object
) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # a class of an extension module need not have one
        return
    try:
        signature.bind(*arguments, **_options(given))
    except TypeError as error:
        position = defined_at(make.__init__)
        where = f" ({position})" if position else ""
        raise InputError(
            f"{kind.word} {name} cannot be made{_with(given)}: {said(error)}{where}"
        ) from error


def _options(given: Mapping[str, str]) -> dict[str, int | float | str]:
    return {key: _value(text) for key, text in given.items()}


def _with(given: Mapping[str, str]) -> str:
    return f" with {', '.join(f'{key}={value}' for key, value in given.items())}" if given else ""


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
            raise InputError(
                f"{kind.word} {name}: {module_name} cannot be imported: {said(error)}"
            ) from error
        raise InputError(
            f"{kind.word} {name}: there is no module {module_name} in {os.getcwd()} or on "
            "Python's path"
        ) from None
    except Exception as error:
        raise InputError(
            f"{kind.word} {name}: {module_name} cannot be imported: {said(error)}"
        ) from error
    if not hasattr(module, attribute):
        classes = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise InputError(
            f"{kind.word} {name}: {module_name} has no {attribute}{nearest(attribute, classes)}; "
            f"its classes are {', '.join(classes) or 'none'}"
        )
    return getattr(module, attribute)


def _from_entry_point(kind: Kind, name: str) -> object:
    point = entry_points(kind.group)[name]
    try:
        return point.load()
    except Exception as error:
        raise InputError(
            f"{kind.word} {name} (entry point {point.value}) cannot be imported: {said(error)}"
        ) from error


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def guarded(kind: Kind, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a policy, whose exceptions become an InputError that names the policy."""
    return plugin_calls.guarded(f"{kind.word} {name}", method)
