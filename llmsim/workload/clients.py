"""What clients do besides asking: give up after a time, and take turns in a closed loop."""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_MS, PS_PER_S, Clients, Workload
from llmsim.workload.limits import MAX_TIME_NS

_STREAM = 7_701
"""Of the seed: think times draw from a stream that nothing else uses."""


class ClientOptions(Struct, frozen=True):
    """`max_concurrency` 0: an open loop, in which requests come at their times whatever became of
    the others.
    """

    max_concurrency: int = 0
    think_time: str | None = None
    """A distribution of whole milliseconds, such as `exponential:2000`; None: no thinking."""
    timeout_s: float | None = None
    """For requests whose line does not say; None: patience without end."""


def with_clients(
    workload: Workload, options: ClientOptions, seed: int
) -> tuple[Workload, Clients | None]:
    """The workload with its timeouts filled in, and the closed loop, if there is one.

    Raises InputError for values out of range and for a think time without a limit.
    """
    if options.timeout_s is not None:
        workload = _with_timeout(workload, options.timeout_s)
    if not options.max_concurrency:
        if options.think_time is not None:
            raise InputError(
                f"--think-time {options.think_time} has an effect only with --max-concurrency N: "
                "who thinks is a client"
            )
        return workload, None
    if not 1 <= options.max_concurrency < 1 << 31:
        raise InputError(
            f"--max-concurrency is {options.max_concurrency}; it must be from 1 to {(1 << 31) - 1}"
        )
    think_ps = np.empty(0, np.int64)
    if options.think_time is not None:
        from numpy.random import PCG64, Generator, SeedSequence

        from llmsim.workload.spec_text import Field, parse_lengths

        distribution = parse_lengths(Field("--think-time", "ms", options.think_time), 0)
        random = Generator(PCG64(SeedSequence([seed, _STREAM])))
        drawn_ms = distribution.draw(random, len(workload))
        if len(drawn_ms) and int(drawn_ms.max()) > MAX_TIME_NS // 1_000_000:
            raise InputError(
                f"--think-time {options.think_time} draws {drawn_ms.max()} ms, more than a run "
                "can last"
            )
        think_ps = drawn_ms * PS_PER_MS
    return workload, Clients(options.max_concurrency, think_ps)


def _with_timeout(workload: Workload, timeout_s: float) -> Workload:
    if not 0 < timeout_s <= MAX_TIME_NS / 1e9:
        raise InputError(
            f"--request-timeout is {timeout_s:g}; it must be above 0 and at most "
            f"{MAX_TIME_NS // 10**9} seconds"
        )
    timeout_ps = round(timeout_s * PS_PER_S)
    given = workload.timeout_ps
    column = np.full(len(workload), timeout_ps, dtype=np.int64)
    return replace(
        workload, timeout_ps=column if given is None else np.where(given < 0, column, given)
    )
