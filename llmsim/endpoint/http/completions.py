"""The calls that are answered with tokens."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from llmsim.core import PS_PER_S, Status
from llmsim.endpoint.answers import Choice, Shape
from llmsim.endpoint.engine.async_engine import Samples, Stream
from llmsim.endpoint.http.calls import (
    CLIENT_HEADER,
    TIME_HEADER,
    Call,
    Endpoint,
    Served,
    warp_time_ps,
)
from llmsim.endpoint.protocol import (
    ApiError,
    Asked,
    ChatRequest,
    CompletionRequest,
    answer_tokens,
    chat_text,
    samples,
)


async def completions(call: Call) -> None:
    """POST /v1/completions."""
    request = await call.body(CompletionRequest)
    endpoint = call.endpoint
    served = endpoint.model(request.model)
    asked = [
        _asked(endpoint, served, ids, text, request.max_tokens)
        for ids, text in _prompts(endpoint, request.prompt)
    ]
    shape = Shape(
        f"cmpl-{endpoint.next_id()}",
        endpoint.created,
        request.model or served.name,
        chat=False,
        answers=endpoint.answers,
        logprobs=request.logprobs is not None,
        stamped=endpoint.warp is not None,
        samples=samples(request.n),
    )
    echo = bool(request.echo)
    await _respond(call, request, served, asked, shape, echo=echo)


async def chat_completions(call: Call) -> None:
    """POST /v1/chat/completions."""
    request = await call.body(ChatRequest)
    endpoint = call.endpoint
    served = endpoint.model(request.model)
    ids = [one for text in chat_text(request.messages) for one in endpoint.tokenizer.encode(text)]
    if request.tools:
        tools = msgspec.json.encode(request.tools).decode()
        ids = endpoint.tokenizer.encode(tools) + ids
    limit = request.max_tokens if request.max_completion_tokens is None else (
        request.max_completion_tokens
    )  # fmt: skip
    asked = [_asked(endpoint, served, ids, "", limit)]
    shape = Shape(
        f"chatcmpl-{endpoint.next_id()}",
        endpoint.created,
        request.model or served.name,
        chat=True,
        answers=endpoint.answers,
        logprobs=bool(request.logprobs),
        stamped=endpoint.warp is not None,
        samples=samples(request.n),
    )
    await _respond(call, request, served, asked, shape, echo=False)


def _prompts(
    endpoint: Endpoint, prompt: str | list[str | int | list[int]]
) -> list[tuple[list[int], str]]:
    """(token ids, text) of each prompt of a request; raises ApiError."""
    if isinstance(prompt, str):
        return [(endpoint.tokenizer.encode(prompt), prompt)]
    if prompt and all(isinstance(one, int) for one in prompt):
        ids = [one for one in prompt if isinstance(one, int)]
        return [(ids, endpoint.tokenizer.decode(ids))]
    if not prompt or any(isinstance(one, int) for one in prompt):
        raise ApiError(
            400, "prompt is neither a text, token ids, nor a list of either of them", "prompt"
        )
    found = []
    for one in prompt:
        if isinstance(one, str):
            found.append((endpoint.tokenizer.encode(one), one))
        elif isinstance(one, list):
            found.append((one, endpoint.tokenizer.decode(one)))
    return found


def _asked(
    endpoint: Endpoint, served: Served, ids: list[int], text: str, limit: int | None
) -> Asked:
    tokens = answer_tokens(limit, endpoint.output_tokens, len(ids), served.max_model_len)
    return Asked(ids, text, tokens)


async def _respond(
    call: Call,
    request: CompletionRequest | ChatRequest,
    served: Served,
    asked: Sequence[Asked],
    shape: Shape,
    *,
    echo: bool,
) -> None:
    """Submits all prompts of a request and answers it, in a stream or whole."""
    endpoint = call.endpoint
    if endpoint.closing:
        raise ApiError(503, "the server shuts down; ask another one")
    client, at_ps = _virtual(call)
    for one in asked:
        together = Samples(shape.samples)
        for sample in range(shape.samples):
            places = endpoint.answers.draw(one.prompt, one.max_tokens, sample)
            answer = endpoint.answers.ids(places)
            stream = Stream(
                one.prompt,
                answer,
                served.number,
                served.name,
                request.priority or 0,
                client,
                served.adapter,
                together,
            )
            echoed = one.text if echo else ""
            shape.choices.append(
                Choice(len(shape.choices), stream, places, len(one.prompt), echoed)
            )
    watch: asyncio.Future[None] | None = None
    streams = [choice.stream for choice in shape.choices]
    try:
        for stream in streams:
            endpoint.engine.submit(stream, at_ps)
        if endpoint.warp is not None:
            endpoint.warp.received(client)
        watch = asyncio.ensure_future(_abort_when_gone(call, streams))
        headers = {TIME_HEADER.decode(): f"{streams[0].arrival_ps / PS_PER_S:.9f}"}
        if request.stream:
            await _stream(call, request, shape, headers)
        else:
            await _whole(call, shape, headers)
    finally:
        if watch is not None:
            watch.cancel()
        for stream in streams:
            if stream.number >= 0:
                endpoint.engine.abort(stream)


def _virtual(call: Call) -> tuple[str, int | None]:
    """(the client that takes part in virtual time, when its request arrives); raises ApiError."""
    warp = call.endpoint.warp
    client = call.header(CLIENT_HEADER)
    if warp is None or not client:
        return "", None
    if not warp.has(client):
        raise ApiError(400, f"the client {client!r} has not joined; POST /virtual/join first")
    stamp = call.header(TIME_HEADER)
    return client, None if not stamp else warp_time_ps(stamp, warp)


async def _abort_when_gone(call: Call, streams: Sequence[Stream]) -> None:
    await call.gone()
    for stream in streams:
        call.endpoint.engine.abort(stream)


def _check_ended(streams: Sequence[Stream]) -> None:
    """Raises ApiError where a request was turned away."""
    for stream in streams:
        if stream.status == Status.REJECTED:
            raise ApiError(400, "the request can never run: it does not fit into the KV cache")
        if stream.status == Status.REFUSED:
            raise ApiError(503, "the server is overloaded; ask again later")
        if stream.status == Status.FAILED:
            raise ApiError(500, "the KV of the request could not be loaded; ask again")


async def _whole(call: Call, shape: Shape, headers: dict[str, str]) -> None:
    streams = [choice.stream for choice in shape.choices]
    for stream in streams:
        while await stream.read():
            pass
    _check_ended(streams)
    if any(stream.status == Status.CANCELLED for stream in streams):
        return  # nobody is there to read
    await call.answer(shape.whole(), headers=headers)


async def _stream(
    call: Call, request: CompletionRequest | ChatRequest, shape: Shape, headers: dict[str, str]
) -> None:
    options = request.stream_options
    started = False
    sent = [0] * len(shape.choices)
    async for choice, coming in _merged(shape.choices):
        if not started:
            _check_ended([choice.stream])
            await call.start(200, "text/event-stream; charset=utf-8", headers)
            started = True
        parts = [] if sent[choice.index] else [shape.first_chunks(choice)]
        for tokens, time_ps in coming:
            parts.append(shape.chunk(choice, sent[choice.index], tokens, time_ps))
            sent[choice.index] = tokens
        await call.write(b"".join(parts))
    if not started:
        _check_ended([choice.stream for choice in shape.choices])
        return
    if options is not None and options.include_usage:
        await call.write(shape.usage_chunk())
    await call.write(b"data: [DONE]\n\n", more=False)


async def _merged(
    choices: Sequence[Choice],
) -> AsyncIterator[tuple[Choice, list[tuple[int, int]]]]:
    """What comes for any of the choices, until all have ended."""
    if len(choices) == 1:
        while coming := await choices[0].stream.read():
            yield choices[0], coming
        return
    reading = {asyncio.ensure_future(choice.stream.read()): choice for choice in choices}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(done, key=lambda one: reading[one].index):
                choice = reading.pop(future)
                if coming := future.result():
                    reading[asyncio.ensure_future(choice.stream.read())] = choice
                    yield choice, coming
    finally:
        for future in reading:
            future.cancel()
