"""The calls of clients that take part in virtual time."""

import asyncio

import msgspec

from llmsim.core import PS_PER_S
from llmsim.endpoint.engine.clock import NEVER_PS, WarpClock
from llmsim.endpoint.http.calls import Call, warp_time_ps
from llmsim.endpoint.protocol import ApiError


class ClientRequest(msgspec.Struct):
    """The body of /virtual/join, /virtual/sleep and /virtual/leave."""

    client: str
    until: float | None = None
    """Seconds; None: until an answer has ended."""
    sent: int = 0
    """Requests that the client has sent so far."""


def _warp(call: Call) -> WarpClock:
    warp = call.endpoint.warp
    if warp is None:
        raise ApiError(400, "the clock is that of the wall; start the server with --clock warp")
    return warp


async def time(call: Call) -> None:
    """GET /virtual/time."""
    await call.json({"now": call.endpoint.engine.clock.now_ps() / PS_PER_S})


async def join(call: Call) -> None:
    """POST /virtual/join: time stands still until this client sleeps, too."""
    request = await call.body(ClientRequest)
    warp = _warp(call)
    if not request.client:
        raise ApiError(400, "client is empty; it must be a name")
    warp.join(request.client)
    await call.json({"now": warp.now_ps() / PS_PER_S})


async def sleep(call: Call) -> None:
    """POST /virtual/sleep: answers when the time has come, or an answer of the client has ended."""
    request = await call.body(ClientRequest)
    warp = _warp(call)
    if not warp.has(request.client):
        raise ApiError(400, f"the client {request.client!r} has not joined")
    until_ps = NEVER_PS
    if request.until is not None:
        until_ps = warp_time_ps(repr(max(request.until, warp.now_ps() / PS_PER_S)), warp)
    gone = asyncio.ensure_future(call.gone())
    slept = asyncio.ensure_future(warp.sleep(request.client, until_ps, request.sent))
    try:
        await asyncio.wait((gone, slept), return_when=asyncio.FIRST_COMPLETED)
        if slept.done():
            await call.json({"now": slept.result() / PS_PER_S})
        else:
            warp.leave(request.client)  # it died; the others go on
    finally:
        gone.cancel()
        slept.cancel()


async def leave(call: Call) -> None:
    """POST /virtual/leave: time does not wait for this client any more."""
    request = await call.body(ClientRequest)
    warp = _warp(call)
    warp.leave(request.client)
    await call.json({"now": warp.now_ps() / PS_PER_S})
