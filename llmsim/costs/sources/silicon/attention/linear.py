"""Gated delta nets and Kimi delta attention from the silicon database: the kernels of prefill,
decode and convolution, by heads. The convolution of Kimi delta attention takes 0.8 ms for any short
prompt there, which is the host's pace; it is priced by its bytes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.source import Curve, curve_from_points
from llmsim.costs.sources.silicon.database import TablePath, read_columns

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.model import Operator

Floats = NDArray[np.float64]

COLUMNS = [
    "kernel_source",
    "phase",
    "batch_size",
    "seq_len",
    "num_k_heads",
    "num_v_heads",
    "head_k_dim",
    "head_v_dim",
    "latency",
]
NAMES = {
    "delta": ("linear_conv", "linear_attention", "linear_state"),
    "kda": ("linear_attention", "linear_state"),
}
"""Operators with rows, by kind of layer."""


def linear_curve(
    tables: list[TablePath], op: Operator, request: CostRequest, last: int
) -> Curve | None:
    """One of the operators that a gated delta net, or Kimi delta attention, adds; None for any
    other, or without rows of its head sizes.

    linear_state: the recurrent kernel of a decode batch, by sequences, which is the traffic of the
    state. linear_attention: what a prompt of so many tokens takes beyond one token (the state's
    traffic is in the other).
    """
    linear = request.model.linear
    if linear is None or op.name not in NAMES.get(linear.kind, ()):
        return None
    heads = linear.value_heads // request.layout.tp
    keys = linear.key_heads // request.layout.tp
    for table in tables:
        rows = read_columns(table.path, COLUMNS)
        keep = (rows["head_k_dim"] == linear.key_dim) & (rows["head_v_dim"] == linear.value_dim)
        if not bool(keep.any()):
            continue
        shapes = np.unique(
            np.stack([rows["num_v_heads"][keep], rows["num_k_heads"][keep]], axis=1), axis=0
        )
        away = np.abs(np.log2(shapes[:, 0] / heads)) + 0.1 * np.abs(np.log2(shapes[:, 1] / keys))
        found = shapes[int(np.argmin(away))]
        keep &= (rows["num_v_heads"] == found[0]) & (rows["num_k_heads"] == found[1])
        points, us = _points(rows, keep, op.name)
        if len(points) < 2:
            continue
        label = table.label
        exact = (int(found[0]), int(found[1])) == (heads, keys)
        if not exact:
            us = us[0] + (us - us[0]) * heads / float(found[0])
            label += f", scaled from {int(found[0])} value heads"
        curve = curve_from_points(points, us, last, label)
        marks = curve.provenance if exact else np.full_like(curve.provenance, Provenance.SCALED)
        return Curve(curve.ps, marks, label)
    return None


def _points(
    rows: dict[str, NDArray[np.generic]], keep: NDArray[np.bool_], name: str
) -> tuple[Floats, Floats]:
    """(tokens or sequences ascending, microseconds); the fastest row of each."""
    kernels = np.array([str(kernel) for kernel in rows["kernel_source"]])
    conv = np.char.startswith(kernels, "causal_conv1d")
    if name == "linear_state":
        keep = keep & ~conv & (rows["phase"] == "generation")
        at = rows["batch_size"]
    else:
        keep = (
            keep
            & (conv if name == "linear_conv" else ~conv)
            & (rows["phase"] == "context")
            & (rows["batch_size"] == 1)
        )
        at = rows["seq_len"]
    points, owner = np.unique(at[keep].astype(np.float64), return_inverse=True)
    us = np.full(len(points), np.inf)
    np.minimum.at(us, owner, rows["latency"][keep].astype(np.float64) * 1e3)
    us = np.maximum.accumulate(us)
    return (points, us - us[0]) if name == "linear_attention" and len(us) else (points, us)
