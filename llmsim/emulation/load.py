"""The clients: they send the workload's requests over HTTP at virtual times, and note when tokens
come.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import count

import msgspec

from llmsim.core import Clients as ClosedLoop
from llmsim.core import Workload
from llmsim.emulation.api_server import ApiServer, Chunk
from llmsim.emulation.engines.engine import Endpoint, RefusedError
from llmsim.emulation.engines.vllm import Completions
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.servers.doors import Door, Stage
from llmsim.emulation.servers.of_instances import Handover
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.scheduling.conformance.vllm.request import LiveRequest

LONGEST_LINE = 1 << 22
_LOOK_S = 0.5
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
    gave_up: bool = False
    """The client has left before its end."""


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
    number: int
    """Of those that an API server has worked on, or that waited for memory, in their order; else
    0.
    """
    coming: _Coming
    """Those that get there at one time go in the order in which they came to their stages."""
    door: int

    @property
    def row(self) -> int:
        """The request."""
        return self.coming.row

    @property
    def stage(self) -> int:
        """Of the engine."""
        return self.coming.stage


class _What(IntEnum):
    """What happens to clients and API servers, in the order of one time."""

    ROUND = 0
    """An API server's process ends a round; the number is that of the process."""
    GIVES_UP = 1
    """A client waits no longer for its request."""
    IS_FREE = 2
    """A client of a closed loop may ask again."""


@dataclass(frozen=True, order=True)
class _Later:
    at_ps: int
    what: _What
    number: int
    """Of a process, or a request's row."""


def _stages_of(handover: Handover, count: int) -> tuple[range, range]:
    is_pulled, is_written = handover is Handover.PULLED, handover is Handover.WRITTEN
    return range(1 if is_pulled else count), range(count - 1 if is_written else 0)


class Clients:
    """Sends every request when it is due, the calls of a session one after the other.

    Where prompts and answers are computed apart, it is the proxy, too: a server of the second stage
    gets a request when one of the first has answered with a token, which is discarded. Where KV is
    pushed, servers of both stages get it at once, or the first one when the second has memory.
    """

    def __init__(
        self,
        keeper: Keeper,
        workload: Workload,
        requests: Sequence[LiveRequest],
        model: str,
        stages: Sequence[Stage],
        endpoint: Endpoint | None = None,
        loop: ClosedLoop | None = None,
        *,
        handover: Handover = Handover.PULLED,
    ) -> None:
        """`stages`: in the order in which requests pass them; `endpoint`: of their servers, by
        default OpenAI's. `loop`: so many clients ask in turn; None: the loop is open. `handover`:
        how KV comes from one stage to the next.
        """
        self._first_stages, self._holding_stages = _stages_of(handover, len(stages))
        """Where requests that come go, and those that get them when the last one has memory."""
        self._passes_on = len(stages) > 1 and handover is Handover.PULLED
        self._held: dict[int, _Due] = {}
        """By row, requests that wait for that, and when API servers have read them."""
        self._endpoint: Endpoint = Completions() if endpoint is None else endpoint
        self._keeper, self._workload, self._requests = keeper, workload, requests
        self._model, self._stages = model, stages
        self.answers: dict[int, Answer] = {}
        """By row, of those whose arrival is known."""
        self.passed: dict[int, list[int]] = {}
        """By row, the engine cores that a request was given, in order."""
        self._coming: list[_Coming] = []
        self._due: list[_Due] = []
        self._under_way: dict[asyncio.Task[None], tuple[int, int]] = {}
        """Exchanges with servers, and their rows and stages."""
        self._later: list[_Later] = []
        self._aborts: list[tuple[int, int, int]] = []
        """(when the engine hears of it, row, stage) of requests whose clients have given up."""
        self._read: dict[int, int] = {}
        """By row, tokens that the server has given; the client may have them later."""
        self._computed: set[tuple[int, int]] = set()
        """Rows, and the stages whose servers have computed their prompts."""
        self._early: set[int] = set()
        """Rows whose clients have given up before an API server has read the prompt."""
        arrivals = workload.arrival_ps.tolist()
        self._lines = [row for row, arrival_ps in enumerate(arrivals) if arrival_ps >= 0]
        """Rows whose arrival the workload gives; the last one comes first."""
        self._lines.reverse()
        self._loop, self._free = loop, len(arrivals) if loop is None else loop.count
        self._processes: list[ApiServer] = []
        """Of all API servers."""
        self._first_process: dict[tuple[int, int], int] = {}
        """By stage and door whose API server works; its processes follow each other."""
        for number, stage in enumerate(stages):
            for place, door in enumerate(stage.doors):
                self._add_processes(number, place, door)
        self._spoken: dict[int, list[Chunk]] = {}
        """By process, what a step has given that it has still to take."""
        self._places: dict[int, dict[int, int]] = {}
        """By row, the doors that count it, by stage."""
        self._rounds: set[int] = set()
        """Processes whose round has begun, and whose end is awaited."""
        self._numbers = count(1)

    def _add_processes(self, stage: int, place: int, door: Door) -> None:
        config = door.api_server
        if config is None or not (config.request_ps or config.prompt_token_ps or config.chunk_ps):
            return
        self._first_process[stage, place] = len(self._processes)
        self._processes += [ApiServer(config) for _ in range(config.processes)]

    async def run(self) -> None:
        """Returns when every request has its answer, or its client has given up."""
        self._take_lines()
        while self._due or self._under_way or self._coming or self._next_later():
            if not await self._did_something(self._keeper.time.now_ps):
                await self._keeper.clients_wait(min(self._ahead_ps(), default=None))
        if any(one.gave_up for one in self.answers.values()):
            await self._keeper.engines_end()  # SGLang's requests end with the step behind

    async def _did_something(self, now_ps: int) -> bool:
        """The first of what is due; whether anything was."""
        later = self._next_later()
        if self._spoken and self._all_is_read():
            self._hand_over(now_ps)
        elif later is not None and later.at_ps <= now_ps:
            self._happen(heapq.heappop(self._later))
        elif self._coming and self._coming[0].at_ps <= now_ps:
            if await self._keeper.clients_turn():
                self._choose_doors()
        elif self._due and self._due[0].at_ps <= now_ps:
            await self._send(heapq.heappop(self._due))
        elif self._aborts and self._aborts[0][0] <= now_ps:
            await self._abort(*heapq.heappop(self._aborts)[1:])
        else:
            return False
        return True

    def _ahead_ps(self) -> list[int]:
        """When what is known of begins, of each kind the first."""
        later = self._next_later()
        ahead = [queue[0].at_ps for queue in (self._coming, self._due) if queue]
        ahead += [] if later is None else [later.at_ps]
        return ahead + [at_ps for at_ps, *_ in self._aborts[:1]]

    def _all_is_read(self) -> bool:
        time = self._keeper.time
        return not time.tokens_under_way or bool(time.degraded)

    def _take_lines(self) -> None:
        """Free clients take the next rows, at their arrival or now."""
        now_ps = 0 if self._loop is None else self._keeper.time.now_ps
        while self._free and self._lines:
            self._free -= 1
            row = self._lines.pop()
            self._schedule(row, max(int(self._workload.arrival_ps[row]), now_ps))

    def _next_later(self) -> _Later | None:
        """What happens next, without what has become void."""
        while self._later and self._is_void(self._later[0]):
            heapq.heappop(self._later)
        return self._later[0] if self._later else None

    def _is_void(self, one: _Later) -> bool:
        match one.what:
            case _What.GIVES_UP:
                return self._is_answered(one.number)
            case _What.IS_FREE:
                return not self._lines
        return False

    def _is_answered(self, row: int) -> bool:
        """The server has given all of it, or the client waits no longer."""
        answer, read = self.answers[row], self._read.get(row, 0)
        is_whole = read >= self._requests[row].output_tokens
        return is_whole or answer.gave_up or bool(answer.refused)

    def _happen(self, one: _Later) -> None:
        match one.what:
            case _What.ROUND:
                self._end_round(one.number, one.at_ps)
            case _What.GIVES_UP:
                self._give_up(one.number, one.at_ps)
            case _What.IS_FREE:
                self._free += 1
                self._take_lines()

    def _schedule(self, row: int, arrival_ps: int) -> None:
        self.answers[row] = Answer(arrival_ps)
        for stage in self._first_stages:
            self._pass_on(_Coming(arrival_ps, stage, 0, row))

    def _pass_on(self, coming: _Coming) -> None:
        """Where there is a choice, it is made at that time, when all that ends then has ended; an
        API server begins at that time, too.
        """
        if not self._chooses(coming.stage) and not self._processes:
            self._give_door(coming)
        else:
            heapq.heappush(self._coming, coming)

    def _chooses(self, stage: int) -> bool:
        """Whether there is a choice among the servers of a stage, or of one that gets the request
        at the same time.
        """
        at_once = self._first_stages if stage in self._first_stages else (stage,)
        return any(len(self._stages[one].doors) > 1 for one in at_once)

    def _choose_doors(self) -> None:
        while self._coming and self._coming[0].at_ps <= self._keeper.time.now_ps:
            self._give_door(heapq.heappop(self._coming))

    def _give_door(self, coming: _Coming) -> None:
        stage = self._stages[coming.stage]
        number = stage.choose()
        door = stage.doors[number]
        self.passed.setdefault(coming.row, []).append(door.group)
        self._places.setdefault(coming.row, {})[coming.stage] = number
        self._await_giving_up(coming)
        process = self._process_of(coming.stage, number, coming.row)
        if process is not None:
            tokens = int(self._workload.input_tokens[coming.row])
            self._processes[process].tokenize(coming.row, tokens, coming.at_ps)
            self._await_round(process)
            return
        engine_ps = coming.at_ps + door.api_ps[coming.row]
        due = _Due(engine_ps, 0, coming, number)
        if coming.stage in self._holding_stages:
            self._held[coming.row] = due
        else:
            heapq.heappush(self._due, due)
        if self.answers[coming.row].gave_up:  # at this very time
            self._leave_servers(coming.row, self._keeper.time.now_ps)

    def _await_giving_up(self, coming: _Coming) -> None:
        """From a request's arrival on."""
        timeouts = self._workload.timeout_ps
        if timeouts is None or timeouts[coming.row] < 0 or coming.stage not in self._first_stages:
            return
        deadline_ps = coming.at_ps + int(timeouts[coming.row])
        heapq.heappush(self._later, _Later(deadline_ps, _What.GIVES_UP, coming.row))

    def has_memory(self, row: int) -> None:
        """The server that answers a request has memory for its prompt: the other one gets it."""
        due = self._held.pop(row)
        at_ps = max(due.at_ps, self._keeper.time.now_ps)
        heapq.heappush(self._due, replace(due, at_ps=at_ps, number=next(self._numbers)))
        self._keeper.clients_work()

    def _process_of(self, stage: int, door: int, row: int) -> int | None:
        """The number of the process that works on a request; None: none does."""
        first = self._first_process.get((stage, door))
        config = self._stages[stage].doors[door].api_server
        if first is None or config is None:
            return None
        return first + row % config.processes

    def _await_round(self, process: int) -> None:
        """A round that has begun ends."""
        end_ps = self._processes[process].end_ps
        if end_ps is not None and process not in self._rounds:
            self._rounds.add(process)
            heapq.heappush(self._later, _Later(end_ps, _What.ROUND, process))

    def _hand_over(self, now_ps: int) -> None:
        """What a step has given goes to the API server, when all of it is here."""
        for process, chunks in sorted(self._spoken.items()):
            self._processes[process].stream(chunks, now_ps)
            self._await_round(process)
        self._spoken.clear()

    def _end_round(self, process: int, now_ps: int) -> None:
        """Answers reach their clients, and prompts are on their way to the engine."""
        done = self._processes[process].finish(now_ps)
        self._rounds.remove(process)
        for chunk in done.answers:
            self._client_gets(chunk.row, chunk.tokens)
        for row in done.prompts:
            ((stage, number),) = self._places[row].items()
            engine_ps = now_ps + self._stages[stage].doors[number].api_ps[row]
            coming = _Coming(now_ps, stage, 0, row)
            heapq.heappush(self._due, _Due(engine_ps, next(self._numbers), coming, number))
            if row in self._early:
                heapq.heappush(self._aborts, (engine_ps, row, stage))
        self._await_round(process)

    def _give_up(self, row: int, now_ps: int) -> None:
        """No engine hears of it earlier than of the request."""
        self.answers[row].gave_up = True
        self._end_session(row)
        self._leave_servers(row, now_ps)

    def _leave_servers(self, row: int, now_ps: int) -> None:
        for stage, number in list(self._places[row].items()):
            due_ps = [due.at_ps for due in self._due if (due.row, due.stage) == (row, stage)]
            leaving_ps = now_ps + self._stages[stage].doors[number].leaving_ps
            if due_ps or (row, stage) in self._under_way.values():
                heapq.heappush(self._aborts, (max([leaving_ps, *due_ps]), row, stage))
            else:
                self._early.add(row)
            self._uncount(row, stage)

    def _uncount(self, row: int, stage: int) -> None:
        """The request no longer counts at its server of that stage."""
        number = self._places[row].pop(stage, None)
        if number is not None:
            self._stages[stage].left(number)

    async def _abort(self, row: int, stage: int) -> None:
        """Returns when the engine knows that nobody waits for the request."""
        tasks = [task for task, one in self._under_way.items() if one == (row, stage)]
        if not tasks or self._has_answered(row, stage):
            return
        self._keeper.leaves(row)
        tasks[0].cancel()
        reached = asyncio.ensure_future(self._keeper.reached())
        while not (reached.done() or self._keeper.time.degraded):
            await asyncio.wait({reached}, timeout=_LOOK_S)
        reached.cancel()

    def _has_answered(self, row: int, stage: int) -> bool:
        """The server of that stage has given all that it will."""
        if stage < len(self._stages) - 1:
            return (row, stage) in self._computed
        return self._read.get(row, 0) >= self._requests[row].output_tokens

    def _end_session(self, row: int) -> None:
        """The client asks for nothing more in this session, and thinks."""
        if self._loop is None:
            return
        think_ps = int(self._loop.think_ps[row]) if len(self._loop.think_ps) else 0
        free_ps = self._keeper.time.now_ps + think_ps
        heapq.heappush(self._later, _Later(free_ps, _What.IS_FREE, row))
        self._keeper.clients_work()

    async def _send(self, due: _Due) -> None:
        """Returns when an engine has it, so that engines see requests of one time in order."""
        self._keeper.sent(due.row)
        task = asyncio.create_task(self._ask(due))
        self._under_way[task] = due.row, due.stage
        task.add_done_callback(self._ended)
        reached = asyncio.ensure_future(self._keeper.reached())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._under_way.pop(task, None)
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
                self._check_computed(due)
        except RefusedError as error:
            self._refuse(due, str(error))
        finally:
            writer.close()

    def _refuse(self, due: _Due, said: str) -> None:
        """The proxy leaves the other servers, as when its client gives up."""
        answer = self.answers[due.row]
        is_first = not (answer.refused or answer.gave_up)
        answer.refused = answer.refused or said
        self._keeper.forgets(due.row)
        self._uncount(due.row, due.stage)
        if is_first:
            self._end_session(due.row)
            self._leave_servers(due.row, self._keeper.time.now_ps)
        self._keeper.refused(due.row)
        self._keeper.clients_work()

    def _request(self, row: int, rank: int | None, *, prompt_alone: bool) -> bytes:
        one, endpoint = self._requests[row], self._endpoint
        model = self._adapter_of(row) or self._model
        body = _json.encode(endpoint.body(one, model, prompt_alone=prompt_alone, rank=rank))
        chosen = "" if rank is None else f"X-data-parallel-rank: {rank}\r\n"
        head = (
            f"POST {endpoint.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {one.name}\r\n{chosen}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _adapter_of(self, row: int) -> str:
        """The name of its adapter, under which the server knows the model with it; "": none."""
        names = self._workload.adapter
        return "" if names is None else names[row]

    async def _read_prompt(self, due: _Due, reader: asyncio.StreamReader) -> None:
        async for tokens in self._tokens(reader):
            self._computed.add((due.row, due.stage))
            self._uncount(due.row, due.stage)
            if self.answers[due.row].gave_up and self._passes_on:
                self._keeper.forgets_prompt(due.row)
            elif due.stage + 1 not in self._first_stages:
                group = self._keeper.cores_of(due.row)[-1]
                self._pass_on(_Coming(self._keeper.time.now_ps, due.stage + 1, group, due.row))
                self._keeper.clients_work()
            self._keeper.read(tokens)

    def _check_computed(self, due: _Due) -> None:
        """A server that ends without a token has not computed the prompt."""
        if (due.row, due.stage) not in self._computed:
            raise RefusedError("the prompt was not computed")

    async def _read_answer(self, due: _Due, reader: asyncio.StreamReader) -> None:
        row, wanted = due.row, self._requests[due.row].output_tokens
        process = self._process_of(due.stage, due.door, row)
        async for tokens in self._tokens(reader):
            self._read[row] = self._read.get(row, 0) + tokens
            if process is None:
                self._client_gets(row, tokens)
            else:
                self._spoken.setdefault(process, []).append(Chunk(row, tokens))
                self._keeper.clients_work()
            self._keeper.read(tokens)
        if self._read.get(row, 0) != wanted:
            raise NoProgressError(
                f"request {row} has {self._read.get(row, 0)} of its {wanted} tokens"
            )

    async def _tokens(self, reader: asyncio.StreamReader) -> AsyncIterator[int]:
        """How many tokens come, again and again; events stand on lines of their own."""
        while line := await reader.readline():
            if not line.startswith(_EVENT) or line.startswith(_DONE):
                continue
            tokens = self._endpoint.tokens(line[len(_EVENT) :])
            if tokens:
                yield tokens

    def _client_gets(self, row: int, tokens: int) -> None:
        """Before the clock moves: the answer's end brings the session's next call."""
        answer, wanted = self.answers[row], self._requests[row].output_tokens
        now_ps = self._keeper.time.now_ps
        answer.token_ps += [now_ps] * tokens
        if answer.gave_up:
            return
        enough = self._workload.cancel_after_tokens
        if len(answer.token_ps) >= wanted:
            self._uncount(row, len(self._stages) - 1)
            self._call_next(row)
        elif enough is not None and 0 < enough[row] <= len(answer.token_ps):
            self._leave(row, now_ps)

    def _leave(self, row: int, now_ps: int) -> None:
        """It has all that it wants, unless the engine has ended the answer."""
        if not self._is_answered(row):
            self._give_up(row, now_ps)
            self._keeper.clients_work()

    def _call_next(self, row: int) -> None:
        """The session's next call, before the clock moves."""
        after = int(self._workload.next_call[row])
        if after < 0:
            self._end_session(row)
            return
        delay_ps = int(self._workload.tool_delay_ps[row])
        self._schedule(after, self._keeper.time.now_ps + delay_ps)
        self._keeper.clients_work()


async def _refusal(status: bytes, reader: asyncio.StreamReader) -> str:
    said = await reader.read(4096)
    return " ".join((status + said.split(b"\r\n\r\n", 1)[-1]).decode(errors="replace").split())
