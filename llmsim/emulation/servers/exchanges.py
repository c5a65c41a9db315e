"""A request and its answer on their way between a client, the relay and a server."""

import asyncio
import fcntl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from llmsim.emulation.servers.doors import Door, Stage
from llmsim.emulation.servers.http_messages import LONGEST_LINE, request

_SIOCOUTQNSD = 0x894B


class At(Enum):
    """Where a request is."""

    RELAY = "relay"
    API_SERVER = "API server"
    ENGINE = "engine"
    ENDED = "ended"


class CountingReader(asyncio.StreamReader):
    """Counts what has come."""

    bytes_here = 0

    def feed_data(self, data: Any) -> None:
        """More of it."""
        self.bytes_here += len(data)
        super().feed_data(data)


@dataclass(eq=False)
class Exchange:
    """A request to a server, and what it answers."""

    head: list[bytes]
    body: bytes
    stage: Stage
    """The servers of which it passes one."""
    ask: Callable[[Any], Coroutine[Any, Any, None]]
    """Talks to the server that is chosen, about this exchange."""
    row: int = -1
    """-1: it is not for the engine core."""
    number: int = 0
    """Of the server's door."""
    counts: bool = False
    """The router counts it as outstanding at that door."""
    at: At = At.RELAY
    tokens_at_server: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """It has reached the engine core, or has ended."""
    task: "asyncio.Task[None] | None" = None
    """Of `ask`; None: it has not been sent yet."""

    @property
    def door(self) -> Door:
        """The server, or its rank."""
        return self.stage.doors[self.number]

    @asynccontextmanager
    async def sent(self, *, closes: bool = False) -> AsyncIterator[asyncio.StreamReader]:
        """What its server answers; `closes`: the connection ends with the answer."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.door.port, limit=LONGEST_LINE
        )
        try:
            writer.write(request(self.head, self.body, self.row, self.door, closes=closes))
            yield reader
        finally:
            writer.close()

    def choose_door(self) -> Door:
        """The router does."""
        self.number, self.counts = self.stage.choose(), True
        return self.door

    def leave_door(self) -> None:
        """It is no longer outstanding there."""
        if self.counts:
            self.stage.left(self.number)
        self.counts = False

    def start(self) -> None:
        """It goes to its server."""
        self.at = At.API_SERVER
        self.moved.clear()
        self.task = asyncio.create_task(self.ask(self))


@dataclass(eq=False, kw_only=True)
class ClientExchange(Exchange):
    """A request of the client, and the answer that goes to it."""

    connection: "Connection"
    arrival_ps: int = -1
    """-1: it has not been taken yet."""
    streams: bool = False
    waiting: list[bytes] = field(default_factory=list)
    """Of the answer, what has not gone to the client."""
    tells: bool = False
    """What waits has tokens, or is all."""
    answered: bool = False
    """Its answer has begun."""
    breaks: bool = False
    """The server has ended in the middle of it."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Its answer is complete, and with the client."""
    refusal: str = ""
    """Why the server does not see it."""


@dataclass(eq=False)
class Connection:
    """One connection of the client."""

    reader: CountingReader
    writer: asyncio.StreamWriter
    port: int
    """The client's."""
    received = 0
    """Bytes that came from the client."""
    written = 0
    """Bytes that went to it."""
    requests: list[ClientExchange] = field(default_factory=list)

    @property
    def is_read(self) -> bool:
        """Every byte that is here is that of a whole request, and the client's kernel has all that
        was written.
        """
        socket = self.writer.get_extra_info("socket")
        if socket is None or socket.fileno() < 0:
            return True
        is_sent = not self.writer.transport.get_write_buffer_size() and not _unsent(socket)
        return is_sent and self.reader.bytes_here == self.received


def _unsent(socket: Any) -> int:
    """Bytes that the other end's kernel has still to take; those that it has may be unconfirmed."""
    return int(struct.unpack("i", fcntl.ioctl(socket.fileno(), _SIOCOUTQNSD, b"\0" * 4))[0])
