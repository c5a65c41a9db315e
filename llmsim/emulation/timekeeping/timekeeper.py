"""The virtual clock of a server and its clients.

Time stands still while anybody works. It moves to the least time that somebody waits for when
everybody waits and no message is under way (Algorithm 1 of the Revati paper, with counts of
messages in place of its cool-down, so that nothing depends on how fast the machine is). After
`degrade`, it goes by the wall clock instead: nobody waits for those that have died.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum

from llmsim.plurals import grouped


class Doing(Enum):
    """What an actor does."""

    WORKS = "works"
    WAITS = "waits"
    """For a time, or (`Actor.until_ps` None) for a message."""
    SETTLES = "settles"
    """Until no message is under way, at the present time."""


class Turn(IntEnum):
    """Who goes on first of those that wait for the same time, as in a run: ends of steps come
    before what clients send, and that before new steps.
    """

    ENGINE = 0
    CLIENT = 1
    THREADS = 2
    """Of clients, beside those that say what they do."""
    FOLLOWER = 3
    """After all that happens at its time. The clock does not move for followers alone."""


@dataclass(eq=False)
class Actor:
    """One of those that the clock waits for: an engine core, the clients, or a coordinator."""

    name: str
    turn: Turn = Turn.ENGINE
    doing: Doing = Doing.WORKS
    until_ps: int | None = None


class Timekeeper:
    """Knows what every actor does; `woken` says who goes on. Actors are woken as they joined."""

    def __init__(self) -> None:
        self.now_ps = 0
        self.jumps = 0
        self.requests_under_way = 0
        """Sent by a client, and not yet received by an engine core."""
        self.tokens_under_way = 0
        """Given by an engine core, and not yet read by a client."""
        self.reports_under_way = 0
        """To the coordinator, of an engine core's load or an API server's request, or from there to
        the API server.
        """
        self.ends_under_way = 0
        """Messages of engine cores to the balancer that requests have ended."""
        self.waves_under_way = 0
        """Messages of the coordinator that wake engine cores, which they have not received."""
        self.degraded = ""
        """Why it goes by the wall clock; empty: it does not."""
        self._actors: list[Actor] = []

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Those that the clock waits for."""
        return tuple(self._actors)

    def join(self, name: str, turn: Turn = Turn.ENGINE) -> Actor:
        """A new actor, which works."""
        actor = Actor(name, turn)
        self._actors.append(actor)
        return actor

    def leave(self, actor: Actor) -> None:
        """The clock no longer waits for it."""
        self._actors.remove(actor)

    def works(self, actor: Actor) -> None:
        """Something other than the clock has woken it."""
        actor.doing = Doing.WORKS

    def waits(self, actor: Actor, until_ps: int | None) -> None:
        """It goes on at that time (a time that is past: at the present one), or with a message."""
        actor.doing, actor.until_ps = Doing.WAITS, until_ps

    def settles(self, actor: Actor) -> None:
        """It goes on at the present time, when no message is under way."""
        actor.doing = Doing.SETTLES

    def degrade(self, why: str) -> None:
        """From now on only `passes` moves the time."""
        self.degraded = self.degraded or why

    def passes(self, now_ps: int) -> None:
        """The wall clock has come so far."""
        self.now_ps = max(self.now_ps, now_ps)

    @property
    def next_ps(self) -> int | None:
        """The least time that somebody waits for; None where only followers wait for one."""
        waiting = [one for one in self._actors if one.until_ps is not None]
        if all(one.turn is Turn.FOLLOWER for one in waiting):
            return None
        return min(one.until_ps for one in waiting if one.until_ps is not None)

    @property
    def _messages_under_way(self) -> bool:
        """Whether somebody has still to hear what was sent at this time."""
        counts = (self.requests_under_way, self.tokens_under_way, self.reports_under_way)
        # Who gets a message may say so before the one who has sent it: such counts may be negative.
        return any(counts) or self.waves_under_way != 0 or self.ends_under_way != 0

    def _those_who(self, doing: Doing) -> list[Actor]:
        return [actor for actor in self._actors if actor.doing is doing]

    def woken(self) -> list[Actor]:
        """Who goes on now; they work from now on. Call it after every change."""
        if self.degraded:
            return self._wake([one for one in self._actors if self._goes_on_at_wall_speed(one)])
        if self._messages_under_way or self._those_who(Doing.WORKS):
            return []
        settling = self._those_who(Doing.SETTLES)
        # Waiting ones first: what they send belongs to this time.
        due = self._first_due(Turn.ENGINE, Turn.CLIENT, Turn.THREADS) or settling
        return self._wake(due or self._due(Turn.FOLLOWER) or self._after_jump())

    def blockers(self) -> str:
        """Why the clock stands still, for an error."""
        working = [actor.name for actor in self._actors if actor.doing is Doing.WORKS]
        reasons = [f"{name} works" for name in working]
        for count, one, several, missing in (
            (self.requests_under_way, "request has", "requests have", "not reached the engine"),
            (self.tokens_under_way, "token has", "tokens have", "not reached the clients"),
            (self.reports_under_way, "report of load is", "reports of load are", "on the way"),
            (self.ends_under_way, "end of a request is", "ends of requests are", "on the way"),
            (self.waves_under_way, "engine core has", "engine cores have", "not heard of a wave"),
        ):
            if count:
                reasons.append(f"{grouped(count, one, several)} {missing}")
        return " and ".join(reasons) or "everybody waits for a message"

    def _is_due(self, actor: Actor) -> bool:
        until = actor.until_ps
        return actor.doing is Doing.WAITS and until is not None and until <= self.now_ps

    def _goes_on_at_wall_speed(self, actor: Actor) -> bool:
        return self._is_due(actor) or actor.doing is Doing.SETTLES

    def _first_due(self, *turns: Turn) -> list[Actor]:
        """Those of the first of these turns that somebody waits for."""
        return next(filter(None, map(self._due, turns)), [])

    def _due(self, turn: Turn) -> list[Actor]:
        return [one for one in self._actors if one.turn is turn and self._is_due(one)]

    def _after_jump(self) -> list[Actor]:
        next_ps = self.next_ps
        if next_ps is None:
            return []
        self.now_ps = max(self.now_ps, next_ps)
        self.jumps += 1
        return self._first_due(*Turn)

    def _wake(self, actors: list[Actor]) -> list[Actor]:
        for actor in actors:
            actor.doing, actor.until_ps = Doing.WORKS, None
        return actors
