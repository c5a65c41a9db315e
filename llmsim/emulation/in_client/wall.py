"""The timed waits of libc in a client: which of its threads wait, and our own looks at them, which
are by the wall clock.

The library `llmsim_client_waits`, which the linker has loaded before libc, makes all other timed
waits of the process virtual.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_process = ctypes.PyDLL(None)
_more: Any = getattr(_process, "llmsim_real_waits", None)
_waits: Any = getattr(_process, "llmsim_waits", None)
_now_ps: Any = getattr(_process, "llmsim_now_ps", None)
"""None: the library is not there, and all waits are those of the wall."""


if _now_ps is not None:
    _now_ps.restype = ctypes.c_int64


class ThreadClock:
    """The virtual time as the present thread sees it: each of its looks for something without
    waiting takes a microsecond.
    """

    def now_ps(self) -> int:
        """In ps."""
        return int(_now_ps())


def waits_for_clock(thread: int) -> bool:
    """Whether a thread of this process, by the kernel's number, waits until a virtual time."""
    return _waits is not None and bool(_waits(thread))


@contextmanager
def wall_clock() -> Iterator[None]:
    """Waits and clocks of libc are real for the present thread inside of it."""
    if _more is None:
        yield
        return
    _more(1)
    try:
        yield
    finally:
        _more(-1)
