"""Connects actors in other processes, and the clients of this one, with the Timekeeper."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from llmsim.config.errors import LlmsimError
from llmsim.emulation.devices import Begun
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.in_engine.clock import PS_PER_NS, PS_PER_S, ClockPageWriter
from llmsim.emulation.step_counts import Encodes
from llmsim.emulation.timekeeping.client_processes import ClientProcesses, Messages
from llmsim.emulation.timekeeping.client_threads import ClientThreads
from llmsim.emulation.timekeeping.coordinators import Coordinators
from llmsim.emulation.timekeeping.kv_moves import KvCopies, KvLinks, KvMoves, Waited
from llmsim.emulation.timekeeping.ranks import Ranks
from llmsim.emulation.timekeeping.resting import Resting
from llmsim.emulation.timekeeping.timekeeper import Actor, Doing, Timekeeper, Turn

LONGEST_LINE = 1 << 24
"""Bytes of a message: a batch of many thousand requests."""
TOO_MANY = "more threads of the client wait at one time than llmsim emulate has places for"
_Hear = Callable[[Any, str, list[Any]], None]
"""Called with the actor, the kind of its message, and what the message says."""
_NO_ROW = -1
"""Of what is no request for tokens."""
_TICK_S = 0.001
"""How often time passes when it goes by the wall clock."""


class Steps(Waited, Protocol):
    """Who times the steps of an engine core (`llmsim.emulation.devices.Devices`), or of one in
    lock-step (`llmsim.emulation.lockstep.RankDevices`).
    """

    def step(
        self,
        items: list[list[Any]],
        now_ps: int,
        waits: list[int] | None = None,
        encodes: Encodes | None = None,
    ) -> Begun:
        """The next step (`Channel.step`)."""
        ...

    def drops(self, held: dict[str, int]) -> None:
        """What steps in flight give these requests, which hold so many tokens, is dropped."""
        ...

    def drafts(self) -> list[int]:
        """How many drafts each request of the last step gets at its end."""
        ...

    def empty_step(self) -> None:
        """The engine core has called its workers without a batch."""
        ...

    def first_tokens(self, prompts: list[tuple[str, int]], now_ps: int) -> None:
        """First tokens of these requests, with their prompts' tokens, have come with their KV."""
        ...


class Keeper:
    """Answers the server's processes and those of a client over a socket of this machine.

    The clients of this process, or those that it stands for, are one actor.
    """

    def __init__(
        self,
        folder: Path,
        steps: Sequence[Steps],
        links: KvLinks | None = None,
        *,
        copies: KvCopies | None = None,
        lockstep: Sequence[Sequence[int]] = (),
    ) -> None:
        """Makes the clock's page and the socket in `folder`; `steps` by number of engine core.
        Those in each group of `lockstep` are ranks in lock-step (`RankDevices`). KV moves over
        `links`, or by `copies`.
        """
        self.socket_path, self.clock_path = folder / "timekeeper", folder / "clock"
        self.time = Timekeeper()
        self.threads = ClientThreads(self.time, folder / "waits", self._wake)
        self._processes = ClientProcesses(self.time, self.threads, self._answer)
        self._steps = steps
        self._page = ClockPageWriter(str(self.clock_path))
        self._written: dict[Actor, asyncio.StreamWriter] = {}
        self._steps_of: dict[Actor, Steps] = {}
        """Of engine cores."""
        self._numbers: dict[Actor, int] = {}
        """Of engine cores, too."""
        self._resting = Resting(self.time, self._answer)
        self._moves = KvMoves(self.time, links, self._answer, self._resting, self._steps_of, copies)
        self._lockstep = self._ranks_by_core(lockstep)
        self._ranks_of: dict[Actor, Ranks] = {}
        """Of engine cores in lock-step, they and the others."""
        self._clients = self.time.join("the clients", Turn.CLIENT)
        self._reached: list[asyncio.Future[None]] = []
        self._on_its_way: Counter[int] = Counter()
        """By row, servers that a request has been sent to, and that have not received it."""
        self._received_by: dict[int, list[int]] = {}
        """By row, the engine cores that have received it, in order."""
        self._questions = 0
        """Of clients, which wait until an engine core has ended a step."""
        self._leaving: Counter[int] = Counter()
        """By row, engine cores that have still to hear that its client has left."""
        self._left: set[int] = set()
        """Requests whose clients have left; nobody reads what engine cores still give them."""
        self._clients_wake: asyncio.Future[bool] | None = None
        self._coordinators = Coordinators(self.time, lockstep, self._answer)
        self._ticks: asyncio.Task[None] | None = None
        self._wakes = self._is_over = False
        self._joins: dict[str, tuple[Callable[[list[Any]], Actor], _Hear]] = {
            "join": (self._join_core, self._hear),
            "join coordinator": (self._coordinators.join, self._hear_coordinator),
            "join client": (self._processes.join, self._hear_client),
        }
        self.messages = 0
        """That engine cores and processes of the client have sent; those of coordinators and API
        servers go on where nobody does anything.
        """
        self.failure: LlmsimError | None = None
        """What has ended the emulation; None: it goes on."""

    @property
    def now_ps(self) -> int:
        """The virtual time."""
        return self.time.now_ps

    @property
    def relay(self) -> Messages | None:
        """Stands between a client of its own and the server."""
        return self._processes.relay

    @relay.setter
    def relay(self, relay: Messages) -> None:
        self._processes.relay = relay

    @property
    def has_client(self) -> bool:
        """A process of a client has joined."""
        return self._processes.has_joined

    @property
    def reasons(self) -> list[str]:
        """Why two emulations may differ."""
        return self.threads.reasons

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Engine cores may connect inside of it; the emulation is over behind it."""
        listener = await asyncio.start_unix_server(
            self._serve, str(self.socket_path), limit=LONGEST_LINE
        )
        try:
            yield
        finally:
            self.close()
            listener.close()

    async def clients_wait(self, until_ps: int | None) -> None:
        """Returns at that virtual time, or where `clients_work` is called."""
        if until_ps is not None and until_ps <= self.time.now_ps:
            return
        await self._clients_woken(until_ps)

    async def clients_turn(self) -> bool:
        """Returns when all that ends at the present time has ended; False: something came first."""
        return await self._clients_woken(self.time.now_ps)

    async def _clients_woken(self, until_ps: int | None) -> bool:
        """Whether the clock has woken them."""
        self._clients_wake = asyncio.get_running_loop().create_future()
        self.time.waits(self._clients, until_ps)
        self._wake()
        return await self._clients_wake

    async def engines_end(self) -> None:
        """Returns when no engine core has anything left to do."""
        waits = asyncio.create_task(self.clients_wait(None))
        while self._engines_work() and not self.time.degraded:
            await asyncio.sleep(_TICK_S)
        waits.cancel()

    def _engines_work(self) -> bool:
        return any(
            one.doing is not Doing.WAITS or one.until_ps is not None for one in self._steps_of
        )

    def clients_work(self) -> None:
        """Something has come for the clients: they look at it before time moves."""
        waiter = self._clients_wake
        if waiter is not None and not waiter.done():
            self.time.works(self._clients)
            waiter.set_result(False)

    def sent(self, row: int) -> None:
        """A client sends a request to a server."""
        self._on_its_way[row] += 1
        self.time.requests_under_way += 1

    def cores_of(self, row: int) -> list[int]:
        """The engine cores that have received a request, in order."""
        return self._received_by.get(row, [])

    async def reached(self) -> None:
        """Returns when every request that was sent has reached an engine core."""
        if self.time.requests_under_way:
            self._reached.append(asyncio.get_running_loop().create_future())
            await self._reached[-1]

    def leaves(self, row: int) -> None:
        """The client of a request that its engine core has still to end leaves the server."""
        self._leaving[row] += 1
        self.forgets(row)
        self.time.requests_under_way += 1

    def forgets(self, row: int) -> None:
        """Nobody reads what engine cores still give this request."""
        self._left.add(row)

    def forgets_prompt(self, row: int) -> None:
        """Its client has left when its prompt was computed, and no server is to answer it."""
        self._moves.forgets(row)
        self._wake()

    def refused(self, row: int) -> None:
        """The server refused a request, perhaps before it reached an engine core."""
        self._reaches(row)
        self._wake()

    def _reaches(self, row: int) -> None:
        """A request is where it was sent, or never will be."""
        if self._on_its_way[row]:
            self._on_its_way[row] -= 1
            self._arrived()

    def read(self, tokens: int) -> None:
        """A client has so many tokens."""
        self.time.tokens_under_way -= tokens
        self._wake()

    def changed(self) -> None:
        """Something else has come or gone."""
        self._wake()

    def announce(self, comes: dict[int, int]) -> None:
        """Tells the processes of the client that wait what comes to their ports."""
        self._processes.announce(comes)

    def fail(self, failure: LlmsimError) -> None:
        """The emulation ends with this, unless it has ended with something else."""
        self.failure = self.failure or failure

    def died(self, name: str) -> None:
        """A process that is no actor has died: it explains what its actors do from now on."""
        self.time.degraded = ""
        self._degrade(self._death(name))
        self._wake()

    def close(self) -> None:
        """The emulation is over: who leaves from now on has not died."""
        self._is_over = True
        self.threads.close()
        if self._ticks is not None:
            self._ticks.cancel()

    def blockers(self) -> str:
        """Why the clock stands still, for an error."""
        return " and ".join(filter(None, [self.time.blockers(), *self._processes.blockers()]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        actor, said_bye = None, False
        hear: _Hear = partial(self._hear_server, writer)
        try:
            while line := await reader.readline():
                kind, *rest = json.loads(line)
                self.messages += self._counts(actor, kind)
                if kind == "bye":
                    said_bye = True
                    break
                if kind in self._joins:
                    join, hear = self._joins[kind]
                    actor = join(rest)
                    self._written[actor] = writer
                    if self._processes.has(actor):
                        self._processes.welcome(actor)
                else:
                    hear(actor, kind, rest)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except (ValueError, OverflowError, IndexError) as error:
            self.fail(NoProgressError(f"a step cannot be timed: {error}"))
        finally:
            if actor is not None:
                self._leave(actor, said_bye=said_bye)
            writer.close()

    def _counts(self, actor: Actor | None, kind: str) -> bool:
        """Whether a message says that something goes on."""
        if actor is None:
            return kind in self._joins
        return not self._coordinators.has(actor)

    def _join_core(self, rest: list[Any]) -> Actor:
        actor = self.time.join(f"engine core {rest[0]}")
        self._steps_of[actor], self._numbers[actor] = self._steps[rest[0]], rest[0]
        self._moves.joins(actor, rest[0])
        ranks = self._lockstep.get(rest[0])
        if ranks is not None:
            ranks.joins(actor, self._steps[rest[0]])
            self._ranks_of[actor] = ranks
        return actor

    def _ranks_by_core(self, lockstep: Sequence[Sequence[int]]) -> dict[int, Ranks]:
        ranks: dict[int, Ranks] = {}
        for cores in lockstep:
            together = Ranks(self.time, len(cores), self._answer, self._resting)
            ranks |= dict.fromkeys(cores, together)
        return ranks

    def _leave(self, actor: Actor, *, said_bye: bool) -> None:
        del self._written[actor]
        self._resting.forget(actor)
        is_fork = self._processes.leaves(actor)
        self.threads.may_wake()
        self._moves.leaves(actor)
        self._coordinators.leaves(actor)
        if actor in self._ranks_of:
            self._ranks_of.pop(actor).leaves(actor)
        is_core = self._steps_of.pop(actor, None) is not None
        self.time.leave(actor)
        if self._is_over:
            return
        if not said_bye and not is_fork:
            self._degrade(self._death(actor.name))
        elif is_core:
            self.fail(NoProgressError(f"{actor.name} has ended"))
        self._wake()

    def _death(self, name: str) -> str:
        return f"{name} died at {self.time.now_ps / PS_PER_S:.6f} virtual s"

    def _degrade(self, why: str) -> None:
        """Nobody knows what it had under way: from now on time goes by the wall clock."""
        self.time.degrade(why)
        if self._ticks is None and not self._is_over:
            self._ticks = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        behind_ns = time.monotonic_ns() - self.time.now_ps // PS_PER_NS
        while True:
            self.time.passes((time.monotonic_ns() - behind_ns) * PS_PER_NS)
            self._page.write(self.time.now_ps)
            self._wake()
            await asyncio.sleep(_TICK_S)

    def _hear(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        if kind in KvMoves.KINDS:
            self._moves.hear(actor, kind, rest)
        elif kind in Ranks.KINDS:
            self._ranks_of[actor].hear(actor, kind, rest)
            self._moves.round_begins()
        elif kind == "drafts":
            self._answer(actor, self._steps_of[actor].drafts())
            return
        elif kind == "drops":
            self._steps_of[actor].drops(rest[0])
            return
        elif kind == "first tokens":
            self._steps_of[actor].first_tokens(rest[0], self.time.now_ps)
        elif kind in ("step", "empty step"):
            self._call_workers(actor, kind, rest)
            if actor not in self._ranks_of:
                return
            self._ranks_of[actor].offered()
            self._moves.round_begins()
        elif kind in ("reported", "ended", "woken", "received", "left", "produced"):
            self._hear_of_messages(actor, kind, rest)
        else:
            self._hear_of_time(actor, kind, rest)
        self._wake()

    def _call_workers(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        if kind == "empty step":
            self._steps_of[actor].empty_step()
            return
        begun = self._steps_of[actor].step(rest[0], self.time.now_ps, *rest[1:])
        self._moves.launched(actor, begun.end)
        self._answer(actor, list(begun))

    def _hear_of_time(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        match kind:
            case "wait":
                self.time.waits(actor, rest[0])
            case "settle":
                self._moves.settled(actor)
                self.time.settles(actor)
            case "park":
                self.time.waits(actor, None)
            case "asked for":
                self._hear_question(actor)
            case "answers":
                if self._questions:
                    self._questions -= 1
                    self.sent(_NO_ROW)
            case "rest":
                self._resting.rests(actor)
                self._moves.rests(actor)
            case "doze":
                self._resting.rests(actor, rest[0])
                self._moves.settled(actor)
                self._moves.rests(actor)
                if actor in self._ranks_of:
                    self._ranks_of[actor].rests()
            case "unpark":
                self.time.works(actor)
                self._resting.wake([actor])

    def _hear_question(self, actor: Actor) -> None:
        """A question is not under way while the engine core waits for the end of a step, behind
        which it answers.
        """
        if actor.doing is Doing.SETTLES:
            self.time.works(actor)
            self._answer(actor, None)
        elif actor.until_ps is not None and self._on_its_way[_NO_ROW]:
            self._questions += 1
            self._reaches(_NO_ROW)
            if self.relay is not None:
                self.relay.asks_engine()

    def _hear_of_messages(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        match kind:
            case "reported":
                self.time.reports_under_way += 1
            case "ended":
                self.time.ends_under_way += rest[0]
            case "woken":
                self.time.waves_under_way -= 1
                self._moves.received(actor)
            case "received":
                row = row_of(rest[0])
                self._received_by.setdefault(row, []).append(self._numbers[actor])
                self._reaches(row)
                self._moves.received(actor)
                if self.relay is not None:
                    self.relay.received(row, rest[1])
            case "left":
                self._heard_of_leaving(rest[0])
                self._moves.received(actor)
            case "produced":
                core = self._numbers[actor]
                under_way = sum(self._under_way(core, *answer) for answer in rest[0])
                self.time.tokens_under_way += under_way

    def _heard_of_leaving(self, names: list[str]) -> None:
        for row in map(row_of, names):
            if self._leaving[row]:
                self._leaving[row] -= 1
                self._arrived()

    def _hear_coordinator(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        self._coordinators.hear(actor, kind, rest)
        self._wake()

    def _hear_server(
        self, writer: asyncio.StreamWriter, nobody: None, kind: str, rest: list[Any]
    ) -> None:
        """What an API server says, which is no actor; it waits until it is heard that it tells the
        coordinator something.
        """
        try:
            self._coordinators.hear_api_server(kind, *rest)
        except ValueError as error:
            self.fail(NoProgressError(str(error)))
        if kind == "tells":
            writer.write(b"null\n")
            return
        self._wake()

    def _arrived(self) -> None:
        self.time.requests_under_way -= 1
        if not self.time.requests_under_way:
            for one in self._reached:
                if not one.done():
                    one.set_result(None)
            self._reached.clear()

    def _hear_client(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        self._processes.hear(actor, kind, rest)
        self._wake()

    def _under_way(self, core: int, name: str, tokens: int, ended: bool) -> int:
        row = row_of(name)
        if row in self._left:
            return 0
        return tokens if self.relay is None else self.relay.given(row, tokens, ended, core)

    def _wake(self) -> None:
        if self._wakes:  # called by what it has called: it looks again
            return
        self._wakes = True
        try:
            if self.has_client and self.threads.waits.is_full:
                self.fail(NoProgressError(TOO_MANY))
            self._processes.offer()
            woken = self.time.woken()
        finally:
            self._wakes = False
        if woken:
            self._page.write(self.time.now_ps)
        for actor in woken:
            self._go_on(actor)
        if self._moves.actor in woken:
            self._wake()  # perhaps nobody heard of it

    def _go_on(self, actor: Actor) -> None:
        """Its time has come."""
        if actor is self._clients:
            assert self._clients_wake is not None
            if not self._clients_wake.done():
                self._clients_wake.set_result(True)
        elif actor is self._moves.actor:
            self._moves.land()
            for ranks in dict.fromkeys(self._lockstep.values()):
                ranks.offered()  # steps whose transfers have landed have an end
        elif self.threads.is_actor(actor):
            self.threads.wake()
        elif self._processes.has(actor):
            self._processes.wake(actor)
        elif self._coordinators.waits(actor):
            self._coordinators.wake(actor)
        else:
            self.threads.may_wake()
            self._resting.forget(actor)
            self._answer(actor, None)

    def _answer(self, actor: Actor, answer: Any) -> None:
        writer = self._written[actor]
        with suppress(ConnectionError):
            writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
