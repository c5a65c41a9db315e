"""Timing on a GPU, by a double of torch.cuda with a clock of its own: graphs, events, and what
cannot be captured.
"""

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.profiler.device.device import open_device, smi_name
from llmsim.profiler.device.power import PowerMeter, nvml_reading
from llmsim.profiler.device.timing import GRAPH_REPEATS, Stopwatch
from llmsim.profiler.kernels.work import rotating
from tests.profiler.cuda_double import LAUNCH_US, Gpu

CUDA = SimpleNamespace(type="cuda", index=None)


def test_a_graph_holds_kernels_without_the_gaps_of_launching() -> None:
    gpu = Gpu()
    watch = Stopwatch(gpu, CUDA)
    timing = watch.graph(gpu.work(1.0, 2.0))  # kernels shorter than their launch
    assert timing is not None and timing.median_us == pytest.approx(3.0) and timing.samples >= 9
    assert gpu.graphs[0].kernels == [1.0, 2.0] * GRAPH_REPEATS
    assert (
        gpu.warmed_up_beside >= 3
    )  # libraries allocate at first use, on another stream than the one captured
    assert (
        gpu.replays >= timing.samples + 1
    )  # the first replay uploads the graph, and does not count


def test_a_graph_holds_every_copy_that_work_takes_in_turn() -> None:
    gpu = Gpu()
    copies = [gpu.work(float(us)) for us in range(1, 38)]
    work = rotating(lambda copy: copy(), copies)
    timing = Stopwatch(gpu, CUDA).graph(work)
    assert timing is not None and timing.median_us == pytest.approx(
        19.0
    )  # the mean of all, not of the first ten
    assert sorted(gpu.graphs[0].kernels) == [float(us) for us in range(1, 38)]


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_device_gets_its_number(name: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra llmsim[profiler])")
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)  # would start CUDA
    assert open_device(torch, name, 0) == torch.device("cuda", index)
    assert chosen == [index]


def nvml(instant_mw: int | None) -> ModuleType:
    """pynvml, as far as it is used: numbers in its units."""

    def fields(handle: str, ids: list[int]) -> list[Any]:
        assert ids == [186]
        return [
            SimpleNamespace(
                nvmlReturn=0 if instant_mw else 3, value=SimpleNamespace(uiVal=instant_mw or 0)
            )
        ]

    made = ModuleType("pynvml")
    made.__dict__.update(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetFieldValues=fields,
        nvmlDeviceGetHandleByIndex=lambda index: f"number {index + 0}",
        nvmlDeviceGetPowerUsage=lambda handle: 123_456,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1980, 2: 3201}[kind],
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetTemperature=lambda handle, sensor: 41 + sensor,
        NVML_TEMPERATURE_GPU=0,
        NVML_FI_DEV_POWER_INSTANT=186,
    )
    return made


@pytest.mark.parametrize(("instant_mw", "watts"), [(700_500, 700.5), (None, 123.456)])
def test_nvml_is_read_in_watts(
    instant_mw: int | None, watts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(instant_mw))
    for device in ("GPU-8a3e", "0"):
        reading, why = nvml_reading(device)
        assert reading is not None and reading() == [watts, 1980.0, 3201.0, 41.0], why
    meter = PowerMeter("0")
    begin = time.perf_counter()
    assert meter.start() == "" and meter.source == "NVML"
    while not meter.samples:
        time.sleep(0.01)
    meter.stop()
    found = meter.between(begin, time.perf_counter())
    assert found is not None and found["mean_w"] == pytest.approx(watts) and found["sm_mhz"] == 1980


def test_a_driver_that_is_not_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made = nvml(1)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(made, "nvmlInit", lambda: 1 // 0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert PowerMeter("0").start().startswith("NVML does not answer (")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in PowerMeter("0").start()


def test_eager_times_hold_the_gaps() -> None:
    gpu = Gpu()
    timing = Stopwatch(gpu, CUDA).eager(gpu.work(1.0, 2.0))
    assert timing.median_us == pytest.approx(LAUNCH_US + 3.0, abs=LAUNCH_US)
    assert Stopwatch(gpu, CUDA).eager(gpu.work(500.0)).median_us == pytest.approx(
        500.0, abs=LAUNCH_US
    )


def test_streams_wait_for_each_other() -> None:
    gpu = Gpu()
    made: list[Any] = []
    make = gpu.cuda.Stream
    gpu.cuda.Stream = lambda: made.append(make()) or made[-1]  # type: ignore[func-returns-value]
    Stopwatch(gpu, CUDA).graph(gpu.work(1.0))
    (side,) = made
    assert (
        side.waited_for == [gpu.main] and gpu.main.waited_for == [side] and gpu.current is gpu.main
    )


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
            get_device_properties=lambda _: properties,
            is_available=lambda: True,
            device_count=lambda: count,
        )
        return SimpleNamespace(
            cuda=cuda, device=lambda name: SimpleNamespace(type="cuda", index=int(name[5:] or 0))
        )

    assert smi_name(torch("8a3e"), CUDA) == smi_name(torch("GPU-8a3e"), CUDA) == "GPU-8a3e"
    assert smi_name(torch(None), SimpleNamespace(type="cuda", index=3)) == "3"
    with pytest.raises(InputError, match="this machine has 2 CUDA devices"):
        open_device(torch(None), "cuda:2", 0)
