"""Connects actors in other processes, and the clients of this one, with the Timekeeper."""

import asyncio
import json
from pathlib import Path
from typing import Any, Protocol

from llmsim.config.errors import LlmsimError
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.in_engine.clock import ClockPageWriter
from llmsim.emulation.timekeeper import Actor, Timekeeper

LONGEST_LINE = 1 << 24
"""Bytes of a message: a batch of many thousand requests."""


class Steps(Protocol):
    """Who times the steps of engine cores (`llmsim.emulation.devices.Devices`)."""

    def step(self, items: list[list[Any]], now_ps: int) -> tuple[int, list[list[int]]]:
        """The end of the next step in ps, and the tokens of each item (`Channel.step`)."""
        ...

    def empty_step(self) -> None:
        """The engine core has called its workers without a batch."""
        ...


class Keeper:
    """Answers engine cores over a socket of this machine; the clients are one actor."""

    def __init__(self, folder: Path, steps: Steps) -> None:
        """Makes the clock's page and the socket in `folder`."""
        self.socket_path, self.clock_path = folder / "timekeeper", folder / "clock"
        self.time = Timekeeper()
        self._steps = steps
        self._page = ClockPageWriter(str(self.clock_path))
        self._written: dict[Actor, asyncio.StreamWriter] = {}
        self._clients = self.time.join("the clients")
        self._clients_wake: asyncio.Future[None] | None = None
        self.messages = 0
        """That engine cores have sent."""
        self.failure: LlmsimError | None = None
        """What has ended the emulation; None: it goes on."""

    async def listen(self) -> asyncio.AbstractServer:
        """Engine cores may connect from now on."""
        return await asyncio.start_unix_server(
            self._serve, str(self.socket_path), limit=LONGEST_LINE
        )

    async def clients_wait(self, until_ps: int | None) -> None:
        """Returns at that virtual time, or where `clients_work` is called."""
        if until_ps is not None and until_ps <= self.time.now_ps:
            return
        self._clients_wake = asyncio.get_running_loop().create_future()
        self.time.waits(self._clients, until_ps)
        self._wake()
        await self._clients_wake

    def clients_work(self) -> None:
        """Something has come for the clients: they look at it before time moves."""
        waiter = self._clients_wake
        if waiter is not None and not waiter.done():
            self.time.works(self._clients)
            waiter.set_result(None)

    def sent(self) -> None:
        """A client sends a request."""
        self.time.requests_under_way += 1

    def refused(self) -> None:
        """The server refused a request before it reached an engine core."""
        self.time.requests_under_way -= 1
        self._wake()

    def read(self, tokens: int) -> None:
        """A client has so many tokens."""
        self.time.tokens_under_way -= tokens
        self._wake()

    def fail(self, failure: LlmsimError) -> None:
        """The emulation ends with this, unless it has ended with something else."""
        self.failure = self.failure or failure

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        actor = None
        try:
            while line := await reader.readline():
                kind, *rest = json.loads(line)
                self.messages += 1
                if kind == "join":
                    actor = self.time.join(f"engine core {rest[0]}")
                    self._written[actor] = writer
                elif actor is not None:
                    self._hear(actor, kind, rest)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except (ValueError, OverflowError) as error:
            self.fail(NoProgressError(f"a step cannot be timed: {error}"))
        finally:
            if actor is not None:
                del self._written[actor]
                self.time.leave(actor)
                self.fail(NoProgressError(f"{actor.name} has ended"))
            writer.close()

    def _hear(self, actor: Actor, kind: str, rest: list[Any]) -> None:
        time = self.time
        match kind:
            case "step":
                end_ps, tokens = self._steps.step(rest[0], time.now_ps)
                self._answer(actor, [end_ps, tokens])
                return
            case "empty step":
                self._steps.empty_step()
                return
            case "wait":
                time.waits(actor, rest[0])
            case "settle":
                time.settles(actor)
            case "park":
                time.waits(actor, None)
            case "unpark":
                time.works(actor)
            case "received":
                time.requests_under_way -= rest[0]
            case "produced":
                time.tokens_under_way += rest[0]
        self._wake()

    def _wake(self) -> None:
        woken = self.time.woken()
        if woken:
            self._page.write(self.time.now_ps)
        for actor in woken:
            if actor is self._clients:
                assert self._clients_wake is not None
                self._clients_wake.set_result(None)
            else:
                self._answer(actor, None)

    def _answer(self, actor: Actor, answer: Any) -> None:
        self._written[actor].write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
