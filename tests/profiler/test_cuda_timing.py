"""Timing on a GPU, by a double of torch.cuda with a clock of its own: graphs, events, and what cannot be captured."""

from types import SimpleNamespace
from typing import Any

import pytest

from llmsim.config.errors import InputError
from profiler.device import open_device, smi_name
from profiler.timing import GRAPH_REPEATS, Stopwatch
from tests.profiler.cuda_double import LAUNCH_US, Gpu

CUDA = SimpleNamespace(type="cuda", index=None)


def test_a_graph_holds_kernels_without_the_gaps_of_launching() -> None:
    gpu = Gpu()
    watch = Stopwatch(gpu, CUDA)
    timing = watch.graph(gpu.work(1.0, 2.0))  # kernels shorter than their launch
    assert timing is not None and timing.median_us == pytest.approx(3.0) and timing.samples >= 9
    assert gpu.graphs[0].kernels == [1.0, 2.0] * GRAPH_REPEATS
    assert gpu.warmed_up_beside >= 3  # libraries allocate at first use, on another stream than the one captured
    assert gpu.replays >= timing.samples + 1  # the first replay uploads the graph, and does not count


def test_eager_times_hold_the_gaps() -> None:
    gpu = Gpu()
    timing = Stopwatch(gpu, CUDA).eager(gpu.work(1.0, 2.0))
    assert timing.median_us == pytest.approx(LAUNCH_US + 3.0, abs=LAUNCH_US)
    assert Stopwatch(gpu, CUDA).eager(gpu.work(500.0)).median_us == pytest.approx(500.0, abs=LAUNCH_US)


def test_streams_wait_for_each_other() -> None:
    gpu = Gpu()
    made: list[Any] = []
    make = gpu.cuda.Stream
    gpu.cuda.Stream = lambda: made.append(make()) or made[-1]  # type: ignore[func-returns-value]
    Stopwatch(gpu, CUDA).graph(gpu.work(1.0))
    (side,) = made
    assert side.waited_for == [gpu.main] and gpu.main.waited_for == [side] and gpu.current is gpu.main


def test_work_that_asks_the_device_is_not_captured_and_leaves_it_usable() -> None:
    gpu = Gpu()
    watch = Stopwatch(gpu, CUDA)
    assert watch.graph(gpu.work(4.0, waits=True)) is None
    assert gpu.capturing is None
    assert watch.eager(gpu.work(4.0, waits=True)).median_us >= 4.0
    assert watch.graph(gpu.work(4.0)) is not None


def test_no_memory_for_a_graph_is_no_error() -> None:
    gpu = Gpu()

    def work() -> None:
        if gpu.capturing is not None:
            raise MemoryError

    assert Stopwatch(gpu, CUDA).graph(work) is None


def test_the_device_that_was_asked_for_is_sampled() -> None:
    def torch(uuid: str | None, count: int = 2) -> Any:
        properties = SimpleNamespace(uuid=uuid) if uuid else SimpleNamespace()
        cuda = SimpleNamespace(
            get_device_properties=lambda _: properties, is_available=lambda: True, device_count=lambda: count,
        )  # fmt: skip
        return SimpleNamespace(cuda=cuda, device=lambda name: SimpleNamespace(type="cuda", index=int(name[5:] or 0)))

    assert smi_name(torch("8a3e"), CUDA) == smi_name(torch("GPU-8a3e"), CUDA) == "GPU-8a3e"
    assert smi_name(torch(None), SimpleNamespace(type="cuda", index=3)) == "3"
    with pytest.raises(InputError, match="this machine has 2 CUDA devices"):
        open_device(torch(None), "cuda:2", 0)
