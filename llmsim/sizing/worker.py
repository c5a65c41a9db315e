"""A process that keeps compiled deployments and answers one task after the other.

`python -m llmsim.sizing.worker` reads pickled tasks from standard input and writes pickled answers
to standard output; both are its parent's. It ends when its input does.
"""

import importlib
import os
import pickle
import signal
import struct
import sys
from typing import IO, Any

HEAD = struct.Struct("<Q")


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


def main() -> None:
    """Answers until the input ends; an error of a task is its answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when it ends
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a task prints is no answer
    from llmsim.sizing.measure import Bench

    bench = Bench(receive(sys.stdin.buffer))
    while True:
        try:
            name, task = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = ("answer", function_of(name)(bench, task))
        except Exception as error:
            answer = ("error", error)
        try:
            send(answers, answer)
        except BrokenPipeError:  # the parent was killed
            return


if __name__ == "__main__":
    main()
