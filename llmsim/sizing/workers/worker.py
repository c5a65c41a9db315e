"""Processes that keep compiled deployments and answer one task after the other.

`python -m llmsim.sizing.workers.worker` is the process that they are forked from: it imports what
tasks need once, and forks a worker whenever its parent asks, so that a worker starts in
milliseconds. It works on no task itself. Standard input is the socket to its parent; it ends when
that does.

The parent writes a `REQUEST` in one piece. "fork" comes with two file descriptors, the worker's
socket and its standard error; the answer is the worker's process id, or the number of an error
below 0. "wait" names a worker; the answer is its exit code. Both answers are a `NUMBER`.
"""

import gc
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, NoReturn

HEAD = struct.Struct("<Q")
REQUEST = struct.Struct("<4sq")
NUMBER = struct.Struct("<q")
FORK, WAIT = b"fork", b"wait"
IMPORTED = ("llmsim.sizing.size", "llmsim.sizing.frontier", "llmsim.cli.run.point")
"""Modules of the functions that tasks name."""


@dataclass(frozen=True)
class Place:
    """Where a worker works: what its parent is at that moment."""

    folder: str
    environment: dict[str, str]
    path: list[str]
    """Of modules."""

    def enter(self) -> None:
        """Makes this process work there."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:] = self.path


def send(stream: IO[bytes], value: Any) -> None:
    """Writes one value, whole."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Reads one value; raises EOFError where the stream ends."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    (size,) = HEAD.unpack(head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def function_of(name: str) -> Any:
    """The function of `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def answer(tasks: IO[bytes], answers: IO[bytes]) -> None:
    """Answers until the tasks end; an error of a task is its answer."""
    from llmsim.sizing.measure import Bench

    receive(tasks).enter()
    bench = Bench(receive(tasks))
    while True:
        try:
            name, task = receive(tasks)
        except EOFError:
            return
        try:
            found = ("answer", function_of(name)(bench, task))
        except Exception as error:
            found = ("error", error)
        try:
            send(answers, found)
        except ConnectionError:  # the parent was killed
            return


def _work(task_socket: int, errors: int) -> NoReturn:
    """What a forked worker does, to its end."""
    code = 0
    try:
        os.dup2(errors, 2)
        os.dup2(2, 1)  # what a task prints is no answer
        os.close(errors)
        # Open to the very end: a parent that saw it closed would kill a process that is leaving.
        parent = socket.socket(fileno=task_socket)
        answer(parent.makefile("rb"), parent.makefile("wb"))
    except (EOFError, ConnectionError):  # the parent was killed before the first task
        code = 1
    except SystemExit as left:  # a user's code may end its process
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _forked(descriptors: Sequence[int], parent: socket.socket) -> int:
    """The number of a new worker, or of an error below 0."""
    try:
        number = os.fork()
    except OSError as error:
        number = -(error.errno or 1)
    if number == 0:
        parent.close()
        _work(*descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return number


def _serve(parent: socket.socket) -> None:
    """Does what the parent asks for, until its socket ends."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(parent, REQUEST.size, 2)
        if len(request) < REQUEST.size:
            return
        asked, number = REQUEST.unpack(request)
        if asked == WAIT:
            _, status = os.waitpid(number, 0)
            said = os.waitstatus_to_exitcode(status)
        else:
            said = _forked(descriptors, parent)
        parent.sendall(NUMBER.pack(said))


def main() -> None:
    """Forks workers until the parent's socket ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when it ends
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a worker's collector does not touch, and so copy, the pages of what is here
    parent = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    with suppress(ConnectionError):  # the parent was killed
        _serve(parent)
    gc.unfreeze()  # the end of the interpreter looks for what is left


if __name__ == "__main__":
    main()
