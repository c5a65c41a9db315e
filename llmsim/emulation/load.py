"""The clients: they send the workload's requests over HTTP at virtual times, and note when tokens
come.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec

from llmsim.core import Workload
from llmsim.emulation.engines.engine import Endpoint, RefusedError
from llmsim.emulation.engines.vllm import Completions
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.servers.doors import Stage
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.scheduling.conformance.vllm.live import LiveRequest

LONGEST_LINE = 1 << 22
_EVENT = b"data: "
_DONE = b"data: [DONE]"
_json = msgspec.json.Encoder()


@dataclass
class Answer:
    """What a client has seen of its request."""

    arrival_ps: int
    """When the client has sent it; the engine has it an API server's time later."""
    token_ps: list[int] = field(default_factory=list)
    """When each token came."""
    refused: str = ""
    """What the server said instead of an answer."""


@dataclass(frozen=True, order=True)
class _Coming:
    """A request that comes to a stage, and has still to be given one of its doors."""

    at_ps: int
    stage: int
    group: int
    """The engine core that has computed its prompt; none: 0."""
    row: int


@dataclass(frozen=True, order=True)
class _Due:
    """A request on its way to an engine."""

    at_ps: int
    """When the engine gets it."""
    row: int
    stage: int
    door: int


class Clients:
    """Sends every request when it is due, the calls of a session one after the other.

    Where prompts and answers are computed apart, it is the proxy, too: a server of the second stage
    gets a request when one of the first has answered with a token, which is discarded.
    """

    def __init__(
        self,
        keeper: Keeper,
        workload: Workload,
        requests: Sequence[LiveRequest],
        model: str,
        stages: Sequence[Stage],
        endpoint: Endpoint | None = None,
    ) -> None:
        """`stages`: in the order in which requests pass them; `endpoint`: of their servers, by
        default OpenAI's.
        """
        self._endpoint: Endpoint = Completions() if endpoint is None else endpoint
        self._keeper, self._workload, self._requests = keeper, workload, requests
        self._model, self._stages = model, stages
        self.answers: dict[int, Answer] = {}
        """By row, of those whose arrival is known."""
        self.passed: dict[int, list[int]] = {}
        """By row, the engine cores that a request was given, in order."""
        self._coming: list[_Coming] = []
        self._due: list[_Due] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Returns when every request has its answer."""
        arrivals = self._workload.arrival_ps.tolist()
        for row, arrival_ps in enumerate(arrivals):
            if arrival_ps >= 0:
                self._schedule(row, arrival_ps)
        while self._due or self._under_way or self._coming:
            now_ps = self._keeper.time.now_ps
            if self._coming and self._coming[0].at_ps <= now_ps:
                if await self._keeper.clients_turn():
                    self._choose_doors()
            elif self._due and self._due[0].at_ps <= now_ps:
                await self._send(heapq.heappop(self._due))
            else:
                ahead = [queue[0].at_ps for queue in (self._coming, self._due) if queue]
                await self._keeper.clients_wait(min(ahead, default=None))

    def _schedule(self, row: int, arrival_ps: int) -> None:
        self.answers[row] = Answer(arrival_ps)
        self._pass_on(_Coming(arrival_ps, 0, 0, row))

    def _pass_on(self, coming: _Coming) -> None:
        """Where there is a choice, it is made at that time, when all that ends then has ended."""
        if len(self._stages[coming.stage].doors) == 1:
            self._give_door(coming)
        else:
            heapq.heappush(self._coming, coming)

    def _choose_doors(self) -> None:
        while self._coming and self._coming[0].at_ps <= self._keeper.time.now_ps:
            self._give_door(heapq.heappop(self._coming))

    def _give_door(self, coming: _Coming) -> None:
        stage = self._stages[coming.stage]
        number = stage.choose()
        door = stage.doors[number]
        self.passed.setdefault(coming.row, []).append(door.group)
        engine_ps = coming.at_ps + door.api_ps[coming.row]
        heapq.heappush(self._due, _Due(engine_ps, coming.row, coming.stage, number))

    async def _send(self, due: _Due) -> None:
        """Returns when an engine has it, so that engines see requests of one time in order."""
        self._keeper.sent()
        task = asyncio.create_task(self._ask(due))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        reached = asyncio.ensure_future(self._keeper.reached())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._keeper.time.degraded:
            self._keeper.fail(NoProgressError(f"a request failed: {task.exception()}"))
        self._keeper.clients_work()

    async def _ask(self, due: _Due) -> None:
        stage = self._stages[due.stage]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", stage.doors[due.door].port, limit=LONGEST_LINE
        )
        is_last = due.stage == len(self._stages) - 1
        try:
            rank = stage.doors[due.door].rank
            writer.write(self._request(due.row, rank, prompt_alone=not is_last))
            status = await reader.readline()
            if b" 200 " not in status:
                self._refuse(due, await _refusal(status, reader))
                return
            if is_last:
                await self._read_answer(due, reader)
            else:
                await self._read_prompt(due, reader)
        except RefusedError as error:
            self._refuse(due, str(error))
        finally:
            writer.close()

    def _refuse(self, due: _Due, said: str) -> None:
        self.answers[due.row].refused = said
        self._stages[due.stage].left(due.door)
        self._keeper.refused()

    def _request(self, row: int, rank: int | None, *, prompt_alone: bool) -> bytes:
        one, endpoint = self._requests[row], self._endpoint
        body = _json.encode(endpoint.body(one, self._model, prompt_alone=prompt_alone))
        chosen = "" if rank is None else f"X-data-parallel-rank: {rank}\r\n"
        head = (
            f"POST {endpoint.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {one.name}\r\n{chosen}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def _read_prompt(self, due: _Due, reader: asyncio.StreamReader) -> None:
        stage = self._stages[due.stage]
        async for tokens in self._tokens(reader):
            stage.left(due.door)
            group = stage.doors[due.door].group
            self._pass_on(_Coming(self._keeper.time.now_ps, due.stage + 1, group, due.row))
            self._keeper.clients_work()
            self._keeper.read(tokens)

    async def _read_answer(self, due: _Due, reader: asyncio.StreamReader) -> None:
        answer, wanted = self.answers[due.row], self._requests[due.row].output_tokens
        async for tokens in self._tokens(reader):
            answer.token_ps += [self._keeper.time.now_ps] * tokens
            if len(answer.token_ps) >= wanted:
                self._stages[due.stage].left(due.door)
                self._call_next(due.row)
            self._keeper.read(tokens)
        if len(answer.token_ps) != wanted:
            raise NoProgressError(
                f"request {due.row} has {len(answer.token_ps)} of its {wanted} tokens"
            )

    async def _tokens(self, reader: asyncio.StreamReader) -> AsyncIterator[int]:
        """How many tokens come, again and again; events stand on lines of their own."""
        while line := await reader.readline():
            if not line.startswith(_EVENT) or line.startswith(_DONE):
                continue
            tokens = self._endpoint.tokens(line[len(_EVENT) :])
            if tokens:
                yield tokens

    def _call_next(self, row: int) -> None:
        """The session's next call, before the clock moves."""
        after = int(self._workload.next_call[row])
        if after >= 0:
            delay_ps = int(self._workload.tool_delay_ps[row])
            self._schedule(after, self._keeper.time.now_ps + delay_ps)
            self._keeper.clients_work()


async def _refusal(status: bytes, reader: asyncio.StreamReader) -> str:
    said = await reader.read(4096)
    return " ".join((status + said.split(b"\r\n\r\n", 1)[-1]).decode(errors="replace").split())
