"""Times of what LoRA adapters add to a step. Nobody has published times by shape, so that the
data sheet gives those of the kernels, and the cluster file those of the copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmsim.core import PS_PER_S, Provenance
from llmsim.costs.source import CostRequest, Curve, to_ps
from llmsim.costs.sources.roofline import LAUNCH_US, RooflineSource
from llmsim.model import AdapterCopy

if TYPE_CHECKING:
    from llmsim.model import LoraKernel


def adapter_curve(op: LoraKernel | AdapterCopy, request: CostRequest) -> Curve:
    """Times at each count of the operator's feature; the caller knows a bandwidth of the device's
    memory.
    """
    last = request.counts(op.feature)
    if isinstance(op, AdapterCopy):
        return _copies(op, last)
    curve = RooflineSource(request).operator(op, last)
    assert curve is not None, "the data sheet prices every kernel"
    return curve


def _copies(op: AdapterCopy, last: int) -> Curve:
    """One after the other: each waits for the memory, is copied at its rate, and is launched piece
    by piece.
    """
    moved_ps = -(-op.adapter_bytes * PS_PER_S // op.rate.bytes_per_s)
    launches_ps = int(to_ps(np.array([op.launches * LAUNCH_US]))[0])
    ps = np.arange(last + 1, dtype=np.int64) * (op.rate.latency_ps + moved_ps + launches_ps)
    return Curve(ps, np.full(last + 1, Provenance.ANALYTIC, dtype=np.uint8), op.rate.source)
