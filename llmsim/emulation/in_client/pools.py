"""Work that a Python client hands to pools of threads: in order, before its main thread looks."""

import threading
from concurrent.futures import thread
from typing import Any

from llmsim.emulation.in_client.wall import waits_for_clock, wall_clock

_LOOKS, _LOOK_S = 20, 0.005
"""How often and how long a thread is looked at before it counts as one that waits."""
_IDLE_SHARE = 0.05
"""A thread that waits computes less of the time: it may look again and again."""
_CURRENT = threading.local()


class Piece:
    """A piece of work in the hands of a pool."""

    __slots__ = ("blocked", "pool", "thread")

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.thread = 0
        """The kernel's number of the thread that does it; 0: nobody has begun."""
        self.blocked = False
        """It waits for something, and nobody waits for it."""


class Helpers:
    """Pieces are done one after the other, so it does not matter which thread is faster."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._pieces: dict[Piece, None] = {}
        """In the order in which they were handed over."""
        self.act_freely = False
        """Nobody waits for pieces: the kernel tells whether all threads sleep."""
        self.are_out_of_order = False
        """A piece waited for something other than the clock, so others did not wait for it."""

    def forget(self) -> None:
        """They are those of the process that has forked this one."""
        self._turn = threading.Condition()
        self._pieces.clear()

    def free(self) -> None:
        """Pieces are done in any order from now on."""
        with self._turn:
            self.act_freely = True
            self._turn.notify_all()

    def begin(self, piece: Piece) -> None:
        """It was handed over."""
        with self._turn:
            self._pieces[piece] = None

    def wait_turn(self, piece: Piece) -> None:
        """Returns when every piece that was handed over before is done, or waits."""
        with self._turn:
            piece.thread = threading.get_native_id()
            self._turn.wait_for(lambda: piece not in self._pieces or self._first() in (piece, None))

    def waits(self, piece: Piece, *, waits: bool) -> None:
        """It waits for the clock, or goes on."""
        with self._turn:
            piece.blocked = waits
            self._turn.notify_all()

    def end(self, piece: Piece) -> None:
        """It is done, or will not be."""
        with self._turn:
            self._pieces.pop(piece, None)
            self._turn.notify_all()

    def settle(self) -> None:
        """Returns when all pieces are done, or wait. A piece does not wait for itself."""
        if current_piece() is not None:
            return
        with self._turn:
            while (first := self._first()) is not None:
                if self._is_asleep(first):
                    first.blocked = self.are_out_of_order = True
                    self._turn.notify_all()

    def _first(self) -> Piece | None:
        if self.act_freely:
            return None
        return next((one for one in self._pieces if self._moves(one)), None)

    def _moves(self, piece: Piece) -> bool:
        """Whether it is done without anybody's help: it does not wait, and a thread is free."""
        if piece.blocked or piece.thread:
            return not piece.blocked and not waits_for_clock(piece.thread)
        taken = sum(one.pool is piece.pool and one.blocked for one in self._pieces)
        return bool(taken < piece.pool._max_workers)

    def _is_asleep(self, piece: Piece) -> bool:
        """Whether its thread sleeps, but for a moment now and then to look for something. The lock
        is free in between.
        """
        began_ns = _computed_ns(piece.thread)
        for _ in range(_LOOKS):
            with wall_clock():
                self._turn.wait(_LOOK_S)
            if self._first() is not piece:
                return False
            if not _sleeps(piece.thread):
                return False
        return _computed_ns(piece.thread) - began_ns < _IDLE_SHARE * _LOOKS * _LOOK_S * 1e9


def current_piece() -> Piece | None:
    """What the present thread does for a pool."""
    return getattr(_CURRENT, "piece", None)


def count_pools(helpers: Helpers) -> None:
    """Tells `helpers` of the work of all pools of threads of this process."""
    pool: Any = thread.ThreadPoolExecutor
    item: Any = thread._WorkItem
    submit, make, run = pool.submit, item.__init__, item.run

    def submitted(self: Any, *args: Any, **options: Any) -> Any:
        _CURRENT.pool = self
        return submit(self, *args, **options)

    def made(self: Any, future: Any, *args: Any, **options: Any) -> None:
        make(self, future, *args, **options)
        self._llmsim_piece = piece = Piece(_CURRENT.pool)
        helpers.begin(piece)
        # Of a pool that is shut down, nobody begins it.
        future.add_done_callback(lambda _: None if piece.thread else helpers.end(piece))

    def ran(self: Any) -> None:
        piece = self._llmsim_piece
        helpers.wait_turn(piece)
        _CURRENT.piece = piece
        try:
            run(self)
        finally:
            _CURRENT.piece = None
            helpers.end(piece)

    pool.submit, item.__init__, item.run = submitted, made, ran


def _sleeps(number: int) -> bool:
    """Whether a thread of this process sleeps; one that waits for a processor does not."""
    return _said(number, "stat").rpartition(") ")[2].startswith("S")


def _computed_ns(number: int) -> int:
    """CPU time of a thread of this process; 0 where it has ended."""
    return int((_said(number, "schedstat").split() or ["0"])[0])


def _said(number: int, name: str) -> str:
    try:
        with open(f"/proc/self/task/{number}/{name}", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
