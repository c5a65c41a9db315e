"""The processes of a client of its own, before the clock."""

from collections.abc import Callable
from typing import Any, Protocol

from llmsim.emulation.timekeeping.client_threads import SEVERAL, ClientThreads
from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper, Turn

NEVER_ASLEEP = "the client never sleeps, since {thread} computes; `llmsim serve` answers any client"


class Messages(Protocol):
    """Knows which messages of its own client are under way (`llmsim.emulation.servers.relay`)."""

    def told(self, counts: dict[str, list[int]], sent_on: list[int]) -> None:
        """What a process of the client says of its connections."""
        ...

    def is_quiet(self) -> bool:
        """Nothing is under way between the client and here, as it has counted."""
        ...

    def looks_quiet(self) -> bool:
        """The same of a client that sleeps, as the kernel has it."""
        ...

    def received(self, row: int, tokens: int) -> None:
        """The engine core has a request."""
        ...

    def asks_engine(self) -> None:
        """The engine core has a question, which it answers later."""
        ...

    def given(self, row: int, tokens: int, ended: bool, core: int) -> int:
        """An engine core gives tokens; how many messages are under way for them."""
        ...

    def take_all(self) -> None:
        """Requests go on their way, although nobody knows what is under way."""
        ...

    def flush(self) -> None:
        """All messages of the present time are here."""
        ...

    def under_way(self) -> str:
        """What is under way, for an error."""
        ...


class ClientProcesses:
    """Answers processes that say what they wait for; each of them is an actor of the clock."""

    def __init__(
        self, time: Timekeeper, threads: ClientThreads, answer: Callable[[Actor, Any], None]
    ) -> None:
        """`threads`: of all of them; `answer` sends one of them something."""
        self._time, self._threads, self._answer = time, threads, answer
        self.relay: Messages | None = None
        """Stands between them and the server."""
        self._actors: set[Actor] = set()
        self._root: Actor | None = None
        """The first process."""
        self._waiting: dict[Actor, tuple[int, int | None]] = {}
        """What they wait for: the number of the wait, and the time."""

    @property
    def has_joined(self) -> bool:
        """One of them is there, or was."""
        return self._root is not None

    def has(self, actor: Actor) -> bool:
        """Whether it is one of them."""
        return actor in self._actors

    def join(self, rest: list[Any]) -> Actor:
        """A process is there, and waits to go on."""
        process = rest[0]
        if self.has_joined:
            self._threads.joins_others(SEVERAL)
        actor = self._time.join(f"process {process} of the client", Turn.CLIENT)
        self._threads.join(process)
        self._root = self._root or actor
        self._actors.add(actor)
        return actor

    def welcome(self, actor: Actor) -> None:
        """It goes on."""
        self._tell(actor, 0, None)

    def hear(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        """What a process says."""
        self._threads.may_wake()
        if kind == "client notes":
            self._threads.notes(rest)
        elif kind == "client thread":
            self._threads.joins_others(f'the client asks the server in its thread "{rest[0]}"')
        elif kind == "client waits":
            self._waiting[actor] = rest[0], rest[1]
            if self.relay is not None:
                self.relay.told(rest[2], rest[3])
        else:
            self._waiting.pop(actor, None)
            self._time.works(actor)

    def leaves(self, actor: Actor) -> bool:
        """A process has ended; whether it may do so without a word, as forks do."""
        is_child = self.has(actor) and actor is not self._root
        self._waiting.pop(actor, None)
        self._actors.discard(actor)
        return is_child and self._threads.act_together

    def announce(self, comes: dict[int, int]) -> None:
        """Tells those that wait what comes to their ports."""
        self._threads.may_wake()
        for actor, (number, _) in self._waiting.items():
            self._tell(actor, number, comes)

    def wake(self, actor: Actor) -> None:
        """A process goes on at the present time."""
        self._threads.may_wake()
        if actor in self._waiting:
            self._tell(actor, self._waiting.pop(actor)[0], None)

    def offer(self) -> None:
        """Brings what has come to them, and what they wait for to the clock."""
        relay, time = self.relay, self._time
        if relay is None:
            return
        if time.degraded:
            relay.take_all()
        is_quiet = self._is_quiet(relay)
        is_there = is_quiet and not (time.requests_under_way or time.tokens_under_way)
        if time.degraded or is_there:
            relay.flush()
            is_quiet = self._is_quiet(relay)
        goes_on = bool(is_quiet or time.degraded)
        for actor in self._actors:
            waits = actor in self._waiting or self._threads.need_a_look
            if waits and goes_on:
                time.waits(actor, self._waiting.get(actor, (0, None))[1])
            else:
                time.works(actor)
        self._threads.offer(is_quiet=goes_on)

    def blockers(self) -> list[str]:
        """Why the clock stands still for them, for an error."""
        under_way = self.relay.under_way() if self.relay is not None else ""
        thread = self._threads.awake() if self._threads.need_a_look else ""
        return [under_way, NEVER_ASLEEP.format(thread=thread) if thread else ""]

    def _is_quiet(self, relay: Messages) -> bool:
        """All of their threads wait, and nothing is under way to them or from them."""
        self._threads.main_threads(wait=len(self._waiting) == len(self._actors))
        self._threads.find_others()
        if self._threads.need_a_look:
            return self._threads.all_sleep and relay.looks_quiet()
        return relay.is_quiet()

    def _tell(self, actor: Actor, number: int, comes: dict[int, int] | None) -> None:
        """What comes before the time of that wait, or None; and whether several threads act
        together.
        """
        self._answer(actor, [number, comes, self._threads.act_together])
