"""The servers that a request may be sent to, and how the proxy chooses one of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmsim import _native

CHOICES = ("RR", "LOR")
"""Routers that need no more than what a proxy knows: in turn, and fewest outstanding requests."""


@dataclass(frozen=True)
class Door:
    """A server."""

    port: int
    api_ps: Sequence[int]
    """By row, what a request takes before the engine sees it."""
    group: int = 0
    """The number of its engine core."""
    rank: int | None = None
    """The data-parallel rank that requests ask for; None: the server chooses."""
    leaving_ps: int = 0
    """What passes before the engine hears that a client has given up."""
    api_server: "_native.ApiServerConfig | None" = None
    """What its API server works; None: `api_ps` is all that a request takes."""


class Stage:
    """The servers of which a request passes one; those of stages before the last one compute
    prompts alone.
    """

    def __init__(self, doors: Sequence[Door], router: str = "RR") -> None:
        """`router`: one of `CHOICES`."""
        self.doors = tuple(doors)
        self._router = router
        self._turn = 0
        self._outstanding = [0] * len(self.doors)

    def choose(self) -> int:
        """The number of the door for the next request, which counts until it has `left`."""
        number = self._next()
        self._outstanding[number] += 1
        return number

    def left(self, number: int) -> None:
        """A request of that door has its answer."""
        self._outstanding[number] -= 1

    def _next(self) -> int:
        if self._router == "LOR":
            return self._outstanding.index(min(self._outstanding))
        self._turn += 1
        return (self._turn - 1) % len(self.doors)
