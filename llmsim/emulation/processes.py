"""What processes of this machine have computed, and how they end."""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ENDED = ("Z", "X")
"""States of processes that have ended, and that the kernel still knows."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, and of those that run because it has started them."""
    return sum(cpu_seconds_of([pid]).values())


def cpu_seconds_of(pids: Iterable[int]) -> dict[int, float]:
    """The CPU time of each of these processes, and of each that runs because they have started it,
    by its id; none of those that have ended.
    """
    found: dict[int, float] = {}
    for pid in pids:
        seconds = {one: _own_seconds(one) for one in [pid, *descendants(pid)]}
        found |= {one: value for one, value in seconds.items() if value is not None}
    return found


def computed_since(before: Mapping[int, float], now: Mapping[int, float]) -> float | None:
    """CPU time between two `cpu_seconds_of`; None where a process has ended in between, whose time
    nobody knows.
    """
    if not before.keys() <= now.keys():
        return None
    return sum(value - before.get(pid, 0.0) for pid, value in now.items())


def descendants(pid: int) -> list[int]:
    """The processes that it has started, and those that they have started; parents come first."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def end_tree(process: "subprocess.Popen[bytes]", within_s: float) -> None:
    """Ends a process that leads its own session, and all that it has started, in whichever session;
    it has so many seconds for an end of its own.
    """
    started = {one: _start_of(one) for one in descendants(process.pid)}
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    started |= {one: _start_of(one) for one in descendants(process.pid)}
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid, start in started.items():
        is_the_same = start is not None and _start_of(pid) == start
        if is_the_same:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def children(pid: int) -> list[int]:
    """The processes that it has started itself; none where it has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for one in threads for child in children_of_thread((pid, int(one)))]


def children_of_thread(thread: tuple[int, int]) -> list[int]:
    """The processes that a thread (process, number) has started; none where it has ended."""
    try:
        with open(f"/proc/{thread[0]}/task/{thread[1]}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def parent_of(pid: int) -> int | None:
    """The process that has started it; None: it has ended."""
    fields = _fields(pid)
    return None if fields is None else int(fields[1])


def _start_of(pid: int) -> str | None:
    """When it has started, in the kernel's ticks, which tells it from a later process of its
    number; None: it has ended.
    """
    fields = _fields(pid)
    return None if fields is None else fields[19]


def _fields(pid: int) -> list[str] | None:
    """What the kernel says of a process behind its name; None: it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    except OSError:
        return None


def _own_seconds(pid: int) -> float | None:
    """None: it has ended, whether or not somebody has heard of it."""
    fields = _fields(pid)
    if fields is None or fields[0] in _ENDED:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
