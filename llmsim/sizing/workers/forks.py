"""Worker processes of this machine, forked from one process that has imported what they need.

Importing takes half a second of CPU time, a fork some milliseconds. The process that forks is
started when the first worker is, and ends with this one.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from llmsim.sizing.workers.worker import FORK, NUMBER, REQUEST, WAIT, Place, send


class Fork:
    """A worker process, and the streams to it."""

    def __init__(self, seed: "_Seed", number: int, stream: socket.socket) -> None:
        self._seed, self._number, self._stream = seed, number, stream
        self.tasks: IO[bytes] = stream.makefile("wb")
        self.answers: IO[bytes] = stream.makefile("rb")
        self._ends = threading.Lock()
        self._code: int | None = None

    def end(self) -> int:
        """Kills it where it still works; returns its exit code, also when it is asked again."""
        with self._ends:
            if self._code is None:  # else its number may be another process's by now
                with suppress(ProcessLookupError):
                    os.kill(self._number, signal.SIGKILL)
                for stream in (self.tasks, self.answers, self._stream):
                    with suppress(OSError):
                        stream.close()
                self._code = self._seed.wait(self._number)
            return self._code


class _Seed:
    """The process that forks, and the socket to it; threads may ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parent, self._known = os.getpid(), _variables()
        self._socket, theirs = socket.socketpair()
        with theirs:
            # One thread of linear algebra: threads do not survive a fork.
            environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "llmsim.sizing.workers.worker"],
                stdin=theirs.fileno(),
                env=environment,
            )
        atexit.register(self._end)

    @property
    def usable(self) -> bool:
        """Whether it is this process's, alive, and imported under the same variables."""
        if (self._parent, self._known) != (os.getpid(), _variables()):
            return False
        return self._process.poll() is None

    def _end(self) -> None:
        if self._parent == os.getpid():
            self._process.kill()
            self._process.wait()

    def fork(self) -> Fork:
        """A new worker, which works where this process does now; OSError where none can start."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                number = self._ask(FORK, 0, [theirs.fileno(), 2])
            worker = Fork(self, number, ours)
            send(worker.tasks, Place(os.getcwd(), dict(os.environ), list(sys.path)))
        except BaseException:
            ours.close()
            raise
        return worker

    def wait(self, number: int) -> int:
        """The exit code of a worker that has ended, or ends; of one that was killed where nobody
        knows.
        """
        try:
            return self._ask(WAIT, number)
        except OSError:
            return -signal.SIGKILL

    def _ask(self, request: bytes, number: int, descriptors: "list[int] | None" = None) -> int:
        with self._lock:
            socket.send_fds(self._socket, [REQUEST.pack(request, number)], descriptors or [])
            data = self._socket.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(data) < NUMBER.size:
            raise OSError("the process that forks workers has ended")
        found: int = NUMBER.unpack(data)[0]
        if request == FORK and found < 0:
            raise OSError(-found, os.strerror(-found))
        return found


_seed: _Seed | None = None
_starts = threading.Lock()


def fork_worker() -> Fork:
    """A new worker process; OSError where none can start."""
    global _seed
    with _starts:
        if _seed is None or not _seed.usable:
            _seed = _Seed()
        seed = _seed
    return seed.fork()


def _variables() -> dict[str, str]:
    """Variables of the environment that count while modules are imported."""
    return {
        name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LLMSIM"))
    }
