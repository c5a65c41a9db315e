"""Finds, makes and guards routers written in Python, so that what is wrong with one is said in one
sentence.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from llmsim.config import plugins
from llmsim.config.errors import InputError, LlmsimError
from llmsim.config.plugin_calls import hold, said
from llmsim.routing.base import GroupView, RequestView, Router

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KIND = plugins.Kind(
    word="router",
    option="--request-routing-policy",
    group="llmsim.routers",
    methods={"route": "route(request, groups), which chooses a group's index"},
    example="PREFIX:weight=8,delay_ms=50",
)


@cache
def entry_points() -> "Mapping[str, EntryPoint]":
    """Routers that installed packages offer, by name."""
    return plugins.entry_points(KIND.group)


def maker(name: str, given: Mapping[str, str]) -> plugins.Maker:
    """Makes a router for a run; options become keyword arguments, as int or float where they look
    like one.

    Raises InputError naming the class when it cannot be found, made, or has no method `route`.
    """
    make = plugins.Maker(KIND, name, given)
    make.try_early()
    return make


def position(name: str) -> str:
    """`file:line` of the method `route`."""
    return KIND.position(plugins.found(KIND, name))


def guarded(router: Router, name: str) -> Callable[[RequestView, Sequence[GroupView]], int]:
    """`router.route`, whose exceptions become an InputError that names the router and
    the request.
    """
    held = hold(router.route)

    def call(request: RequestView, groups: Sequence[GroupView]) -> int:
        try:
            index: int = held[0](request, groups)
            return index
        except LlmsimError:
            raise
        except Exception as error:
            raise InputError(
                f"router {name} failed at request {request.row}: {said(error)}"
            ) from error

    return call
