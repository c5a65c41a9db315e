"""Power and clocks of an NVIDIA device while something runs, read with `nvidia-smi`; nothing on other machines."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field

QUERY = "power.draw,clocks.sm,clocks.mem,temperature.gpu"
INTERVAL_MS = 100


@dataclass
class PowerMeter:
    """Samples in the background; `between` gives what was drawn in an interval of `time.perf_counter`."""

    device: str
    """As nvidia-smi takes it: a UUID, or a number (which CUDA_VISIBLE_DEVICES does not change)."""
    samples: list[tuple[float, list[float]]] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Starts sampling; why it cannot, or ""."""
        if shutil.which("nvidia-smi") is None:
            return "nvidia-smi is not there"
        command = ["nvidia-smi", f"--id={self.device}", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
        try:
            self._process = subprocess.Popen(
                [*command, f"--loop-ms={INTERVAL_MS}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError as error:
            return f"nvidia-smi cannot be started ({error.strerror})"
        threading.Thread(target=self._collect, daemon=True).start()
        return ""

    def stop(self) -> None:
        """Ends sampling."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)
            self._process = None

    def between(self, start: float, end: float) -> dict[str, float] | None:
        """Mean and 95th percentile of the power, W, and the median clocks, MHz; None without a sample."""
        rows = [values for when, values in self.samples if start <= when <= end and len(values) == 4]
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
