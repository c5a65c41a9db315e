"""Stands between an unmodified client and the server: it knows which messages are under way.

Bytes of the client are counted on both sides. Requests go to the server one after the other, in
the client's order; answers go to the client when all tokens of the present time are here.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from llmsim.emulation.load import Answer
from llmsim.emulation.requests import request_name
from llmsim.emulation.servers.doors import Stage
from llmsim.emulation.servers.exchanges import (
    At,
    ClientExchange,
    Connection,
    CountingReader,
    Exchange,
)
from llmsim.emulation.servers.http_messages import (
    ERROR,
    LONGEST_LINE,
    failed,
    header,
    prompt_tokens,
    read_head,
)
from llmsim.emulation.servers.openai_api import OpenAiApi
from llmsim.emulation.servers.prompts import OwnPrompts, PulledPrompts, PushedPrompts

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
        self._api = api
        self._clock, self._api_ps, self._heard = clock, api_ps, heard
        self._stages = stages
        self._prompts = self._prompts_of(at_once=at_once)
        self.passed: dict[int, list[int]] = {}
        """By row, the engine cores that a request was given, in order."""
        self._coming: list[tuple[int, int, int, Exchange]] = []
        """Requests for which a server is to be chosen: (when, row, number, exchange)."""
        self.port = 0
        self.answers: dict[int, Answer] = {}
        self.input_tokens: dict[int, int] = {}
        self.output_tokens: dict[int, int] = {}
        self.reasons: list[str] = []
        """Why two emulations may differ."""
        self._rows = 0
        self._exchanges: dict[int, ClientExchange] = {}
        """By row, those that have not ended."""
        self._connections: dict[int, Connection] = {}
        """By the client's port."""
        self._told: dict[int, tuple[int, int]] = {}
        """What the client says of each: bytes received, bytes sent."""
        self._order: list[int] = []
        self._due: list[tuple[int, int, Exchange]] = []
        self._numbers = 0
        self.first_s: float | None = None
        """When a client has connected, by the real clock."""

    def _prompts_of(self, *, at_once: bool) -> OwnPrompts:
        if len(self._stages) < 2:
            return OwnPrompts(self)
        kind = PushedPrompts if at_once else PulledPrompts
        return kind(self, self._clock, self._stages[0])

    async def listen(self) -> asyncio.AbstractServer:
        """The client may connect from now on, to `port`."""
        server = await asyncio.get_running_loop().create_server(
            lambda: asyncio.StreamReaderProtocol(CountingReader(limit=LONGEST_LINE), self._serve),
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
                self._clock.sent(exchange.row)
                exchange.start()
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
        for exchange in (self._prompts.of(row), self._exchanges.get(row)):
            if exchange is not None and exchange.at is At.API_SERVER:
                exchange.at = At.ENGINE
                exchange.moved.set()
                self.input_tokens[row] = tokens
                self._heard(row, tokens)
                return

    def asks_engine(self) -> None:
        """What is no request for tokens waits at an engine core, and holds up nobody."""
        for one in self._all():
            if one.row < 0 and one.at is At.API_SERVER:
                one.moved.set()

    def given(self, row: int, tokens: int, ended: bool, core: int) -> int:
        """An engine core gives tokens; returns how many messages are under way for them."""
        prompt, exchange = self._prompts.of(row), self._exchanges.get(row)
        if prompt is not None and prompt.door.group == core:
            prompt.tokens_at_server += tokens + ended
            return tokens + ended
        if exchange is None:
            return 0
        times = self.answers[row].token_ps
        times += [self._clock.now_ps] * tokens
        if ended:
            self.output_tokens[row] = len(times)
        under_way = (tokens if exchange.streams else 0) + ended
        exchange.tokens_at_server += under_way
        return under_way

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
            if one.at is At.ENDED:
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

    def _all(self) -> list[ClientExchange]:
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

    def _take(self, one: ClientExchange) -> None:
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
            paired = self._prompts.at_once
            one.body = _json.encode(self._api.body(asked, path, name, paired=paired))
            self._prompts.begin(one)
            return
        self._send_at(now_ps, one)

    def _send_at(self, due_ps: int, one: Exchange) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (due_ps, self._numbers, one))

    def pass_on(self, one: Exchange) -> None:
        """Where there is a choice of servers, it is made when all that ends now has ended."""
        self._clock.clients_work()
        stages = self._stages if self._prompts.at_once else (one.stage,)
        if all(len(stage.doors) == 1 for stage in stages):
            self._give_door(one)
            return
        self._numbers += 1
        heapq.heappush(self._coming, (self._clock.now_ps, one.row, self._numbers, one))

    def _choose_doors(self) -> None:
        while self._coming and self._coming[0][0] <= self._clock.now_ps:
            self._give_door(heapq.heappop(self._coming)[-1])

    def _give_door(self, one: Exchange) -> None:
        group = one.choose_door().group
        self.passed.setdefault(one.row, []).append(group)
        self._send_at(self._clock.now_ps + self._api_ps(group, self.input_tokens[one.row]), one)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, CountingReader), "listen made it"
        port = writer.get_extra_info("peername")[1]
        connection = self._connections[port] = Connection(reader, writer, port)
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
            if one.at is not At.ENDED:
                self.reasons.append(f"the client left request {one.row} before the answer's end")
                for each in (one, self._prompts.of(one.row)):
                    if each is not None and each.task is not None:
                        each.task.cancel()
            one.done.set()

    async def _read_request(
        self, connection: Connection, reader: asyncio.StreamReader
    ) -> ClientExchange | None:
        head = await read_head(reader)
        if not head:
            return None
        body = await reader.readexactly(int(header(head, "content-length") or 0))
        connection.received += sum(map(len, head)) + 2 + len(body)
        method, path = head[0].decode("latin-1").split()[:2]
        one = ClientExchange(head, body, self._stages[-1], self._ask, connection=connection)
        if method == "POST" and path.split("?")[0] in GENERATING and self._is_one(one):
            one.row = 0
        return one

    def _is_one(self, one: ClientExchange) -> bool:
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

    async def _ask(self, one: ClientExchange) -> None:
        """The exchange with the server; what comes waits for `flush`."""
        if one.refusal:
            one.waiting.append(failed("400 Bad Request", one.refusal))
            self._end(one)
            return
        try:
            async with one.sent() as reader:
                await self._answer(one, reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            why = f"llmsim emulate: the server has not answered: {type(error).__name__}"
            if one.answered:
                one.breaks = True
            else:
                one.waiting.append(failed("502 Bad Gateway", why))
            self.reasons.append(why)
        except asyncio.CancelledError:
            self._end(one)
            raise
        self._end(one)

    def refuse(self, one: ClientExchange, why: str) -> None:
        """The server that computes the prompt has refused it: nobody waits for the answer."""
        if one.at is At.ENDED:
            return
        self.answers[one.row].refused = one.refusal = why
        if one.task is None:  # it has still to be sent, and is not
            return
        if one.answered:
            one.breaks = True
        else:
            one.waiting.append(failed("400 Bad Request", why))
        if one.at is At.ENGINE:
            self._clock.leaves(one.row)
        one.task.cancel()

    def end_unsent(self, one: ClientExchange, refusal: str) -> None:
        """The same of a request that no server has been given to answer; empty: the client has left
        it.
        """
        if refusal:
            self.answers[one.row].refused = one.refusal = refusal
            one.waiting.append(failed("400 Bad Request", refusal))
        self._end(one)

    async def _answer(self, one: ClientExchange, reader: asyncio.StreamReader) -> None:
        head = await read_head(reader)
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
                if one.row in self.answers and ERROR in data.decode(errors="replace"):
                    self.answers[one.row].refused = data.decode(errors="replace")
                self._read(one, data)
        body = await reader.readexactly(int(header(head, "content-length") or 0))
        one.waiting.append(body)
        if refused and one.row in self.answers:
            self.answers[one.row].refused = body[:4096].decode(errors="replace")

    def _read(self, one: ClientExchange, data: bytes) -> None:
        """A part of an answer in parts: the tokens in it are no longer under way."""
        tokens = sum(
            self._api.tokens(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")
        )
        if tokens and one.streams:
            one.tells = True
            one.tokens_at_server -= tokens
            self._clock.read(tokens)

    def _end(self, one: ClientExchange) -> None:
        """The answer is complete."""
        reached = one.at is At.ENGINE
        one.at, one.tells = At.ENDED, True
        answer = self.answers.get(one.row)
        if answer is not None and answer.refused:
            self._prompts.leave(one.row)
        self._exchanges.pop(one.row, None)
        one.leave_door()
        one.moved.set()
        if one.tokens_at_server:
            self._clock.read(one.tokens_at_server)
            one.tokens_at_server = 0
        if not reached:
            self._clock.refused(one.row)
        self._clock.changed()
