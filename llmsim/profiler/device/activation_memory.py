"""How much memory a step's activations take: the peak of a dummy run of one layer and the head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def dummy_run(torch: Any, device: Any, work: Callable[[], object]) -> dict[str, object]:
    """Peak memory above what was there before, bytes, and how it was found; 0 where nothing can
    tell.
    """
    work()  # workspaces of libraries are allocated at first use and stay
    if device.type == "cuda":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize()
        return {
            "activation_peak_bytes": int(torch.cuda.max_memory_allocated(device) - before),
            "context_bytes": int(total - free - reserved),
            "method": (
                "torch.cuda peak allocation of one layer and the head; context: used but not by "
                "the allocator"
            ),
        }
    peak = _resident_growth(work)
    method = (
        "growth of the peak resident set"
        if peak is not None
        else "unknown: the kernel does not tell"
    )
    return {"activation_peak_bytes": peak or 0, "context_bytes": 0, "method": method}


def _resident_growth(work: Callable[[], object]) -> int | None:
    """Peak minus resident size over a call, bytes (Linux: the peak can be reset)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
        work()
        return max(0, _status("VmHWM") - before)
    except (OSError, ValueError, KeyError):
        return None


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
