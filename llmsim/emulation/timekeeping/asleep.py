"""Whether the processes of a client all sleep, as the kernel tells it."""

import os
from collections.abc import Iterable

from llmsim.emulation.processes import children_of_thread, descendants, parent_of
from llmsim.emulation.timekeeping.thread_waits import Thread

_Times = tuple[bytes, bytes]
"""How long a thread has computed, and how often it has begun to."""
Ran = dict[Thread, _Times]
_SLEEPS, _ENDED = b"S", (b"Z", b"X")
_LONGEST = 512
"""Bytes of what the kernel says of a thread."""


def first_of(pid: int) -> int:
    """Of a process that this one has started by others, the one that it has started itself."""
    parent = parent_of(pid)
    while parent and parent != os.getpid():
        pid, parent = parent, parent_of(parent)
    return pid


class _Watched:
    """A thread; its files stay open, as it is looked at some hundred times a second."""

    def __init__(self, thread: Thread) -> None:
        """OSError: it has ended."""
        folder = f"/proc/{thread[0]}/task/{thread[1]}"
        self._state = os.open(f"{folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._ran = os.open(f"{folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._state)
            raise

    def look(self) -> tuple[bytes, _Times]:
        """Its state, and how it has run; OSError: it has ended."""
        state = os.pread(self._state, _LONGEST, 0).rpartition(b") ")[2][:1]
        computed, _, begun = os.pread(self._ran, _LONGEST, 0).split()
        return state, (computed, begun)

    def close(self) -> None:
        os.close(self._state)
        os.close(self._ran)


class Sleepers:
    """Looks at a process and those that it has started.

    Who wakes another thread, by a pipe, a socket or a lock, makes it runnable at once. So nothing
    is under way between them when all sleep in two looks, and none has run in between.
    """

    def __init__(self, root: int) -> None:
        """`root`: the process that was started first."""
        self._root = root
        self._watched: dict[Thread, _Watched] = {}
        self._asked: Ran = {}
        """How each had run when it was asked what it has started."""
        self.before: Ran | None = None
        """The last look; None: somebody has computed, or may have."""
        self.awake: Thread | None = None
        """Who did not sleep when it was last looked."""

    @property
    def threads(self) -> Iterable[Thread]:
        """Those of the last look."""
        return self._watched.keys()

    @property
    def _seen(self) -> set[Thread]:
        return set(self._watched)

    @property
    def has_children(self) -> bool:
        """The first process has started another one."""
        return any(children_of_thread(thread) for thread in self._threads_of(self._root))

    def all_sleep(self) -> bool:
        """Whether all have slept since this was asked last."""
        now = self._looks()
        before, self.before = self.before, now
        if now is None or now != before:
            return False
        # A process that has just begun may have had no thread to look at yet.
        processes = [self._root, *descendants(self._root)]
        new = {thread for one in processes for thread in self._threads_of(one)} - self._seen
        if new:
            self.before = None
            self._look_at(sorted(new))
        return not new

    def forget(self) -> None:
        """Something may have woken them: the next two looks decide."""
        self.before = None

    def close(self) -> None:
        """It is not looked any more."""
        for thread in list(self._watched):
            self._drop(thread)

    def _looks(self) -> Ran | None:
        """How every thread has run; None: somebody computes, or wants to."""
        if self.awake in self._watched and not self._sleeps(self.awake):
            return None  # most often the same one
        self.awake = None
        found: Ran = {}
        new: Iterable[Thread] = list(self._watched) or self._threads_of(self._root)
        while new:
            looked = self._look_at(new)
            if looked is None:
                return None
            found |= looked
            new = self._started_by(looked)
        return found

    def _look_at(self, threads: Iterable[Thread]) -> Ran | None:
        found: Ran = {}
        for thread in threads:
            try:
                state, ran = self._watch(thread).look()
            except (OSError, ValueError):
                self._drop(thread)
                continue
            if state in _ENDED:
                continue
            if state != _SLEEPS:
                self.awake = thread
                return None
            found[thread] = ran
        return found

    def _started_by(self, looked: Ran) -> list[Thread]:
        """What they have started since they were asked: who has not run has started nothing."""
        ran = {one[0] for one, times in looked.items() if self._asked.get(one) != times}
        there = {one for process in ran for one in self._threads_of(process)}
        for process in {child for one in there for child in children_of_thread(one)}:
            there |= self._threads_of(process)
        self._asked |= looked
        return sorted(there - self._seen)

    def _threads_of(self, process: int) -> set[Thread]:
        try:
            return {(process, int(number)) for number in os.listdir(f"/proc/{process}/task")}
        except OSError:
            return set()  # it has ended

    def _watch(self, thread: Thread) -> _Watched:
        if thread not in self._watched:
            self._watched[thread] = _Watched(thread)
        return self._watched[thread]

    def _sleeps(self, thread: Thread) -> bool:
        try:
            return self._watched[thread].look()[0] in (_SLEEPS, *_ENDED)
        except (OSError, ValueError):
            return True  # it has ended

    def _drop(self, thread: Thread) -> None:
        self._asked.pop(thread, None)
        watched = self._watched.pop(thread, None)
        if watched is not None:
            watched.close()


def title_of(thread: Thread) -> str:
    """A thread by its name and the first words of its process, for an error."""
    process, number = thread
    try:
        with open(f"/proc/{process}/task/{number}/comm", encoding="utf-8") as file:
            name = file.read().strip()
        with open(f"/proc/{process}/cmdline", encoding="utf-8") as file:
            words = file.read().replace("\0", " ").strip()
    except OSError:
        return f"thread {number} of process {process}"
    return f'thread {number} ("{name}") of process {process} ({words[:80]})'
