"""Coordinators of servers with data-parallel engines, before the clock, and what their API servers
say of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llmsim.emulation.in_engine.coordinator import KNOWN, PUBLISHES
from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper, Turn

NOT_UNDER_THE_CLOCK = "the coordinator of the engines is not under the clock"


class Coordinators:
    """Answers the coordinator of each server; a server's name is its first engine core."""

    def __init__(
        self,
        time: Timekeeper,
        lockstep: Sequence[Sequence[int]],
        answer: Callable[[Actor, Any], None],
    ) -> None:
        """`lockstep`: the engine cores of each server whose ranks run in lock-step."""
        self._time, self._answer = time, answer
        self._ranks = {cores[0]: len(cores) for cores in lockstep}
        """By server, how many ranks a message wakes that begins a wave."""
        self._server_of: dict[Actor, int] = {}
        self._looks: dict[Actor, int] = {}
        """The number of the wait of each coordinator that waits."""
        self._publishing: dict[int, Actor] = {}
        """By server, a coordinator that tells the API server something, and waits until that knows
        it.
        """

    def join(self, rest: Sequence[Any]) -> Actor:
        """That of a server is there."""
        actor = self._time.join("the coordinator", Turn.FOLLOWER)
        self._server_of[actor] = rest[0]
        return actor

    def has(self, actor: Actor) -> bool:
        """Whether it is one of them."""
        return actor in self._server_of

    def leaves(self, actor: Actor) -> None:
        """It has ended."""
        self._server_of.pop(actor, None)
        self._looks.pop(actor, None)

    def waits(self, actor: Actor) -> bool:
        """Whether it is a coordinator that waits for its time."""
        return actor in self._looks

    def wake(self, actor: Actor) -> None:
        """Its time has come: it reports what it knows."""
        self._time.reports_under_way += 1
        self._answer(actor, self._looks.pop(actor))

    def hear(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        """It waits, has heard so many reports of engine cores, and has woken all of them so often
        (`START_DP_WAVE`); or it tells the API server something at once.
        """
        server = self._server_of[actor]
        if kind == PUBLISHES:
            self._time.reports_under_way += 1
            self._publishing[server] = actor
            self._answer(actor, PUBLISHES)
            return
        self._looks[actor], until_ps, heard, waves = rest
        self._time.waits(actor, until_ps)
        self._time.reports_under_way -= heard
        self._time.waves_under_way += waves * self._ranks.get(server, 0)

    def hear_api_server(self, kind: str, server: int) -> None:
        """An API server tells the coordinator of a request ("tells"), knows what that has reported
        ("knows"), or which requests have ended ("knows ends"). Raises ValueError where nobody has
        reported.
        """
        if kind == "tells":
            self._time.reports_under_way += 1
        elif kind == "knows ends":
            self._time.ends_under_way -= 1
        else:
            self._is_known(server)

    def _is_known(self, server: int) -> None:
        self._time.reports_under_way -= 1
        if self._time.reports_under_way < 0:
            raise ValueError(NOT_UNDER_THE_CLOCK)
        publishing = self._publishing.pop(server, None)
        if publishing is not None:
            self._answer(publishing, KNOWN)
