"""Puts an unmodified Python client under the virtual clock: its times, sleeps and timers.

`install` runs before the program's first line. A wait of the main thread becomes one line to the
Timekeeper: until when, and how many bytes each connection to the server has sent and received. The
waits of other threads are those of libc, which are virtual as well (llmsim/native/client_waits).
"""

import atexit
import contextlib
import fcntl
import importlib.machinery
import itertools
import json
import math
import os
import queue
import select
import selectors
import socket
import struct
import sys
import termios
import threading
import time
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from llmsim.emulation.in_client.pools import Helpers, count_pools, current_piece
from llmsim.emulation.in_client.wall import ThreadClock, wall_clock
from llmsim.emulation.in_engine.clock import PS_PER_S, TimeModule
from llmsim.emulation.in_engine.parent import die_with

SETTINGS = "LLMSIM_EMULATION_CLIENT"
"""The environment variable with the clock's page, its socket and the server's port, as JSON."""
CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
OUT_OF_ORDER = "a thread of the client has waited for something other than the clock"
_REAL_CLOCK = (threading, queue)
"""Modules that hold the real clock from their import on: what they wait for has no virtual time."""


_REAL_SLEEP = time.sleep
_ENOUGH, _LOOKS, _LOOK_S = 1 << 15, 10_000, 1e-4
"""Bytes that every receive buffer holds; how often and how long to look for them."""


def _unread(descriptor: int) -> int:
    """Bytes that the kernel has for a socket."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])


class Connections:
    """Counts bytes between this process and the server, for each local port."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._local_port: weakref.WeakKeyDictionary[socket.socket, int] = (
            weakref.WeakKeyDictionary()
        )
        self._port_of: dict[int, int] = {}
        """Descriptor -> local port."""
        self._bytes: dict[int, list[int]] = {}
        """Local port -> received, sent, whether open."""
        self._changed: set[int] = set()
        self._sent_on: list[int] = []
        self._full: set[int] = set()
        """Ports whose send buffers take no more."""
        self._lock = threading.Lock()

    def forget(self) -> None:
        """They are those of the process that has forked this one."""
        self._lock = threading.Lock()
        self._local_port = weakref.WeakKeyDictionary()
        for known in (self._port_of, self._bytes, self._changed, self._full):
            known.clear()
        self._sent_on.clear()

    def opened(self, one: socket.socket, address: Any) -> None:
        """A connection is established."""
        if isinstance(address, tuple) and address[1] == self._server_port:
            port = one.getsockname()[1]
            with self._lock:
                self._local_port[one] = self._port_of[one.fileno()] = port
                self._bytes[port] = [0, 0, 1]
                self._changed.add(port)

    def count(self, one: socket.socket, received: int, sent: int, *, all_sent: bool = True) -> None:
        """So many more bytes."""
        port = self._local_port.get(one)
        if port is None:
            return
        with self._lock:
            counts = self._bytes[port]
            counts[0] += received
            counts[1] += sent
            self._changed.add(port)
            if sent:
                self._sent_on.append(port)
            if sent or not all_sent:
                (self._full.discard if all_sent else self._full.add)(port)

    def closed(self, one: socket.socket) -> None:
        """The program has closed it."""
        port = self._local_port.pop(one, None)
        if port is not None:
            with self._lock:
                self._port_of = {
                    key: value for key, value in self._port_of.items() if value != port
                }
                self._bytes[port][2] = 0
                self._changed.add(port)
                self._full.discard(port)

    def is_server(self, one: socket.socket) -> bool:
        """Whether it leads to the server."""
        return one in self._local_port

    def has_unread(self, descriptor: int) -> bool:
        """Whether it is a connection to the server with bytes to read."""
        return descriptor in self._port_of and _unread(descriptor) > 0

    def wait_for(self, comes: dict[str, int], descriptors: set[int]) -> list[int]:
        """Those of the descriptors for whose ports something comes, in its order, when the kernel
        has it: ports -> bytes that were sent to them in all.
        """
        of_port = {port: descriptor for descriptor, port in self._port_of.items()}
        found = []
        for name, sent in comes.items():
            descriptor = of_port.get(int(name), -1)
            if descriptor not in descriptors:
                continue
            missing = min(sent - self._bytes[int(name)][0], _ENOUGH)
            for _ in range(_LOOKS):
                if _unread(descriptor) >= missing:
                    break
                with wall_clock():
                    _REAL_SLEEP(_LOOK_S)
            found.append(descriptor)
        return found

    @property
    def are_full(self) -> bool:
        """Something is left to send, whatever the clock does."""
        return bool(self._full)

    def changes(self) -> tuple[dict[int, list[int]], list[int]]:
        """The counts that have changed since the last call, and the ports in order of sending."""
        with self._lock:
            changed = {port: list(self._bytes[port]) for port in self._changed}
            sent_on = list(dict.fromkeys(self._sent_on))
            self._changed.clear()
            self._sent_on.clear()
            return changed, sent_on


class Waiter:
    """Waits of a process's main thread: an actor of the Timekeeper."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._has_told = False
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        process.real_connect(self._socket, process.settings["socket"])
        self._answers = self._socket.makefile("rb", buffering=0)
        self._said(["join client", os.getpid()])
        self.read()

    def fileno(self) -> int:
        """Becomes readable when the time has come."""
        return self._socket.fileno()

    def wait(self, until_ps: int | None) -> int:
        """Says that this thread waits; returns the number of the wait."""
        number = next(self._numbers)
        helpers = self._process.helpers
        if helpers.are_out_of_order and not self._has_told:
            self._has_told = True
            self._said(["client notes", OUT_OF_ORDER])
        changed, sent_on = self._process.connections.changes()
        self._said(["client waits", number, until_ps, changed, sent_on])
        return number

    def read(self) -> tuple[int, dict[str, int] | None]:
        """An answer: to which wait, and what comes to which ports; None: its time has come."""
        line = self._answers.readline()
        if not line:
            raise ConnectionError("llmsim emulate has ended")
        number, comes, act_together = json.loads(line)
        if act_together and not self._process.helpers.act_freely:
            self._process.helpers.free()
        return number, comes

    def works(self) -> None:
        """Something other than the clock has woken it."""
        self._said(["client works"])

    def has_thread(self, name: str) -> None:
        """Another thread of this process asks the server, too."""
        self._said(["client thread", name])

    def close(self) -> None:
        """The process is no actor any more, and says so: one that dies cannot."""
        with contextlib.suppress(OSError):
            self._said(["bye"])
            while self._answers.readline():  # what is unread would break the connection before that
                pass
        self._answers.close()
        self._socket.close()

    def _said(self, message: list[Any]) -> None:
        with self._lock:
            self._process.real_sendall(self._socket, json.dumps(message).encode() + b"\n")


class Process:
    """This process under the clock."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.clock = ThreadClock()
        self.connections = Connections(settings["port"])
        self.helpers = Helpers()
        self.real_connect: Any = socket.socket.connect
        self.real_sendall: Any = socket.socket.sendall
        self._main = threading.main_thread().ident
        self._pid = os.getpid()
        self._joins = threading.Lock()
        self._has_threads = False
        """It has said that another thread than the main one asks the server."""
        self._waiter = Waiter(self)
        atexit.register(self._end)
        self._real_exit = os._exit
        os._exit = self._exit  # type: ignore[assignment]
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """This process is another one from now on, which joins with its first wait."""
        self._main, self._has_threads = threading.get_ident(), False
        self._joins = threading.Lock()
        self.connections.forget()
        self.helpers.forget()

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._waiter.close()

    def _exit(self, status: int) -> None:
        """`os._exit`, which does not ask `atexit`."""
        self._end()
        self._real_exit(status)

    @property
    def is_in_main_thread(self) -> bool:
        """Whether the present thread is the one that says what it waits for."""
        return threading.get_ident() == self._main

    def until_ps(self, seconds: float | None) -> int | None:
        """The virtual time in so many seconds."""
        if seconds is None or math.isinf(seconds):
            return None
        return self.clock.now_ps() + math.ceil(seconds * PS_PER_S)

    def waiter(self) -> Waiter:
        """That of this process."""
        with self._joins:
            if os.getpid() != self._pid:  # forked: the parent's connection is not ours
                self._pid = os.getpid()
                self._waiter = Waiter(self)
        return self._waiter

    def asks(self) -> None:
        """The present thread exchanges bytes with the server."""
        if self._has_threads or self.is_in_main_thread:
            return
        self._has_threads = True
        self.waiter().has_thread(threading.current_thread().name)

    @contextlib.contextmanager
    def thread_waits(self) -> Iterator[None]:
        """Another thread than the main one reads inside of it; work in a pool that does so holds
        nobody.
        """
        piece = current_piece()
        if piece is None:
            yield
            return
        self.helpers.waits(piece, waits=True)
        try:
            yield
        finally:
            self.helpers.waits(piece, waits=False)

    def sleep(self, seconds: Any) -> None:
        """`time.sleep` in virtual time."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if seconds > 0 and self.is_in_main_thread:
            self.wait_for([], seconds)
        else:
            _REAL_SLEEP(seconds)

    def wait_for(self, descriptors: Sequence[tuple[int, int]], seconds: float | None) -> bool:
        """Until one of (descriptor, what to poll for) is ready, or False after virtual seconds; in
        the main thread.
        """
        ready = select.poll()
        for descriptor, kind in descriptors:
            ready.register(descriptor, kind)
        with wall_clock():
            is_ready = bool(ready.poll(0))
        if is_ready:
            return True
        self.helpers.settle()
        waiter = self.waiter()
        ready.register(waiter.fileno(), select.POLLIN)
        number = waiter.wait(self.until_ps(seconds))
        while True:
            found = [descriptor for descriptor, _ in ready.poll()]
            if waiter.fileno() not in found:
                waiter.works()
                return True
            if waiter.read() == (number, None):
                return False


class VirtualSelector(selectors.DefaultSelector):
    """The selector of asyncio's loops, whose time-outs are virtual."""

    process: Process

    def select(self, timeout: float | None = None) -> list[Any]:
        """Ready files, or none at the virtual time-out."""
        if not self.process.is_in_main_thread:
            return super().select(timeout)
        self.process.helpers.settle()
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self.process.connections.are_full:
            return super().select(None)
        return self._waited(self.process.waiter(), timeout)

    def _waited(self, waiter: Waiter, timeout: float | None) -> list[Any]:
        key = self.register(waiter.fileno(), selectors.EVENT_READ)
        try:
            number = waiter.wait(self.process.until_ps(timeout))
            while True:
                found = super().select(None)
                others = [
                    one
                    for one in found
                    if one[0] != key and not self.process.connections.has_unread(one[0].fd)
                ]
                if len(others) < len(found):
                    answered, comes = waiter.read()
                    if answered == number and comes is None:
                        return others
                    if answered == number and comes is not None:
                        others += self._come(comes)
                if others:
                    waiter.works()
                    return others
        finally:
            self.unregister(waiter.fileno())

    def _come(self, comes: dict[str, int]) -> list[Any]:
        """What comes from the server, in its order, however the kernel has it."""
        keys = {key.fd: key for key in self.get_map().values()}
        reads = {fd for fd, key in keys.items() if key.events & selectors.EVENT_READ}
        found = self.process.connections.wait_for(comes, reads)
        return [(keys[fd], selectors.EVENT_READ) for fd in found]


def install() -> None:
    """Puts this process under the clock; without the settings, leaves it as it is."""
    if SETTINGS not in os.environ:
        return
    process = Process(json.loads(os.environ[SETTINGS]))
    die_with(process.settings["pid"])
    _count_connections(process)
    _count_reads(process)
    _count_writes(process.connections)
    count_pools(process.helpers)
    virtual = TimeModule(process.clock)
    for name in CLOCKS:
        setattr(time, name, getattr(virtual, name))
    time.sleep = process.sleep
    VirtualSelector.process = process
    selectors.DefaultSelector = VirtualSelector  # type: ignore[misc]
    sys.meta_path.insert(0, _NoUvloop())


def _count_connections(process: Process) -> None:
    """Wraps the methods of `socket.socket` that connect and close."""
    kind: Any = socket.socket
    connections = process.connections
    connect, close = kind.connect, kind._real_close

    def connected(self: Any, address: Any) -> None:
        try:
            connect(self, address)
        except BlockingIOError:
            # A connection of this machine is a matter of microseconds, which have no virtual time.
            if not isinstance(address, tuple) or address[1] != process.settings["port"]:
                raise
            writable = select.poll()
            writable.register(self.fileno(), select.POLLOUT)
            writable.poll()
            failed = self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise OSError(failed, os.strerror(failed)) from None
        connections.opened(self, address)
        if connections.is_server(self):
            process.asks()

    def closed(self: Any, *more: Any) -> None:
        connections.closed(self)
        close(self, *more)

    kind.connect, kind._real_close = connected, closed


def _count_reads(process: Process) -> None:
    """Wraps the methods of `socket.socket` that read; one that blocks waits in virtual time."""
    kind: Any = socket.socket
    connections = process.connections
    recv, recv_into = kind.recv, kind.recv_into

    def readable(self: Any, flags: int) -> contextlib.AbstractContextManager[None]:
        """What to read inside of."""
        if not connections.is_server(self):
            return contextlib.nullcontext()
        process.asks()
        if self.gettimeout() == 0 or flags & socket.MSG_DONTWAIT:
            return contextlib.nullcontext()
        if not process.is_in_main_thread:
            return process.thread_waits()
        if not process.wait_for([(self.fileno(), select.POLLIN)], self.gettimeout()):
            raise TimeoutError("timed out")
        return contextlib.nullcontext()

    def received(self: Any, size: int, flags: int = 0) -> bytes:
        with readable(self, flags):
            got: bytes = recv(self, size, flags)
        if not flags & socket.MSG_PEEK:
            connections.count(self, len(got), 0)
        return got

    def received_into(self: Any, buffer: Any, size: int = 0, flags: int = 0) -> int:
        with readable(self, flags):
            got: int = recv_into(self, buffer, size, flags)
        if not flags & socket.MSG_PEEK:
            connections.count(self, got, 0)
        return got

    kind.recv, kind.recv_into = received, received_into


def _count_writes(connections: Connections) -> None:
    """Wraps the methods of `socket.socket` that write."""
    kind: Any = socket.socket
    send, sendall, sendmsg = kind.send, kind.sendall, kind.sendmsg

    def sent(self: Any, data: Any, *flags: Any) -> int:
        try:
            given: int = send(self, data, *flags)
        except BlockingIOError:
            connections.count(self, 0, 0, all_sent=False)
            raise
        connections.count(self, 0, given, all_sent=given == memoryview(data).nbytes)
        return given

    def sent_parts(self: Any, parts: Any, *more: Any) -> int:
        parts = list(parts)
        try:
            given: int = sendmsg(self, parts, *more)
        except BlockingIOError:
            connections.count(self, 0, 0, all_sent=False)
            raise
        whole = sum(memoryview(part).nbytes for part in parts)
        connections.count(self, 0, given, all_sent=given == whole)
        return given

    def sent_all(self: Any, data: Any, *flags: Any) -> None:
        sendall(self, data, *flags)
        connections.count(self, 0, memoryview(data).nbytes)

    kind.send, kind.sendmsg, kind.sendall = sent, sent_parts, sent_all


class _NoUvloop:
    """Stands for uvloop, which has a clock of its own: its loops become those of asyncio."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name == "uvloop" else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        import asyncio

        module: Any = types.ModuleType("uvloop")
        module.run, module.new_event_loop = asyncio.run, asyncio.new_event_loop
        module.install = lambda: None
        module.EventLoopPolicy = asyncio.DefaultEventLoopPolicy
        module.Loop = asyncio.SelectorEventLoop
        module.__version__ = "0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""
