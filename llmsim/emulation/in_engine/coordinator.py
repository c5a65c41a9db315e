"""Gives vLLM's coordinator of data-parallel engines the virtual clock, and counts its reports.

Its timers are waits of the Timekeeper. What it reports is on its way until the API server has it.
"""

import json
import os
import socket
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from llmsim.emulation.in_engine.clock import EPOCH_S, ClockPage

_PS_PER_MS = 10**9
_MS_PER_S = 1000
PUBLISHES, KNOWN = "publishes", "known"
"""What the coordinator hears when it tells API servers something at once: it may, and they know."""


class WholeMilliseconds(types.ModuleType):
    """Stands for the module `time`; the coordinator counts whole milliseconds of `time.time()`."""

    def __init__(self, clock: ClockPage) -> None:
        super().__init__("time")
        self._clock = clock

    def time(self) -> float:
        """The middle of the present millisecond, which no rounding turns into another one."""
        return EPOCH_S + (self._clock.now_ps() // _PS_PER_MS + 0.5) / _MS_PER_S


class Waves:
    """Counts the messages that wake all ranks."""

    def __init__(self) -> None:
        self._sent = 0

    def sends(self) -> None:
        """One more."""
        self._sent += 1

    def taken(self) -> int:
        """How many there were since this was asked last."""
        sent, self._sent = self._sent, 0
        return sent


class Poller:
    """Stands for `zmq.Poller`: the API server's subscription is awaited in real time, and
    everything behind it in virtual time.
    """

    def __init__(
        self, path: str, clock: ClockPage, zmq: Any, waves: "Waves | None" = None, server: int = 0
    ) -> None:
        """`server`: the first engine core of the coordinator's server."""
        self._path, self._clock, self._zmq, self._server = path, clock, zmq, server
        self._poller = zmq.Poller()
        self._sockets: list[Any] = []
        self._channel: socket.socket | None = None
        self._answers: Any = None
        self._waits = 0
        self._heard = 0
        """Messages of engine cores and API servers since the last wait."""
        self._waves = Waves() if waves is None else waves
        self._reports = False
        """It is about to report, of which the Timekeeper knows."""

    def register(self, one: Any, flags: int) -> None:
        """vLLM registers what comes from API servers first, and from engine cores last."""
        self._poller.register(one, flags)
        self._sockets.append(one)

    def poll(self, timeout: float) -> list[tuple[Any, int]]:
        """What has come; nothing when the virtual time is over."""
        if self._channel is None:
            events: list[tuple[Any, int]] = self._poller.poll()
            if any(one is self._sockets[0] for one, _ in events):
                self._join()
            return events
        self._wait(self._clock.now_ps() + int(timeout) * _PS_PER_MS)
        while True:
            events = self._poller.poll()
            sockets = [one for one in events if one[0] in self._sockets]
            if sockets:
                servers, cores = self._sockets[0], self._sockets[-1]
                self._heard = sum(one is servers or one is cores for one, _ in sockets)
                return sockets
            if self._hears() == self._waits:
                self._reports = True
                return []

    def publish(self, send: Callable[[], Any]) -> Any:
        """Sends API servers something: a report, or at once that a wave has begun or ended, which
        they know before anything else happens.
        """
        if self._channel is None or self._reports:
            self._reports = False
            return send()
        self._say(["publishes"])
        while self._hears() != PUBLISHES:
            pass
        sent = send()
        while self._hears() != KNOWN:
            pass
        return sent

    def _hears(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise KeyboardInterrupt  # llmsim emulate has ended, and so does the coordinator
        return json.loads(line)

    def _join(self) -> None:
        self._channel = socket.socket(socket.AF_UNIX)
        self._channel.connect(self._path)
        self._answers = self._channel.makefile("rb")
        self._say(["join coordinator", self._server, os.getpid()])
        self._poller.register(self._channel, self._zmq.POLLIN)

    def _wait(self, until_ps: int) -> None:
        self._waits += 1
        self._say(["wait", self._waits, until_ps, self._heard, self._waves.taken()])
        self._heard = 0

    def _say(self, message: list[Any]) -> None:
        assert self._channel is not None
        self._channel.sendall(json.dumps(message).encode() + b"\n")


class _Zmq(types.ModuleType):
    """Stands for the module `zmq`."""

    def __init__(self, path: str, clock: ClockPage, waves: Waves, server: int) -> None:
        super().__init__("zmq")
        import zmq

        self._real, self._path, self._clock, self._waves = zmq, path, clock, waves
        self._server = server
        self._poller: Poller | None = None
        self._has_publisher = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def Poller(self) -> Poller:
        self._poller = Poller(self._path, self._clock, self._real, self._waves, self._server)
        return self._poller

    def publisher(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Makes sockets; the first one is that to the API servers."""

        def make_socket(*args: Any, **options: Any) -> Any:
            one = make(*args, **options)
            if not self._has_publisher:
                self._has_publisher, send = True, one.send
                one.send = lambda message: self._publish(partial(send, message))
            return one

        return make_socket

    def _publish(self, send: Callable[[], Any]) -> Any:
        return send() if self._poller is None else self._poller.publish(send)


def hook_coordinator(path: str, clock: ClockPage, server: int) -> None:
    """Before the coordinator's process is forked. `server`: its server's first engine core."""
    from vllm.v1.engine import coordinator

    waves = Waves()
    coordinator.time = WholeMilliseconds(clock)
    coordinator.zmq = zmq = _Zmq(path, clock, waves, server)
    coordinator.make_zmq_socket = zmq.publisher(coordinator.make_zmq_socket)
    send = coordinator.DPCoordinatorProc._send_start_wave

    def send_start_wave(*args: Any) -> None:
        waves.sends()
        send(*args)

    coordinator.DPCoordinatorProc._send_start_wave = staticmethod(send_start_wave)


class ToTimekeeper:
    """What an API server says to the Timekeeper, over a connection of its own."""

    def __init__(self, path: str, server: int) -> None:
        """`server`: the first engine core of its server."""
        self._path, self._server = path, server
        self._socket: socket.socket | None = None

    def says(self, kind: str) -> None:
        """Sends a message."""
        self._connected().sendall(json.dumps([kind, self._server]).encode() + b"\n")

    def asks(self, kind: str) -> None:
        """Returns when the Timekeeper has heard it."""
        self.says(kind)
        if not self._connected().recv(len(b"null\n"), socket.MSG_WAITALL):
            raise ConnectionError("llmsim emulate has ended")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(self._path)
        return self._socket


def hook_balancer(path: str, server: int) -> None:
    """Tells the Timekeeper what an API server hears of the coordinator and the engines, and says to
    the coordinator. `server`: the first engine core of its server.
    """
    from vllm.v1.engine.core_client import DPAsyncMPClient, DPLBAsyncMPClient

    timekeeper = ToTimekeeper(path, server)
    _hook_ends(DPLBAsyncMPClient, timekeeper)
    _hook_reports(DPAsyncMPClient, timekeeper)
    _hook_first_requests(DPAsyncMPClient, timekeeper)


def _hook_reports(client: Any, timekeeper: ToTimekeeper) -> None:
    """The API server knows what the coordinator has told it: each message names the wave."""

    def wave(self: Any) -> Any:
        return self.__dict__["current_wave"]

    def set_wave(self: Any, value: Any) -> None:
        is_first = "current_wave" not in self.__dict__
        self.__dict__["current_wave"] = value
        if not is_first:
            timekeeper.says("knows")

    client.current_wave = property(wave, set_wave)


def _hook_ends(client: Any, timekeeper: ToTimekeeper) -> None:
    """The API server counts the requests of each engine, which say what has ended."""
    process = client.process_engine_outputs

    async def process_engine_outputs(self: Any, outputs: Any) -> None:
        await process(self, outputs)
        if outputs.finished_requests:
            timekeeper.says("knows ends")

    client.process_engine_outputs = staticmethod(process_engine_outputs)


def _hook_first_requests(client: Any, timekeeper: ToTimekeeper) -> None:
    """Up to 0.32, the API server tells the coordinator of a request for engines that it takes to be
    idle.
    """
    add = client.add_request_async

    async def add_request_async(self: Any, request: Any) -> None:
        if hasattr(self, "first_req_send_socket") and not self.engines_running:
            timekeeper.asks("tells")  # before the engine has the request, and the clock may move
        await add(self, request)

    client.add_request_async = add_request_async
