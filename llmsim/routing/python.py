"""Finds, makes and guards routers written in Python, so that what is wrong with one is said in one sentence."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from llmsim.config.errors import InputError, LlmsimError, nearest
from llmsim.routing.base import GroupView, RequestView, Router

GROUP = "llmsim.routers"


@cache
def entry_points() -> Mapping[str, EntryPoint]:
    """Routers that installed packages offer, by name."""
    from importlib.metadata import entry_points as installed

    return {point.name: point for point in installed(group=GROUP)}


def create(name: str, given: Mapping[str, str]) -> Router:
    """An object of the class; options become its keyword arguments, as int or float where they look like one.

    Raises InputError naming the class when it cannot be found, made, or has no method `route`.
    """
    kind = _from_module(name) if ":" in name else _from_entry_point(name)
    if not callable(kind):
        raise InputError(f"router {name} is not a class")
    try:
        router: Any = kind(**{key: _value(text) for key, text in given.items()})
    except LlmsimError:
        raise
    except Exception as error:
        options = f" with {', '.join(f'{key}={value}' for key, value in given.items())}" if given else ""
        raise InputError(f"router {name} cannot be made{options}: {_said(error)}") from error
    if not callable(getattr(router, "route", None)):
        raise InputError(f"router {name} has no method route(request, groups), which chooses a group's index")
    return router  # type: ignore[no-any-return]


def _from_module(name: str) -> object:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError(f'router "{name}" is not module:Class, such as my_module:MyRouter')
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` does: the user's file lies where the user is
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise InputError(f"router {name}: {module_name} cannot be imported: {_said(error)}") from error
        raise InputError(
            f"router {name}: there is no module {module_name} in {os.getcwd()} or on Python's path"
        ) from None
    except Exception as error:
        raise InputError(f"router {name}: {module_name} cannot be imported: {_said(error)}") from error
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise InputError(f"router {name}: {module_name} has no {attribute}{nearest(attribute, classes)}")
    return getattr(module, attribute)


def _from_entry_point(name: str) -> object:
    point = entry_points()[name]
    try:
        return point.load()
    except Exception as error:
        raise InputError(f"router {name} (entry point {point.value}) cannot be imported: {_said(error)}") from error


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _said(error: BaseException) -> str:
    """An exception on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")


def guarded(router: Router, name: str) -> Callable[[RequestView, Sequence[GroupView]], int]:
    """`router.route`, whose exceptions become an InputError that names the router and the request."""
    route = router.route

    def call(request: RequestView, groups: Sequence[GroupView]) -> int:
        try:
            return route(request, groups)
        except LlmsimError:
            raise
        except Exception as error:
            raise InputError(f"router {name} failed at request {request.row}: {_said(error)}") from error

    return call
