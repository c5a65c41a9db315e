"""The virtual clock as the engine's processes see it: a page of memory that all of them read."""

import mmap
import os
import struct
import time as real
import types
from collections.abc import Callable
from typing import Any, Protocol

PS_PER_NS = 1000
PS_PER_S = 10**12
EPOCH_S = 2_100_000_000
"""What `time.time()` says at the virtual zero, behind the start of every process; it stands in
no result of ours.
"""
_PAGE = struct.Struct("<q")


class Clock(Protocol):
    """Tells the virtual time."""

    def now_ps(self) -> int:
        """In ps."""
        ...


class ClockPage:
    """Reads the present virtual time, which `llmsim emulate` writes."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        self._page = mmap.mmap(descriptor, _PAGE.size, prot=mmap.PROT_READ)
        os.close(descriptor)

    def now_ps(self) -> int:
        """The virtual time in ps."""
        return int(_PAGE.unpack_from(self._page, 0)[0])


class ClockPageWriter:
    """Makes the page, and moves its time."""

    def __init__(self, path: str) -> None:
        with open(path, "wb") as file:
            file.write(_PAGE.pack(0))
        descriptor = os.open(path, os.O_RDWR)
        self._page = mmap.mmap(descriptor, _PAGE.size)
        os.close(descriptor)

    def write(self, now_ps: int) -> None:
        """From now on the page says this."""
        _PAGE.pack_into(self._page, 0, now_ps)


class TimeModule(types.ModuleType):
    """Stands for the module `time` where the engine stamps times; sleeping is up to `sleeps`."""

    def __init__(self, clock: Clock, sleeps: Callable[[float], None] = real.sleep) -> None:
        super().__init__("time")
        self._clock = clock
        self.sleep = sleeps

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def time(self) -> float:
        """Seconds since 1970, as it were."""
        return EPOCH_S + self._clock.now_ps() / PS_PER_S

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._clock.now_ps() / PS_PER_S

    def perf_counter(self) -> float:
        """Virtual seconds."""
        return self._clock.now_ps() / PS_PER_S

    def time_ns(self) -> int:
        """Nanoseconds since 1970, as it were."""
        return EPOCH_S * 10**9 + self._clock.now_ps() // PS_PER_NS

    def monotonic_ns(self) -> int:
        """Virtual nanoseconds."""
        return self._clock.now_ps() // PS_PER_NS

    def perf_counter_ns(self) -> int:
        """Virtual nanoseconds."""
        return self._clock.now_ps() // PS_PER_NS
