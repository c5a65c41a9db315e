"""The device under test: what it is, how large its cache is, and which versions of everything are
at work.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmsim.config.errors import InputError

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DEFAULT_CACHE_BYTES = 64 << 20


def import_torch() -> Any:
    """PyTorch, or an InputError that says how to get it."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "PyTorch is not installed, and measuring needs it; install the extra: pip install "
            '"llmsim[profiler]"'
        ) from None
    return torch


@dataclass(frozen=True)
class DeviceInfo:
    """Facts for provenance; `cache_bytes` is the last-level cache that weights must exceed to be
    read from memory.
    """

    name: str
    cache_bytes: int
    memory_bytes: int
    facts: dict[str, object]


def open_device(torch: Any, name: str, threads: int) -> Any:
    """The torch device `name` ("auto": cuda where there is one); `threads` for CPU work, 0 leaves
    torch's choice.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f'--device is "{name}"; it may be auto, cpu, cuda or cuda:N') from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f'--device is "{name}"; it may be auto, cpu, cuda or cuda:N')
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"--device {name}: this PyTorch sees no CUDA device; use --device cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise InputError(
                f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices, "
                "from 0"
            )
        device = torch.device(
            "cuda", device.index or 0
        )  # set_device takes no device without a number
        torch.cuda.set_device(device)
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    return device


def torch_dtype(torch: Any, short: str) -> Any:
    """The torch type of a short dtype name; InputError for those that operators cannot be measured
    in.
    """
    if short not in TORCH_DTYPES:
        raise InputError(
            f'--dtype is "{short}"; operators are measured in {", ".join(TORCH_DTYPES)}'
        )
    return getattr(torch, TORCH_DTYPES[short])


def describe(torch: Any, device: Any) -> DeviceInfo:
    """Name, cache, memory and versions."""
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "host": platform.machine(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    for package in ("vllm", "flash_attn", "triton", "transformers"):
        facts[package] = _version(package)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["cuda"] = torch.version.cuda
        facts["compute_capability"] = f"{properties.major}.{properties.minor}"
        facts["multiprocessors"] = properties.multi_processor_count
        cache = int(getattr(properties, "L2_cache_size", 0) or DEFAULT_CACHE_BYTES)
        return DeviceInfo(str(properties.name), cache, int(properties.total_memory), facts)
    facts["threads"] = torch.get_num_threads()
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    )
    return DeviceInfo(_cpu_name(), _cpu_cache(), memory, facts)


def smi_name(torch: Any, device: Any) -> str:
    """How NVML and nvidia-smi call a CUDA device, whichever devices this process may see."""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", "") or "")
    return f"GPU-{uuid.removeprefix('GPU-')}" if uuid else str(device.index or 0)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or sys.platform


def _cpu_cache() -> int:
    """The largest cache that the kernel names; L3 of a CPU, as a rule."""
    sizes = [DEFAULT_CACHE_BYTES // 2]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            sizes.append(int(text[:-1]) << (10 if text[-1] == "K" else 20))
    return max(sizes)
