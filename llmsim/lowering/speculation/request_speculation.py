"""What a workload says of the drafts of its requests, in the core's form."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim import _native
from llmsim.core import Int64, Workload
from llmsim.lowering.scheduler import chance


def request_speculation(workload: Workload) -> "_native.RequestSpeculation | None":
    """None where the workload says nothing of drafts."""
    rates, counts = workload.acceptance_rate, workload.accepted_drafts
    if workload.draft_depth is None and rates is None and counts is None:
        return None
    depth = np.zeros(0, np.int32) if workload.draft_depth is None else workload.draft_depth
    chances = None if rates is None else [[chance(rate) for rate in row] for row in rates]
    return _native.RequestSpeculation(
        depth, *_joined(chances, np.uint64), *_joined(counts, np.int32)
    )


def _joined(rows: Sequence[Sequence[int]] | None, dtype: Any) -> tuple[Int64, NDArray[Any]]:
    """Where each row's values begin, and all values; both empty where there are no rows."""
    if rows is None:
        return np.zeros(0, np.int64), np.zeros(0, dtype)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.array([value for row in rows for value in row], dtype=dtype)
