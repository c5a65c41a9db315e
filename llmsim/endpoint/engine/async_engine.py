"""The simulation behind the endpoint: requests go in, and tokens come out when it is time."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from llmsim.core import Status
from llmsim.endpoint.engine.clock import PS_PER_NS, Clock, WarpClock
from llmsim.endpoint.engine.live import EngineProgress, LiveSimulation, Progress
from llmsim.endpoint.engine.timer import Timer
from llmsim.endpoint.protocol import ApiError


class Listener(Protocol):
    """Hears of requests as their clients see them (metrics, the recorded trace)."""

    def asked(self, stream: "Stream") -> None:
        """A request has come."""
        ...

    def refused(self, stream: "Stream") -> None:
        """A request found no room, and has not come."""
        ...

    def tokens(self, stream: "Stream", more: int, time_ps: int) -> None:
        """It has so many more tokens at that time."""
        ...

    def ended(self, stream: "Stream", time_ps: int) -> None:
        """It has its last token, or has ended otherwise (`stream.status`)."""
        ...


class LoraAdapter(Protocol):
    """What answers a request beside its model (`llmsim.endpoint.http.calls.Adapter`)."""

    @property
    def name(self) -> str:
        """Clients call it so."""
        ...

    @property
    def number(self) -> int:
        """From 1."""
        ...

    @property
    def path(self) -> str:
        """Where it was loaded from."""
        ...


class Samples:
    """The answers to one prompt (`n`)."""

    def __init__(self, number: int = 1) -> None:
        self.number = self._left = number
        self.longest = 0
        """Tokens of the longest answer so far."""

    def ended(self, tokens: int) -> bool:
        """An answer has all of its tokens; True: it was the last one."""
        self._left -= 1
        self.longest = max(self.longest, tokens)
        return self._left == 0


class Stream:
    """One prompt's answer on its way: what its client has, and what has come since it looked."""

    __slots__ = (
        "_coming",
        "_waiter",
        "adapter",
        "answer",
        "arrival_ps",
        "client",
        "first_ps",
        "group",
        "last_ps",
        "model",
        "model_name",
        "number",
        "output_tokens",
        "priority",
        "progress",
        "prompt",
        "prompt_tokens",
        "row",
        "samples",
        "status",
        "tokens",
    )  # fmt: skip

    def __init__(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        model: int,
        model_name: str,
        priority: int = 0,
        client: str = "",
        adapter: LoraAdapter | None = None,
        samples: Samples | None = None,
    ) -> None:
        """`model` and `model_name` are the deployment's; `client` takes part in virtual time."""
        self.prompt, self.answer = prompt, answer
        self.prompt_tokens, self.output_tokens = len(prompt), len(answer)
        self.samples = samples or Samples()
        self.model, self.model_name = model, model_name
        self.priority, self.client, self.adapter = priority, client, adapter
        self.number = self.row = -1
        self.arrival_ps = self.first_ps = self.last_ps = -1
        self.group = -1
        self.progress: EngineProgress | None = None
        """What its engine knows of it; None until it has ended there."""
        self.tokens = 0
        self.status = Status.RUNNING
        self._coming: deque[tuple[int, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more comes."""
        return self.status != Status.RUNNING

    async def read(self) -> list[tuple[int, int]]:
        """(tokens in all, time in ps) of what has come, at least one; none: nothing more comes."""
        while not self._coming:
            if self.done:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        coming = list(self._coming)
        self._coming.clear()
        return coming

    def push(self, tokens: int, time_ps: int) -> None:
        """Tokens have come."""
        self._coming.append((tokens, time_ps))
        self.wake()

    def wake(self) -> None:
        """Its reader looks again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncEngine:
    """Moves a live simulation along a clock, inside one event loop."""

    def __init__(self, live: LiveSimulation, clock: Clock, listeners: Sequence[Listener]) -> None:
        self.live, self.clock = live, clock
        self._listeners = listeners
        self._streams: dict[int, Stream] = {}
        self._delayed: list[tuple[int, int, int, int]] = []
        """(time, order, row's stream number, tokens) of what takes its time beside the engine."""
        self._by_number: dict[int, Stream] = {}
        self._order = 0
        self._asked = 0
        self._last_ps = 0
        self._timer: Timer | None = None
        self._looks_soon = False
        self.failure: Exception | None = None
        """What ended the simulation; None: it goes on."""
        self.failed: Callable[[], None] = lambda: None
        """Called when it has failed."""
        if isinstance(clock, WarpClock):
            clock.changed = self.go_on

    @property
    def unfinished(self) -> int:
        """Requests whose clients wait."""
        return len(self._by_number)

    def submit(self, stream: Stream, at_ps: int | None = None) -> None:
        """The request arrives now, or at that later time; raises ApiError where no room is left.

        Two arrivals are at least 1 ns apart, so that a trace can tell their order.
        """
        self._advance()
        now_ps = max(self.clock.now_ps(), self._last_ps + PS_PER_NS, at_ps or 0)
        now_ps = _whole_ns(now_ps)
        row = self.live.ask(
            now_ps,
            stream.prompt,
            stream.answer,
            model=stream.model,
            priority=stream.priority,
            adapter=0 if stream.adapter is None else stream.adapter.number,
        )
        if row is None:
            for listener in self._listeners:
                listener.refused(stream)
            raise ApiError(503, "too many requests are under way; ask again later")
        if at_ps is None:
            self._last_ps = now_ps
        self._asked += 1
        stream.row, stream.number, stream.arrival_ps = row, self._asked, now_ps
        self._streams[row] = self._by_number[stream.number] = stream
        for listener in self._listeners:
            listener.asked(stream)
        stream.prompt = stream.answer = ()
        self.go_on()

    def abort(self, stream: Stream) -> None:
        """Its client has gone."""
        if stream.done:
            return
        time_ps = _whole_ns(max(self.clock.now_ps(), stream.arrival_ps))
        if self._streams.get(stream.row) is stream:
            self.live.leave(stream.row, time_ps)
        else:
            self._end(stream, Status.CANCELLED, time_ps)
        self.go_on()

    def go_on(self) -> None:
        """Looks again when the present turn of the event loop is over."""
        if not self._looks_soon:
            self._looks_soon = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._looks_soon = False
        if self._timer is None:
            self._timer = Timer(asyncio.get_running_loop(), self._tick)
        self._timer.cancel()
        try:
            self._advance()
        except ApiError:
            return
        wait_s = self.clock.wait_s(self._next_ps())
        if wait_s is None:
            return
        if wait_s == 0:
            self.go_on()
        else:
            self._timer.set(wait_s)

    def _next_ps(self) -> int:
        next_ps = self.live.next_event_ps
        return min(next_ps, self._delayed[0][0]) if self._delayed else next_ps

    def _advance(self) -> None:
        """Raises ApiError where the simulation has failed; then `failure` says why."""
        if self.failure is None:
            try:
                return self._advance_to_now()
            except Exception as error:
                self.failure = error
                self.failed()
        for stream in list(self._by_number.values()):
            self._end(stream, Status.CANCELLED, stream.last_ps)
        raise ApiError(500, "the simulation has failed")

    def _advance_to_now(self) -> None:
        until_ps = self.clock.may_reach_ps(self._next_ps())
        for progress in self.live.advance(until_ps):
            self._take(progress)
        while self._delayed and self._delayed[0][0] <= until_ps:
            time_ps, _, number, tokens = heapq.heappop(self._delayed)
            self._deliver(number, tokens, time_ps)
        if isinstance(self.clock, WarpClock):
            self.clock.wake_those_due()

    def _take(self, progress: Progress) -> None:
        stream = self._streams.get(progress.row)
        if stream is None:
            return
        if stream.group < 0:
            stream.group = self.live.progress(progress.row).group
        if progress.ended is not None or progress.tokens >= stream.output_tokens:
            stream.progress = self.live.progress(progress.row)
        if progress.ended is not None:
            del self._streams[progress.row]
            self._end(stream, progress.ended, progress.time_ps)
            return
        if progress.tokens >= stream.output_tokens:
            del self._streams[progress.row]
        each_ps = self.live.output_processing_ps
        if each_ps == 0:
            self._deliver(stream.number, progress.tokens, progress.time_ps)
            return
        self._order += 1
        time_ps = progress.time_ps + progress.tokens * each_ps
        heapq.heappush(self._delayed, (time_ps, self._order, stream.number, progress.tokens))

    def _deliver(self, number: int, tokens: int, time_ps: int) -> None:
        stream = self._by_number.get(number)
        if stream is None:
            return
        more = tokens - stream.tokens
        if stream.tokens == 0:
            stream.first_ps = time_ps
        for listener in self._listeners:
            listener.tokens(stream, more, time_ps)
        stream.tokens, stream.last_ps = tokens, time_ps
        stream.push(tokens, time_ps)
        if tokens >= stream.output_tokens:
            self._end(stream, Status.FINISHED, time_ps)

    def _end(self, stream: Stream, status: Status, time_ps: int) -> None:
        self._by_number.pop(stream.number, None)
        stream.status = status
        for listener in self._listeners:
            listener.ended(stream, time_ps)
        stream.wake()
        self.clock.answered(stream.client)


def _whole_ns(time_ps: int) -> int:
    """The first nanosecond that is not before: traces have no finer times."""
    return -(-time_ps // PS_PER_NS) * PS_PER_NS
