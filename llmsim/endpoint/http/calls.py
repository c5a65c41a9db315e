"""One HTTP call to the endpoint, and what all calls work on."""

import asyncio
import hmac
import itertools
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from llmsim.core import PS_PER_S
from llmsim.endpoint.engine.async_engine import AsyncEngine
from llmsim.endpoint.engine.clock import NEVER_PS, WarpClock
from llmsim.endpoint.engine.live import MOST_ADAPTERS
from llmsim.endpoint.metrics import Metrics
from llmsim.endpoint.protocol import ApiError, parse
from llmsim.endpoint.text import Answers, Tokenizer

MAX_BODY_BYTES = 16 << 20
MOST_DROPPED_BYTES = 8 * MAX_BODY_BYTES
"""Of a body that is too large: read, so that its client gets to read the answer, and dropped."""
CLIENT_HEADER, TIME_HEADER = b"x-virtual-client", b"x-virtual-time"

Handler = Callable[["Call"], Awaitable[None]]
Body = TypeVar("Body")


@dataclass(frozen=True)
class Served:
    """A model of the deployment as clients see it."""

    name: str
    number: int
    """Among the deployment's models."""
    max_model_len: int
    created: int
    adapter: "Adapter | None" = None
    """With which it answers; None: by itself."""

    @property
    def names(self) -> tuple[str, str]:
        """What clients may call it: its name, and that without its owner."""
        return self.name, self.name.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that was loaded."""

    name: str
    number: int
    """From 1; another path is another adapter."""
    path: str


@dataclass
class Endpoint:
    """What the routes work on."""

    engine: AsyncEngine
    metrics: Metrics
    tokenizer: Tokenizer
    answers: Answers
    models: Sequence[Served]
    output_tokens: int
    """Of an answer whose request sets no limit."""
    api_key: str = ""
    """Asked of every call under /v1; "": none is."""
    loras: dict[str, Served] = field(default_factory=dict)
    """By the adapter's name: the model that it is an adapter of, with it."""
    adapters: dict[tuple[str, str], Adapter] = field(default_factory=dict)
    """All that were ever loaded, by name and path."""
    closing: bool = False
    """New requests are turned away."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def next_id(self) -> int:
        """The number of a new answer."""
        return next(self.numbers)

    def model(self, name: str | None) -> Served:
        """The model, or that of the adapter, with this name; raises ApiError."""
        if not name:
            return self.models[0]
        for served in self.models:
            if name in served.names:
                return served
        if name in self.loras:
            return self.loras[name]
        raise ApiError(404, f"the model {name!r} does not exist", "model")

    def load_adapter(self, name: str, path: str) -> None:
        """Serves the first model with this adapter under its name; raises ApiError."""
        known = self.adapters.get((name, path))
        if known is None and len(self.adapters) >= MOST_ADAPTERS:
            raise ApiError(400, f"{MOST_ADAPTERS:,} LoRA adapters have been loaded; no more fit")
        adapter = known or Adapter(name, len(self.adapters) + 1, path)
        self.adapters[name, path] = adapter
        self.loras[name] = replace(self.models[0], adapter=adapter)

    @property
    def warp(self) -> WarpClock | None:
        """The clock, if clients can take part in it."""
        clock = self.engine.clock
        return clock if isinstance(clock, WarpClock) else None

    @property
    def created(self) -> int:
        """Seconds since 1970; in virtual time those of the simulated clock since 2001-09-09."""
        if self.warp is None:
            return int(time.time())
        return 1_000_000_000 + self.engine.clock.now_ps() // PS_PER_S


class Call:
    """One HTTP request: its body, and the ways to answer it."""

    def __init__(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        self.endpoint = endpoint
        self._scope, self._receive, self._send = scope, receive, send
        self._started = False
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(self, name: bytes) -> str:
        """A header's value; "": there is none."""
        return self._headers.get(name, b"").decode("latin-1")

    async def body(self, kind: type[Body]) -> Body:
        """The body, read and checked; raises ApiError."""
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the client has gone")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                parts.clear()  # a client that still sends does not read: what it sends is dropped
            if message.get("more_body", False) and size <= MOST_DROPPED_BYTES:
                continue
            if size > MAX_BODY_BYTES:
                raise ApiError(
                    413, f"the body is larger than {MAX_BODY_BYTES} bytes; send a shorter prompt"
                )
            return parse(b"".join(parts), kind)

    async def start(self, status: int, kind: str, headers: dict[str, str] | None = None) -> None:
        """Sends status and headers."""
        self._started = True
        named = [(b"content-type", kind.encode())]
        named += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Sends a part of the body; waits while the client reads slowly."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(
        self,
        body: bytes,
        status: int = 200,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Sends a whole answer."""
        named = {"content-length": str(len(body)), **(headers or {})}
        await self.start(status, kind, named)
        await self.write(body, more=False)

    async def json(self, value: Any, status: int = 200) -> None:
        """Sends a value as JSON."""
        await self.answer(msgspec.json.encode(value), status)

    async def refuse(self, error: ApiError) -> None:
        """Answers with an error, if no answer has begun."""
        if not self._started:
            wait = {"retry-after": "1"} if error.status == 503 else None
            await self.answer(error.body, error.status, headers=wait)

    async def gone(self) -> None:
        """Returns when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def check_key(self) -> None:
        """Raises ApiError where the key is asked for and not right."""
        key = self.endpoint.api_key
        if not key or not self._scope["path"].startswith("/v1"):
            return
        given = self.header(b"authorization").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise ApiError(401, "the API key is missing or wrong; send it as a bearer token")


class Responder:
    """A handler as an ASGI application: errors become answers."""

    def __init__(self, endpoint: Endpoint, handler: Handler) -> None:
        self._endpoint, self._handler = endpoint, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one call."""
        call = Call(self._endpoint, scope, receive, send)
        try:
            call.check_key()
            await self._handler(call)
        except ApiError as error:
            await call.refuse(error)
        except asyncio.CancelledError:
            if not self._endpoint.closing:
                raise
        except Exception as error:
            if os.environ.get("LLMSIM_DEBUG"):
                traceback.print_exc()
            print(f"llmsim: error: internal error: {error!r}", file=sys.stderr)
            await call.refuse(ApiError(500, f"internal error: {error!r}"))


def warp_time_ps(text: str, warp: WarpClock) -> int:
    """Seconds as a time that has not passed; raises ApiError."""
    try:
        at_ps = round(float(text) * PS_PER_S)
    except (ValueError, OverflowError):
        raise ApiError(400, f"X-Virtual-Time is {text!r}; it must be seconds") from None
    if not warp.now_ps() <= at_ps < NEVER_PS:
        raise ApiError(
            400, f"X-Virtual-Time is {text}; it is now {warp.now_ps() / PS_PER_S:.9f}, in seconds"
        )
    return at_ps
