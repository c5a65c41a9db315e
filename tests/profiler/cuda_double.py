"""A double of torch.cuda for the stopwatch: a clock of its own, and the rules of streams, events
and graph capture.

Launching takes `LAUNCH_US` on the host, a kernel its own time on the device. While a graph is
captured nothing runs; what must not happen then (waiting for the device) raises, as CUDA does. An
event's time may be read after it was waited for, and only where kernels and events went to the same
stream.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

LAUNCH_US = 7.0
REPLAY_US = 5.0


class CaptureError(RuntimeError):
    """Operation not permitted when the stream is capturing."""


class Stream:
    def __init__(self, gpu: "Gpu") -> None:
        self.gpu = gpu
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: "Stream") -> None:
        self.waited_for.append(other)


class Event:
    def __init__(self, gpu: "Gpu") -> None:
        self.gpu = gpu
        self.at_us: float | None = None
        self.stream: Stream | None = None
        self.waited = False

    def record(self) -> None:
        assert self.gpu.capturing is None, "timing events do not work inside of a graph"
        self.at_us, self.stream, self.waited = self.gpu.device_us, self.gpu.current, False

    def synchronize(self) -> None:
        self.gpu.synchronize()
        self.waited = True

    def elapsed_time(self, other: "Event") -> float:
        assert (
            self.at_us is not None
            and other.at_us is not None
            and other.waited
            and self.stream is other.stream
        )
        return (other.at_us - self.at_us) / 1e3


class Graph:
    def __init__(self, gpu: "Gpu") -> None:
        self.gpu = gpu
        self.kernels: list[float] = []
        self.done = False

    def replay(self) -> None:
        assert self.done, "replayed before its capture ended"
        self.gpu.host_us += REPLAY_US
        self.gpu.device_us = max(self.gpu.device_us, self.gpu.host_us) + sum(self.kernels)
        self.gpu.replays += 1


class Gpu:
    """`torch` for a Stopwatch, and the device behind it."""

    def __init__(self) -> None:
        self.host_us = self.device_us = 0.0
        self.capturing: Graph | None = None
        self.main = self.current = Stream(self)
        self.warmed_up_beside = 0
        self.replays = 0
        self.graphs: list[Graph] = []
        self.cuda = SimpleNamespace(
            Stream=lambda: Stream(self),
            current_stream=lambda: self.current,
            stream=self.stream,
            CUDAGraph=self._graph,
            graph=self.capture,
            synchronize=self.synchronize,
            OutOfMemoryError=MemoryError,
            Event=lambda enable_timing: Event(self) if enable_timing else None,
        )

    def kernel(self, us: float) -> None:
        """Launches a kernel on the current stream."""
        if self.capturing is not None:
            self.capturing.kernels.append(us)
            return
        self.warmed_up_beside += self.current is not self.main
        self.host_us += LAUNCH_US
        self.device_us = max(self.device_us, self.host_us) + us

    def synchronize(self) -> None:
        if self.capturing is not None:
            raise CaptureError("operation not permitted when stream is capturing")
        self.host_us = max(self.host_us, self.device_us)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def capture(self, graph: Graph) -> Iterator[None]:
        self.synchronize()
        self.capturing = graph
        try:
            yield
            graph.done = True
        finally:
            self.capturing = None

    def _graph(self) -> Graph:
        self.graphs.append(Graph(self))
        return self.graphs[-1]

    def work(self, *kernels_us: float, waits: bool = False) -> Callable[[], None]:
        """Launches these kernels; `waits`: and asks the device for a number, as nonzero() does."""

        def run() -> Any:
            for us in kernels_us:
                self.kernel(us)
            if waits:
                self.synchronize()

        return run
