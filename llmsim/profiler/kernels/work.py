"""What a measured kernel is to the stopwatch: a callable, one that takes buffers in turn, and
whether it can run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Work = Callable[[], Any]


def needs_cuda(torch: Any, device: Any, dtype: Any, package: str) -> str:
    """Why a kernel of a package for GPUs cannot run, or ""."""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if dtype == torch.float32:
        return "it computes in 16 bit only"
    from importlib.util import find_spec

    return "" if find_spec(package) is not None else f"the package {package} is not installed"


def rotating(run: Callable[[Any], object], arguments: Sequence[Any]) -> Work:
    """Calls `run` with each argument in turn; the attribute `turns` says how many there are."""
    state = {"next": 0}

    def work() -> object:
        index = state["next"]
        state["next"] = (index + 1) % len(arguments)
        return run(arguments[index])

    work.turns = len(arguments)  # type: ignore[attr-defined]
    return work
