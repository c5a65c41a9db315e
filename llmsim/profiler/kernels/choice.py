"""Chooses among the implementations of one operator: the first that runs here and agrees with plain
float32 math.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TOLERANCE = 3e-2
"""Largest relative error of a kernel, in the Euclidean norm; half-precision results lie between
1e-3 and 1e-2.
"""


def first_right(
    device: Any,
    errors: Mapping[str, Callable[[], float]],
    anywhere: tuple[str, ...] = ("torch",),
    tolerance: float = TOLERANCE,
) -> tuple[str, dict[str, str]]:
    """The first name whose relative error is small, "" without any, and why the ones before it are
    not used.

    `errors` runs each on a small case; names that are not in `anywhere` need a CUDA device.
    """
    reasons: dict[str, str] = {}
    for name, error in errors.items():
        if device.type != "cuda" and name not in anywhere:
            reasons[name] = "it needs a CUDA device"
            continue
        try:
            found = error()
        except (
            Exception
        ) as problem:  # a kernel of another package may fail in any way: it is then not used
            reasons[name] = (
                f"it failed: {type(problem).__name__}: "
                f"{(str(problem).splitlines() or [''])[0][:120]}"
            )
            continue
        if found < tolerance:
            return name, reasons
        reasons[name] = f"its result is wrong by {found:.2g} on a small case"
    return "", reasons


def relative_error(found: Any, wanted: Any) -> float:
    """Distance of two tensors over the length of the second."""
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())
