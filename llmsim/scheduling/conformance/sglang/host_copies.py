"""A stand-in of SGLang's copies between the device and host memory (HiCache): nothing is copied,
and copies take given times.

Needs SGLang's Python packages. Each direction is one queue, as SGLang's is one stream. A copy
begins when the steps have ended that were launched before it, as SGLang's fences say.
"""

from typing import Any, Protocol

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.ours import COPY_PS

OPTIONS = ("hicache_ratio", "hicache_write_policy")
"""SGLang's options that a configuration with a hierarchical cache holds."""


def arguments(config: Case) -> list[str]:
    """SGLang's command line for the hierarchical cache of a configuration; empty without one."""
    if not config.get("enable_hierarchical_cache", False):
        return []
    named = [(f"--{name.replace('_', '-')}", str(config[name])) for name in OPTIONS]
    return ["--enable-hierarchical-cache", *(part for pair in named for part in pair)]


class Clock(Protocol):
    """What copies need to know of the loop that steps the scheduler; times in ps."""

    busy_ps: int
    """When the steps end that were launched so far."""
    blocked_ps: int
    """Until when the scheduler waits for a copy."""

    @property
    def now_ps(self) -> int:
        """The present time."""
        ...


class Copies:
    """In place of SGLang's `L2TransferEngine`, once the clock is set."""

    clock: Clock
    storage: Any = None
    """Behind the host; None: there is none."""

    def __init__(
        self, token_ps: int, load_token_ps: int | None = None, latency_ps: int = COPY_PS
    ) -> None:
        """`token_ps`: of each token of a copy, or of a write where loads take `load_token_ps`;
        `latency_ps`: of each copy beside that.
        """
        self._write_ps, self._latency_ps = token_ps, latency_ps
        self._load_ps = token_ps if load_token_ps is None else load_token_ps
        self.device_to_host_stream = self.host_to_device_stream = _Stream()
        self._written_ps = 0
        self.load_began_ps = self.loaded_ps = 0
        """When the newest load begins and ends."""
        self._under_way: list[_End] = []

    def submit_device_to_host(self, transfers: Any) -> Any:
        """A write begins behind those before it."""
        began_ps = self._start(self._written_ps)
        self._written_ps = began_ps + self._took_ps(transfers, self._write_ps)
        return self._completion(self._written_ps)

    def submit_host_to_device(self, transfers: Any, **_: Any) -> Any:
        """A load begins behind those before it."""
        self.load_began_ps = self._start(self.loaded_ps)
        self.loaded_ps = self.load_began_ps + self._took_ps(transfers, self._load_ps)
        return self._completion(self.loaded_ps)

    def next_end_ps(self) -> int | None:
        """When the next copy under way ends; None where there is none."""
        self._under_way = [end for end in self._under_way if not end.query()]
        return min((end.at_ps for end in self._under_way), default=None)

    def _start(self, free_ps: int) -> int:
        clock = self.clock
        return max(free_ps, clock.now_ps, clock.busy_ps, clock.blocked_ps)

    def _took_ps(self, transfers: Any, token_ps: int) -> int:
        tokens = sum(len(transfer.host_indices) for transfer in transfers)
        return self._latency_ps + token_ps * tokens

    def _completion(self, at_ps: int) -> Any:
        from sglang.srt.mem_cache.l2_transfer import TransferCompletion

        end = _End(self.clock, at_ps)
        self._under_way.append(end)
        return TransferCompletion(None, end, False)


class _Stream:
    """Copies know what they wait for."""

    def wait_stream(self, _: Any) -> None:
        """As of SGLang's streams."""


class _End:
    """The event of a copy's end."""

    def __init__(self, clock: Clock, at_ps: int) -> None:
        self._clock, self.at_ps = clock, at_ps

    def query(self) -> bool:
        """Whether it is over."""
        return self.at_ps <= self._clock.now_ps

    def synchronize(self) -> None:
        """The scheduler waits for it, and launches no step before."""
        self._clock.blocked_ps = max(self._clock.blocked_ps, self.at_ps)


def use_stand_in(copies: Copies) -> None:
    """From now on SGLang's schedulers start with the stand-in, and host memory is not registered
    with a device.
    """
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache.pool_host import common
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    def made(_: str) -> Copies:
        return copies

    common._cuda_host_register = lambda *_: None
    UnifiedRadixCache._pp_sync = lambda *_: None  # other stages hear of what the first one says
    cache_controller.L2TransferEngine = made
