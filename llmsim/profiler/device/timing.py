"""Times a piece of device work: warm-up, many samples, their median and spread; eagerly or as a
replayed CUDA graph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Work = Callable[[], object]
Clock = Literal["wall", "cpu"]
MIN_SAMPLE_S = 3e-4
"""A sample on the CPU repeats its work until it lasts this long; the clock's grain and the call's
cost vanish.
"""
GRAPH_REPEATS = 10
"""Executions captured into one graph, at least: the cost of launching the graph is spread over
them.
"""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one execution: median, and the distance of the 10th to the 90th percentile
    over it.
    """

    median_us: float
    spread: float
    samples: int


class Stopwatch:
    """Times work on one device; the same calls on a CPU and on a GPU."""

    def __init__(
        self,
        torch: Any,
        device: Any,
        *,
        clock: Clock = "wall",
        samples: int = 9,
        row_s: float = 0.4,
    ) -> None:
        """`samples` at least, for at most about `row_s` seconds; `clock` "cpu" counts processor
        time (CPU only).
        """
        self._torch = torch
        self._device = device
        self._samples = samples
        self._row_s = row_s
        self._now = (
            time.process_time if clock == "cpu" and device.type == "cpu" else time.perf_counter
        )

    def sequence(self, program: Sequence[tuple[str, Work]]) -> dict[str, Timing]:
        """Runs a list of named works in turn and times each in its place (CPU).

        What runs between two executions of an operator empties the caches and predictors that a
        loop over it alone would fill: in such a loop, small operators take a fifth of their time in
        a model.
        """
        for _, work in program:
            work()
        found: dict[str, list[float]] = {name: [] for name, _ in program}
        started = time.perf_counter()
        while min(len(times) for times in found.values()) < self._samples:
            for name, work in program:
                start = self._now()
                work()
                found[name].append((self._now() - start) * 1e6)
            if time.perf_counter() - started > 8 * self._row_s and all(
                len(times) > 1 for times in found.values()
            ):
                break
        return {name: summary(times) for name, times in found.items()}

    def eager(self, work: Work, before: Work | None = None) -> Timing:
        """Each execution launched by the host; on the CPU, `before` runs ahead of each, outside of
        the time.
        """
        self._run(work, 2)
        if self._device.type == "cuda":
            return self._sampled(lambda: self._events(work, 1), 1)
        if before is not None:
            return self._sampled(lambda: self._after(before, work), 1)
        repeats = max(1, round(MIN_SAMPLE_S / max(self._clocked(work, 1), 1e-7)))
        return self._sampled(lambda: self._clocked(work, repeats), repeats)

    def graph(self, work: Work) -> Timing | None:
        """Executions inside a CUDA graph, without the gaps of launching; None where the work cannot
        be captured.

        Work that takes turns (its attribute `turns`) is captured once for each of them: fewer
        copies of a weight would stay in the cache from one replay to the next.
        """
        if self._device.type != "cuda":
            return None
        torch = self._torch
        repeats = max(GRAPH_REPEATS, int(getattr(work, "turns", 1)))
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._run(work, 3)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(repeats):
                    work()
            graph.replay()
            torch.cuda.synchronize()
        except (RuntimeError, torch.cuda.OutOfMemoryError):
            torch.cuda.synchronize()
            return None
        return self._sampled(lambda: self._events(graph.replay, 1, ahead=graph.replay), repeats)

    def synchronize(self) -> None:
        """Waits for the device."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()

    def _run(self, work: Work, times: int) -> None:
        for _ in range(times):
            work()
        self.synchronize()

    def _clocked(self, work: Work, repeats: int) -> float:
        start = self._now()
        for _ in range(repeats):
            work()
        self.synchronize()
        return self._now() - start

    def _after(self, before: Work, work: Work) -> float:
        before()
        return self._clocked(work, 1)

    def _events(self, work: Work, repeats: int, ahead: Work | None = None) -> float:
        """Seconds between two events; while the device is busy with `ahead`, the rest is launched,
        and its launch is not in the time.
        """
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        if ahead is not None:
            ahead()
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _sampled(self, sample: Callable[[], float], executions: int) -> Timing:
        found: list[float] = []
        started = time.perf_counter()
        while len(found) < self._samples or (
            len(found) < 4 * self._samples and time.perf_counter() - started < self._row_s / 4
        ):
            found.append(sample() / executions * 1e6)
            if len(found) >= 3 and time.perf_counter() - started > self._row_s:
                break
        return summary(found)


def summary(samples_us: list[float]) -> Timing:
    """Median and relative spread of samples in microseconds."""
    median = statistics.median(samples_us)
    ordered = sorted(samples_us)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
    return Timing(median, (high - low) / median if median > 0 else 0.0, len(samples_us))
