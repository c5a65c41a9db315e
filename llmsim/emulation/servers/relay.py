"""Stands between an unmodified client and the server: it knows which messages are under way.

Bytes of the client are counted on both sides. Requests go to the server one after the other, in
the client's order; answers go to the client when all tokens of the present time are here.
"""

import asyncio
import fcntl
import heapq
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec

from llmsim.emulation.load import Answer
from llmsim.emulation.requests import request_name
from llmsim.emulation.servers.doors import Door, Stage
from llmsim.emulation.servers.openai_api import OpenAiApi

LONGEST_LINE = 1 << 24
GENERATING = ("/v1/completions", "/v1/chat/completions")
"""What reaches the engine core; everything else is answered by the API server alone."""
_json = msgspec.json.Encoder()


class Clock(Protocol):
    """What a relay needs of the keeper."""

    @property
    def now_ps(self) -> int:
        """The virtual time."""
        ...

    def sent(self, row: int) -> None:
        """A request is on its way to an engine core; -1: to a server alone."""
        ...

    def refused(self, row: int) -> None:
        """It has not reached one, and will not."""
        ...

    def leaves(self, row: int) -> None:
        """An engine core is to hear that nobody wants a request any more."""
        ...

    def read(self, tokens: int) -> None:
        """So many tokens, or ends of answers, have come from the server."""
        ...

    def changed(self) -> None:
        """Something may go on."""
        ...

    def announce(self, comes: dict[int, int]) -> None:
        """Bytes are sent to the client: its ports -> how many in all."""
        ...

    async def clients_wait(self, until_ps: int | None) -> None:
        """Returns at that time, or after `clients_work`."""
        ...

    async def clients_turn(self) -> bool:
        """Returns when all that ends now has ended; False: after `clients_work`."""
        ...

    def clients_work(self) -> None:
        """Ends `clients_wait`."""
        ...


class _At(Enum):
    """Where a request is."""

    RELAY = "relay"
    API_SERVER = "API server"
    ENGINE = "engine"
    ENDED = "ended"


class _Reader(asyncio.StreamReader):
    """Counts what has come."""

    bytes_here = 0

    def feed_data(self, data: Any) -> None:
        """More of it."""
        self.bytes_here += len(data)
        super().feed_data(data)


@dataclass(eq=False)
class _Connection:
    """One connection of the client."""

    reader: _Reader
    writer: asyncio.StreamWriter
    port: int
    """The client's."""
    received = 0
    """Bytes that came from the client."""
    written = 0
    """Bytes that went to it."""
    requests: list["_Exchange"] = field(default_factory=list)

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


@dataclass(eq=False)
class _Exchange:
    """A request and its answer."""

    connection: _Connection
    head: list[bytes]
    body: bytes
    row: int = -1
    """-1: it is not for the engine core."""
    stage: int = 0
    """The servers that it passes now."""
    door: int = 0
    """Of the stage."""
    streams: bool = False
    arrival_ps: int = 0
    at: _At = _At.RELAY
    waiting: list[bytes] = field(default_factory=list)
    """Of the answer, what has not gone to the client."""
    tells: bool = False
    """What waits has tokens, or is all."""
    tokens_at_server: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """It has reached the engine core, or has ended."""
    answered: bool = False
    """Its answer has begun."""
    breaks: bool = False
    """The server has ended in the middle of it."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Its answer is complete, and with the client."""
    refusal: str = ""
    """Why the server does not see it."""
    task: "asyncio.Task[None] | None" = None
    answer: "_Exchange | None" = None
    """It computes the prompt of that one, which another server answers."""


class Relay:
    """Listens where the client takes the server to be."""

    def __init__(
        self,
        clock: Clock,
        api_ps: Callable[[int, int], int],
        heard: Callable[[int, int], None],
        stages: Sequence[Stage],
        api: OpenAiApi,
        *,
        at_once: bool = False,
    ) -> None:
        """`api_ps`: what the API server of a group takes for so many tokens; `heard`: called with
        row and tokens of a request that has reached an engine core; `stages`: the servers in the
        order in which requests pass them; `api`: how they are talked to. `at_once`: servers of all
        stages get a request when it comes.
        """
        self._api, self._at_once = api, at_once
        self._clock, self._api_ps, self._heard = clock, api_ps, heard
        self._stages = stages
        self.passed: dict[int, list[int]] = {}
        """By row, the engine cores that a request was given, in order."""
        self._coming: list[tuple[int, int, int, _Exchange]] = []
        """Requests for which a server is to be chosen: (when, row, number, exchange)."""
        self.port = 0
        self.answers: dict[int, Answer] = {}
        self.input_tokens: dict[int, int] = {}
        self.output_tokens: dict[int, int] = {}
        self.reasons: list[str] = []
        """Why two emulations may differ."""
        self._rows = 0
        self._exchanges: dict[int, _Exchange] = {}
        """By row, those that have not ended."""
        self._prompts: dict[int, _Exchange] = {}
        """By row, those of a request's prompt beside that of its answer."""
        self._connections: dict[int, _Connection] = {}
        """By the client's port."""
        self._told: dict[int, tuple[int, int]] = {}
        """What the client says of each: bytes received, bytes sent."""
        self._order: list[int] = []
        self._due: list[tuple[int, int, _Exchange]] = []
        self._numbers = 0
        self.first_s: float | None = None
        """When a client has connected, by the real clock."""

    async def listen(self) -> asyncio.AbstractServer:
        """The client may connect from now on, to `port`."""
        server = await asyncio.get_running_loop().create_server(
            lambda: asyncio.StreamReaderProtocol(_Reader(limit=LONGEST_LINE), self._serve),
            "127.0.0.1",
            0,
            backlog=4096,
        )
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def run(self) -> None:
        """Sends requests to the server when they are due; ends when it is cancelled."""
        while True:
            now_ps = self._clock.now_ps
            if self._coming and self._coming[0][0] <= now_ps:
                if await self._clock.clients_turn():
                    self._choose_doors()
            elif self._due and self._due[0][0] <= now_ps:
                exchange = heapq.heappop(self._due)[-1]
                self._start(exchange)
                await exchange.moved.wait()  # so that the engine sees the client's order
            else:
                ahead = [queue[0][0] for queue in (self._coming, self._due) if queue]
                await self._clock.clients_wait(min(ahead, default=None))

    def told(self, counts: dict[str, list[int]], sent_on: list[int]) -> None:
        """A process of the client has sent and received so many bytes."""
        for name, (received, sent, is_open) in counts.items():
            if is_open:
                self._told[int(name)] = received, sent
            else:
                self._left(int(name))
        self._order += [port for port in sent_on if port not in self._order]

    def is_quiet(self) -> bool:
        """No byte is under way between client and relay, and no request waits for its turn."""
        if any(one is None for one in map(self._connections.get, self._told)):
            return False
        for port, one in self._connections.items():
            if self._told.get(port) != (one.written, one.received):
                return False
        self._take_requests()
        return True

    def looks_quiet(self) -> bool:
        """No byte is under way to a client that sleeps, or from there: the kernel would have woken
        it. Requests have their order from the connections.
        """
        if not all(one.is_read for one in self._connections.values()):
            return False
        self._order += [port for port in self._connections if port not in self._order]
        self._take_requests()
        return True

    def received(self, row: int, tokens: int) -> None:
        """The engine core has a request."""
        for exchange in (self._prompts.get(row), self._exchanges.get(row)):
            if exchange is not None and exchange.at is _At.API_SERVER:
                exchange.at = _At.ENGINE
                exchange.moved.set()
                self.input_tokens[row] = tokens
                self._heard(row, tokens)
                return

    def asks_engine(self) -> None:
        """What is no request for tokens waits at an engine core, and holds up nobody."""
        for one in self._all():
            if one.row < 0 and one.at is _At.API_SERVER:
                one.moved.set()

    def given(self, row: int, tokens: int, ended: bool, core: int) -> int:
        """An engine core gives tokens; returns how many messages are under way for them."""
        prompt = self._prompts.get(row)
        is_of_prompt = prompt is not None and self._core_of(prompt) == core
        exchange = prompt if is_of_prompt else self._exchanges.get(row)
        if exchange is None:
            return 0
        if exchange.stage < len(self._stages) - 1:
            exchange.tokens_at_server += tokens + ended
            return tokens + ended
        times = self.answers[row].token_ps
        times += [self._clock.now_ps] * tokens
        if ended:
            self.output_tokens[row] = len(times)
        under_way = (tokens if exchange.streams else 0) + ended
        exchange.tokens_at_server += under_way
        return under_way

    def _core_of(self, one: _Exchange) -> int:
        return self._stages[one.stage].doors[one.door].group

    def flush(self) -> None:
        """Everything of the present time is here: the client gets it, in the order of requests.

        It is told first, as the kernel may swap messages of different connections.
        """
        ready = sorted((one for one in self._all() if one.tells), key=lambda one: one.row)
        comes = {}
        for one in ready:
            one.connection.written += sum(map(len, one.waiting))
            comes[one.connection.port] = one.connection.written
        if comes:
            self._clock.announce(comes)
        for one in ready:
            one.connection.writer.write(b"".join(one.waiting))
            one.waiting.clear()
            one.tells = False
            if one.breaks:
                one.connection.writer.close()
            if one.at is _At.ENDED:
                one.done.set()

    def under_way(self) -> str:
        """What is not where it should be, for an error."""
        said = [
            f"a connection of the client has {self._told.get(port)} of {one.written} and "
            f"{one.received} bytes"
            for port, one in self._connections.items()
            if self._told.get(port) != (one.written, one.received)
        ]
        unknown = [port for port in self._told if port not in self._connections]
        if unknown:
            said.append(f"the client has a connection from port {unknown[0]} that is not here")
        return " and ".join(said[:1])

    def _all(self) -> list[_Exchange]:
        return [one for each in self._connections.values() for one in each.requests]

    def take_all(self) -> None:
        """Takes the requests that are here, in any order: nobody knows what is under way."""
        self._order += list(self._connections)
        self._take_requests()

    def _take_requests(self) -> None:
        """New requests get their numbers, in the order in which the client has sent them."""
        new = [
            one
            for connection in map(self._connections.get, self._order)
            if connection is not None
            for one in connection.requests
            if one.arrival_ps < 0
        ]
        self._order.clear()
        for one in new:
            self._take(one)
        if new:
            self._clock.clients_work()

    def _take(self, one: _Exchange) -> None:
        now_ps = one.arrival_ps = self._clock.now_ps
        if one.row == 0:
            one.row = self._rows
            self._rows += 1
            self._exchanges[one.row] = one
            asked = msgspec.json.decode(one.body)
            tokens = prompt_tokens(asked)
            self.answers[one.row] = Answer(now_ps)
            self.input_tokens[one.row] = tokens
            limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
            self.output_tokens[one.row] = limit if isinstance(limit, int) else 0
            one.streams = bool(asked.get("stream"))
            path = one.head[0].decode("latin-1").split()[1]
            name = request_name(one.row)
            one.body = _json.encode(self._api.body(asked, path, name, paired=self._at_once))
            if self._at_once:
                self._ask_for_prompt(one)
            self._pass_on(one)
            return
        one.stage = len(self._stages) - 1
        self._send_at(now_ps, one)

    def _ask_for_prompt(self, one: _Exchange) -> None:
        """A server of the first stage gets the request, too, in front of the one that answers."""
        one.stage = len(self._stages) - 1
        prompt = _Exchange(one.connection, one.head, one.body, row=one.row, answer=one)
        self._prompts[one.row] = prompt
        self._pass_on(prompt)

    def _send_at(self, due_ps: int, one: _Exchange) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (due_ps, self._numbers, one))

    def _pass_on(self, one: _Exchange) -> None:
        """Where there is a choice of servers, it is made when all that ends now has ended."""
        stages = self._stages if self._at_once else (self._stages[one.stage],)
        if all(len(stage.doors) == 1 for stage in stages):
            self._give_door(one)
            return
        self._numbers += 1
        heapq.heappush(self._coming, (self._clock.now_ps, one.row, self._numbers, one))

    def _choose_doors(self) -> None:
        while self._coming and self._coming[0][0] <= self._clock.now_ps:
            self._give_door(heapq.heappop(self._coming)[-1])

    def _give_door(self, one: _Exchange) -> None:
        stage = self._stages[one.stage]
        one.door = stage.choose()
        group = stage.doors[one.door].group
        self.passed.setdefault(one.row, []).append(group)
        self._send_at(self._clock.now_ps + self._api_ps(group, self.input_tokens[one.row]), one)

    def _start(self, one: _Exchange) -> None:
        one.at = _At.API_SERVER
        one.moved.clear()
        self._clock.sent(one.row)
        one.task = asyncio.create_task(self._ask(one))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, _Reader), "listen made it"
        port = writer.get_extra_info("peername")[1]
        connection = self._connections[port] = _Connection(reader, writer, port)
        self._told.setdefault(port, (0, 0))
        if self.first_s is None:
            self.first_s = time.monotonic()
        self._clock.changed()
        try:
            while exchange := await self._read_request(connection, reader):
                connection.requests.append(exchange)
                self._clock.changed()
                await exchange.done.wait()
                connection.requests.remove(exchange)
                if (header(exchange.head, "connection") or "").lower() == "close":
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            if self._connections.get(port) is connection:
                self._left(port)
            self._clock.changed()

    def _left(self, port: int) -> None:
        """The client has closed a connection; what it still wants there ends."""
        self._told.pop(port, None)
        connection = self._connections.pop(port, None)
        for one in connection.requests if connection is not None else ():
            if one.at is not _At.ENDED:
                self.reasons.append(f"the client left request {one.row} before the answer's end")
                for each in (one, self._prompts.get(one.row)):
                    if each is not None and each.task is not None:
                        each.task.cancel()
            one.done.set()

    async def _read_request(
        self, connection: _Connection, reader: asyncio.StreamReader
    ) -> _Exchange | None:
        head = await _read_head(reader)
        if not head:
            return None
        body = await reader.readexactly(int(header(head, "content-length") or 0))
        connection.received += sum(map(len, head)) + 2 + len(body)
        method, path = head[0].decode("latin-1").split()[:2]
        one = _Exchange(connection, head, body, arrival_ps=-1)
        if method == "POST" and path.split("?")[0] in GENERATING and self._is_one(one):
            one.row = 0
        return one

    def _is_one(self, one: _Exchange) -> bool:
        """Whether it is one request for the engine core; what is none, the server may refuse."""
        try:
            asked = msgspec.json.decode(one.body)
        except msgspec.DecodeError:
            return False
        if not isinstance(asked, dict):
            return False
        prompt = asked.get("prompt")
        several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
        if several or asked.get("n", 1) != 1:
            one.refusal = "llmsim emulate: a request has one prompt and one answer"
        return not one.refusal

    async def _ask(self, one: _Exchange) -> None:
        """The exchange with the server; what comes waits for `flush`."""
        if one.answer is not None:
            await self._ask_prompt(one, one.answer)
            return
        if one.refusal:
            one.waiting.append(_failed("400 Bad Request", one.refusal))
            self._end(one)
            return
        try:
            door = self._stages[one.stage].doors[one.door]
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", door.port, limit=LONGEST_LINE
            )
            try:
                if one.row >= 0 and one.stage < len(self._stages) - 1:
                    writer.write(_request(one, door, _prompt_alone(one.body), closes=True))
                    if await self._is_answered(reader):
                        self._next_stage(one)
                        return
                    raise ConnectionResetError("the prompt was refused")
                writer.write(_request(one, door, one.body))
                await self._answer(one, reader)
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            why = f"llmsim emulate: the server has not answered: {type(error).__name__}"
            if one.answered:
                one.breaks = True
            else:
                one.waiting.append(_failed("502 Bad Gateway", why))
            self.reasons.append(why)
        except asyncio.CancelledError:
            self._end(one)
            raise
        self._end(one)

    async def _ask_prompt(self, one: _Exchange, answer: _Exchange) -> None:
        """The exchange with a server that computes a prompt, whose own answer is discarded."""
        said = ""
        door = self._stages[one.stage].doors[one.door]
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", door.port, limit=LONGEST_LINE
            )
            try:
                writer.write(_request(one, door, one.body, closes=True))
                said = await _refusal_of(reader)
            finally:
                writer.close()
        except OSError as error:
            said = f"llmsim emulate: the server has not answered: {type(error).__name__}"
            self.reasons.append(said)
        finally:
            self._end_prompt(one)
        if said:
            self._refuse(answer, said)

    def _end_prompt(self, one: _Exchange) -> None:
        """Its server has said all of it."""
        reached = one.at is _At.ENGINE
        one.at = _At.ENDED
        self._prompts.pop(one.row, None)
        self._stages[one.stage].left(one.door)
        one.moved.set()
        self._clock.read(one.tokens_at_server)
        one.tokens_at_server = 0
        if not reached:
            self._clock.refused(one.row)

    def _refuse(self, one: _Exchange, why: str) -> None:
        """The server that computes the prompt has refused it: nobody waits for the answer."""
        if one.at is _At.ENDED:
            return
        self.answers[one.row].refused = one.refusal = why
        if one.task is None:  # it has still to be sent, and is not
            return
        if one.answered:
            one.breaks = True
        else:
            one.waiting.append(_failed("400 Bad Request", why))
        if one.at is _At.ENGINE:
            self._clock.leaves(one.row)
        one.task.cancel()

    def _leave_prompt(self, one: _Exchange) -> None:
        """The server that computes the prompt of a request that has been refused goes on without
        its client.
        """
        prompt = self._prompts.get(one.row)
        if prompt is None or prompt.task is None or not self.answers[one.row].refused:
            return
        if prompt.at is _At.ENGINE:
            self._clock.leaves(one.row)
        prompt.task.cancel()

    async def _is_answered(self, reader: asyncio.StreamReader) -> bool:
        """Whether a server has computed a prompt; what it samples is discarded."""
        status = await reader.readline()
        while await reader.readline():
            pass
        return b" 200 " in status

    def _next_stage(self, one: _Exchange) -> None:
        """Before the clock moves."""
        self._stages[one.stage].left(one.door)
        one.stage += 1
        one.at = _At.RELAY
        self._pass_on(one)
        self._clock.clients_work()
        self._clock.read(one.tokens_at_server)
        one.tokens_at_server = 0

    async def _answer(self, one: _Exchange, reader: asyncio.StreamReader) -> None:
        head = await _read_head(reader)
        if not head:
            raise ConnectionResetError("no answer")
        one.waiting += [*head, b"\r\n"]
        one.answered = True
        refused = b" 200 " not in head[0]
        if (header(head, "transfer-encoding") or "").lower() == "chunked":
            while True:
                size = await reader.readline()
                if not size:
                    raise ConnectionResetError("the answer breaks off")
                data = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
                one.waiting += [size, data]
                if len(data) == 2:
                    return
                if one.row in self.answers and _ERROR in data.decode(errors="replace"):
                    self.answers[one.row].refused = data.decode(errors="replace")
                self._read(one, data)
        body = await reader.readexactly(int(header(head, "content-length") or 0))
        one.waiting.append(body)
        if refused and one.row in self.answers:
            self.answers[one.row].refused = body[:4096].decode(errors="replace")

    def _read(self, one: _Exchange, data: bytes) -> None:
        """A part of an answer in parts: the tokens in it are no longer under way."""
        tokens = sum(
            self._api.tokens(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")
        )
        if tokens and one.streams:
            one.tells = True
            one.tokens_at_server -= tokens
            self._clock.read(tokens)

    def _end(self, one: _Exchange) -> None:
        """The answer is complete."""
        reached = one.at is _At.ENGINE
        one.at, one.tells = _At.ENDED, True
        self._leave_prompt(one)
        if self._exchanges.pop(one.row, None) is not None and one.row in self.passed:
            self._stages[one.stage].left(one.door)
        one.moved.set()
        if one.tokens_at_server:
            self._clock.read(one.tokens_at_server)
            one.tokens_at_server = 0
        if not reached:
            self._clock.refused(one.row)
        self._clock.changed()


_SIOCOUTQNSD = 0x894B


def _unsent(socket: Any) -> int:
    """Bytes that the other end's kernel has still to take; those that it has may be unconfirmed."""
    return int(struct.unpack("i", fcntl.ioctl(socket.fileno(), _SIOCOUTQNSD, b"\0" * 4))[0])


def prompt_tokens(asked: dict[str, Any]) -> int:
    """Tokens of a prompt: one for each word (`llmsim.emulation.words`)."""
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt.split())
    messages = asked.get("messages")
    said = [_text_of(one) for one in messages or () if isinstance(one, dict)]
    return sum(len(text.split()) for text in said)


def _text_of(message: dict[str, Any]) -> str:
    """What is said in a message: a text, or parts of which some are texts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [one.get("text") for one in parts if isinstance(one, dict)]
    return " ".join(text for text in texts if isinstance(text, str))


async def _refusal_of(reader: asyncio.StreamReader) -> str:
    """What a server has said instead of an answer; empty: it has answered."""
    status = await reader.readline()
    said = b""
    while part := await reader.read(LONGEST_LINE):
        said += part
    text = said.split(b"\r\n\r\n", 1)[-1][:4096].decode(errors="replace")
    is_error = b" 200 " not in status or _ERROR in text
    return " ".join(text.split()) if is_error else ""


async def _read_head(reader: asyncio.StreamReader) -> list[bytes]:
    """The lines before the empty one; none at the connection's end."""
    lines = []
    with suppress(ConnectionError):
        while (line := await reader.readline()) not in (b"\r\n", b""):
            lines.append(line)
    return lines


def header(head: list[bytes], name: str) -> str | None:
    """The value of a header, or None."""
    wanted = name.encode() + b":"
    for line in head[1:]:
        if line.lower().startswith(wanted):
            return line[len(wanted) :].decode("latin-1").strip()
    return None


_ERROR = '{"error":'
"""How an error begins within a stream."""
_LENGTHS = ("max_completion_tokens", "min_tokens", "stream_options", "stop", "logprobs")
"""What a request that computes a prompt alone leaves out."""
_OURS = (b"content-length:", b"x-request-id:", b"expect:", b"connection:")


def _prompt_alone(body: bytes) -> bytes:
    """The same request with an answer of one token, in a stream."""
    asked = msgspec.json.decode(body)
    kept = {name: value for name, value in asked.items() if name not in _LENGTHS}
    more = {"max_tokens": 1, "stream": True, "return_token_ids": True}
    return _json.encode(kept | more)


def _request(one: _Exchange, door: Door, body: bytes, *, closes: bool = False) -> bytes:
    """As the client has sent it, with a name that says its row, and the rank that is chosen;
    `closes`: the connection ends with the answer.
    """
    head = [one.head[0], *(line for line in one.head[1:] if not line.lower().startswith(_OURS))]
    head.append(f"Content-Length: {len(body)}\r\n".encode())
    if closes:
        head.append(b"Connection: close\r\n")
    if one.row >= 0:
        head.append(f"X-Request-Id: {request_name(one.row)}\r\n".encode())
        if door.rank is not None:
            head.append(f"X-data-parallel-rank: {door.rank}\r\n".encode())
    return b"".join(head) + b"\r\n" + body


def _failed(status: str, why: str) -> bytes:
    body = _json.encode({"error": {"message": why, "code": int(status[:3])}})
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
