"""The HTTP server around the endpoint: it says where it is, and drains when it is told to end."""

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from llmsim.config.errors import InputError
from llmsim.endpoint.http.app import application
from llmsim.endpoint.http.calls import Endpoint

DRAIN_S = 4
"""Seconds that answers under way have, after SIGTERM or SIGINT."""
BACKLOG = 4096


class _Server(uvicorn.Server):
    """Ends with exit code 0 on a signal, and turns new requests away from then on."""

    def __init__(self, config: uvicorn.Config, endpoint: Endpoint, ready: Callable[[], None]):
        super().__init__(config)
        self._endpoint, self._ready = endpoint, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and says so."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server and nothing else."""
        before = {one: signal.signal(one, self._end) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def end(self) -> None:
        """Drains, and ends."""
        self._endpoint.closing = self.should_exit = True

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._endpoint.closing = True
        self.handle_exit(number, frame)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; raises InputError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = str(error).rstrip(".")
        raise InputError(
            f"--host {host} --port {port}: the server cannot listen there: {reason}; choose "
            "another port, or 0 for any"
        ) from None
    listener.listen(BACKLOG)
    return listener


def serve(endpoint: Endpoint, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; `ready` is told the address when requests can come.

    Raises what ends the simulation (InvariantError, InputError of a policy).
    """
    _allow_many_files()
    host, port = listener.getsockname()[:2]
    named = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        application(endpoint),
        log_level="critical",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=75,
        backlog=BACKLOG,
        server_header=False,
    )
    server = _Server(config, endpoint, lambda: ready(f"http://{named}:{port}"))
    endpoint.engine.failed = server.end
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))
    if endpoint.engine.failure is not None:
        raise endpoint.engine.failure


def _allow_many_files() -> None:
    """As many connections as the machine lets the process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
