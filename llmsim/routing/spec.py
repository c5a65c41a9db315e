"""Reads `--request-routing-policy`: NAME[:key=value,...] or module:Class[:key=value,...]."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field

from llmsim.config.errors import InputError, nearest
from llmsim.config.plugins import split_options
from llmsim.core import Int32, Workload
from llmsim.routing.base import Router

if TYPE_CHECKING:
    from llmsim import _native

OPTION = "--request-routing-policy"
OLD_NAMES = ("LOAD", "RR", "RAND")
"""LLMServingSim's; errors list them last, where people look."""


class RouterSpec(Struct, frozen=True):
    """A checked routing policy: a native router by name, or one written in Python."""

    text: str = "LOAD"
    name: str = "LOAD"
    options: Mapping[str, float] = field(default_factory=dict)
    """Of a native router; those not given have its defaults."""
    python: Callable[[], Router] | None = None
    """Makes a fresh one for a run."""

    @property
    def reads_caches(self) -> bool:
        """Whether it hears what the prefix caches of groups hold."""
        weighs_caches = self.name == "WEIGHTED" and self.options.get("prefix", 1) > 0
        return self.python is None and (self.name == "PREFIX" or weighs_caches)

    def position(self) -> str:
        """`file:line` of a router written in Python; empty for a native one."""
        if self.python is None:
            return ""
        from llmsim.routing import python

        return python.position(self.name)

    def native(self, seed: int, models: Sequence[str], workload: Workload) -> "_native.RouterMaker":
        """What makes the simulation's router, of arrivals or of decode groups.

        `models` are the deployment's names, `seed` that of random routers.
        """
        from llmsim import _native

        if self.python is None:
            session = session_numbers(workload) if self.name == "SESSION" else np.empty(0, np.int32)
            return _native.native_router(self.name, seed, dict(self.options), session)
        from llmsim.routing.python import guarded

        route = guarded(self.python(), self.name)
        return _native.python_router(route, session_names(workload), tuple(models))


_USUAL_NAMES = {
    **dict.fromkeys(("ROUND_ROBIN", "ROUNDROBIN"), "RR"),
    "RANDOM": "RAND",
    **dict.fromkeys(
        ("LEAST_LOADED", "LEAST_REQUESTS", "LEAST_REQUEST", "LEAST_OUTSTANDING", "LEAST_CONN"),
        "LOR",
    ),
    **dict.fromkeys(("POWER_OF_TWO", "POWER_OF_TWO_CHOICES"), "P2C"),
    **dict.fromkeys(("CACHE_AWARE", "PREFIX_AWARE", "KV_AWARE", "PREFIX_CACHE_AWARE"), "PREFIX"),
    **dict.fromkeys(("CONSISTENT_HASH", "STICKY", "SESSION_AFFINITY"), "SESSION"),
}
"""What vllm-router, SGLang's router, Dynamo and load balancers call such policies."""


def parse_router(text: str, option: str = OPTION) -> RouterSpec:
    """Raises InputError saying what is known for an unknown name, option or value, and for a class
    that does not work.

    Names of native routers are not case-sensitive. A name with a colon is a class, any other that
    is not native an entry point of the group "llmsim.routers".
    """
    name, given = split_options(option, text, "PREFIX:weight=8,delay_ms=50")
    if ":" not in name and (spec := _native_router(option, text, name.upper(), given)) is not None:
        return spec
    if name.upper() == "CUSTOM":
        raise InputError(
            f"{option} CUSTOM: name the class of your router, as in {option} my_module:MyRouter"
        )
    from llmsim.routing.python import entry_points, maker

    if ":" not in name and name not in entry_points():
        known = native_names()
        usual = _USUAL_NAMES.get(name.upper().replace("-", "_"))
        if usual is not None:
            raise InputError(
                f'{option} is "{name}"; it is called {usual} here (docs/reference/routers.md)'
            )
        listed = f"{', '.join(known[:-1])} or {known[-1]}"
        near = nearest(name.upper(), known) or nearest(name, entry_points())
        raise InputError(
            f'{option} is "{name}"{near}; it may be {listed}, a class such as '
            "my_module:MyRouter, or an entry point of "
            f'the group "llmsim.routers" ({", ".join(entry_points()) or "none is installed"})'
        )
    return RouterSpec(text=text, name=name, python=maker(name, given))


def native_names() -> list[str]:
    """Names of the native routers, the old ones last."""
    from llmsim import _native

    return [kind.name for kind in _native.router_kinds() if kind.name not in OLD_NAMES] + list(
        OLD_NAMES
    )


def _native_router(
    option: str, text: str, name: str, given: Mapping[str, str]
) -> RouterSpec | None:
    from llmsim import _native

    kind = next((kind for kind in _native.router_kinds() if kind.name == name), None)
    if kind is None:
        return None
    known = {one.name: one for one in kind.options}
    values = {}
    for key, value in given.items():
        if key not in known:
            has = f"{name} has {', '.join(known)}" if known else f"{name} has no options"
            raise InputError(f'{option} {text}: unknown option "{key}"{nearest(key, known)}; {has}')
        number, low, high = _number(value), known[key].low, known[key].high
        if not low <= number <= high:
            raise InputError(
                f"{option} {text}: {key} is {value}, but must be a number from {low:g} to {high:g}"
            )
        values[key] = number
    return RouterSpec(text=text, name=name, options=values)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def session_names(workload: Workload) -> list[str] | None:
    """Each row's session, "" where it has none; None when no row has one. Unnamed sessions are
    named after a row.
    """
    if workload.session_id is not None:
        return workload.session_id
    if not (workload.next_call >= 0).any():
        return None
    names = [""] * len(workload)
    for row, following in enumerate(workload.next_call.tolist()):
        if following >= 0:
            names[row] = names[row] or f"session-of-{row}"
            names[following] = names[row]
    return names


def kept_sessions(workload: Workload) -> Int32 | None:
    """Number of each row's session where that has hidden rounds, else -1, shape (requests,); None
    where no session has any.

    Such sessions stay in one group, so that each round finds the context of the rounds before.
    """
    from llmsim import _native

    if workload.hidden is None or not workload.hidden.any():
        return None
    session = _native.Sessions(workload.next_call).session
    reasons = np.zeros(len(workload), np.bool_)
    reasons[session[workload.hidden]] = True
    return np.where(reasons[session], session, -1).astype(np.int32)


def session_numbers(workload: Workload) -> Int32:
    """Number of each row's session from 0, or -1 where it has none, shape (requests,); empty when
    no row has one.
    """
    names = session_names(workload)
    if names is None:
        return np.empty(0, np.int32)
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(name, len(numbers)) if name else -1 for name in names], np.int32
    )
