"""Switches of layouts that a class in Python decides."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from llmsim.config.errors import InputError, nearest
from llmsim.config.plugins import Kind, Maker, guarded, parse_class

Decision = Callable[[int, Sequence[tuple[int, int]]], int]
"""(now_ps, (running, waiting) of each group) -> number of a layout; -1: none."""

RECONFIGURE = Kind(
    "reconfiguration", "decide", "llmsim.reconfigurations",
    {"decide": "decide(now_ps, groups), which names a layout or None"},
    "my_module:MyReconfigure:below=64",
)  # fmt: skip


class GroupLoad(NamedTuple):
    """How many requests run and wait in a group of the layout that serves."""

    running: int
    waiting: int


class Reconfigure(Protocol):
    """Decides which layout serves; one object per run, asked whenever a step ends and no trigger of
    the cluster file is met.
    """

    def decide(self, now_ps: int, groups: Sequence[GroupLoad]) -> str | None:
        """The layout that takes over; None, or the one that serves: nothing changes."""


def parse_reconfigure(text: str) -> Maker:
    """Finds the class and makes the first object; raises InputError for what is wrong with it."""
    _, maker = parse_class(RECONFIGURE, text)
    maker.try_early()
    return maker


def decision(maker: Maker, layouts: Sequence[str]) -> Decision:
    """Asks a fresh object of the class; raises InputError where it names no layout."""
    ask = guarded(RECONFIGURE, maker.name, maker().decide)
    numbers = {name: number for number, name in enumerate(layouts)}

    def decide(now_ps: int, groups: Sequence[tuple[int, int]]) -> int:
        chosen = ask(now_ps, [GroupLoad(*one) for one in groups])
        if chosen is None:
            return -1
        if chosen not in numbers:
            raise InputError(
                f"reconfiguration {maker.name}: decide(...) gave {chosen!r}"
                f"{nearest(str(chosen), numbers)}; it may be None or {', '.join(numbers)}"
            )
        return numbers[chosen]

    return decide
