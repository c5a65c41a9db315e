"""Power and clocks of an NVIDIA device while something runs, by NVML or `nvidia-smi`; nothing on
other machines.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

QUERY = "power.draw,clocks.sm,clocks.mem,temperature.gpu"
INTERVAL_MS = 100
Reading = Callable[[], list[float]]
"""Watts, MHz of the multiprocessors, MHz of the memory, degrees Celsius, all of this moment."""


@dataclass
class PowerMeter:
    """Samples in the background; `between` gives what was drawn in an interval of
    `time.perf_counter`.
    """

    device: str
    """A UUID, or a number (which CUDA_VISIBLE_DEVICES does not change)."""
    samples: list[tuple[float, list[float]]] = field(default_factory=list)
    source: str = ""
    _process: subprocess.Popen[str] | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> str:
        """Starts sampling; why it cannot, or ""."""
        reading, why = nvml_reading(self.device)
        if reading is not None:
            self.source = "NVML"
            threading.Thread(target=self._read, args=(reading,), daemon=True).start()
            return ""
        if shutil.which("nvidia-smi") is None:
            return f"{why}, and nvidia-smi is not there"
        command = [
            "nvidia-smi",
            f"--id={self.device}",
            f"--query-gpu={QUERY}",
            "--format=csv,noheader,nounits",
        ]
        try:
            self._process = subprocess.Popen(
                [*command, f"--loop-ms={INTERVAL_MS}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            return f"nvidia-smi cannot be started ({error.strerror})"
        self.source = "nvidia-smi"
        threading.Thread(target=self._collect, daemon=True).start()
        return ""

    def stop(self) -> None:
        """Ends sampling."""
        self._ended.set()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)
            self._process = None

    def between(self, start: float, end: float) -> dict[str, float] | None:
        """Mean and 95th percentile of the power, W, and the median clocks, MHz; None without a
        sample.
        """
        rows = [
            values for when, values in self.samples if start <= when <= end and len(values) == 4
        ]
        if not rows:
            return None
        watts = sorted(row[0] for row in rows)
        return {
            "samples": len(rows),
            "mean_w": statistics.fmean(watts),
            "p95_w": watts[round(0.95 * (len(watts) - 1))],
            "sm_mhz": statistics.median(row[1] for row in rows),
            "memory_mhz": statistics.median(row[2] for row in rows),
            "celsius": statistics.median(row[3] for row in rows),
        }

    def _read(self, reading: Reading) -> None:
        while not self._ended.wait(INTERVAL_MS / 1e3):
            try:
                values = reading()
            except Exception:  # the driver may refuse a reading in any way; the next may succeed
                continue
            self.samples.append((time.perf_counter(), values))

    def _collect(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        for line in process.stdout:
            try:
                values = [float(cell) for cell in line.split(",")]
            except ValueError:
                continue
            self.samples.append((time.perf_counter(), values))


def nvml_reading(device: str) -> tuple[Reading | None, str]:
    """How NVML tells power and clocks of a device, or None and why it does not (package
    nvidia-ml-py).
    """
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        by_uuid = device.startswith(("GPU-", "MIG-"))
        handle = (
            pynvml.nvmlDeviceGetHandleByUUID(device)
            if by_uuid
            else pynvml.nvmlDeviceGetHandleByIndex(int(device))
        )
        watts = _watts(pynvml, handle)

        def reading() -> list[float]:
            return [
                watts(),
                float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
                float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            ]

        reading()
    except Exception as error:  # no driver, no right, no such device: each has an error of its own
        return None, f"NVML does not answer ({error})"
    return reading, ""


def _watts(pynvml: Any, handle: Any) -> Callable[[], float]:
    """The draw of this moment where the driver tells it, else its mean over the last second."""
    instant = getattr(pynvml, "NVML_FI_DEV_POWER_INSTANT", None)

    def at_once() -> float:
        (found,) = pynvml.nvmlDeviceGetFieldValues(handle, [instant])
        if found.nvmlReturn != 0:
            raise OSError
        return float(found.value.uiVal) / 1e3

    def smoothed() -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3

    try:
        return at_once if instant is not None and at_once() > 0 else smoothed
    except Exception:  # older drivers do not know the field
        return smoothed
