"""How fast the machine is just now: a fixed piece of work, timed beside every measurement on a CPU.

A profile and a log of one machine can be compared only as far as the machine was equally fast in
both. Other programs on its cores slow it by tens of percent, in processor time too, because they
share caches and memory.
"""

from __future__ import annotations

from typing import Any

from llmsim.profiler.device.timing import Stopwatch

ROWS, WIDTH, COPIED_FLOATS = 8, 1024, 1 << 21


def yardstick_us(torch: Any, device: Any, watch: Stopwatch) -> float:
    """Median time of a thin matrix product whose weights come from memory and a copy
    of 8 MB, us.
    """
    weights = [torch.randn(WIDTH, WIDTH, device=device) for _ in range(8)]
    x, source = torch.randn(ROWS, WIDTH, device=device), torch.randn(COPIED_FLOATS, device=device)

    def work() -> None:
        for weight in weights:
            torch.nn.functional.linear(x, weight)
        source.clone()

    return watch.eager(work).median_us
