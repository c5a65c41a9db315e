"""The kernel that scales a matrix's input to fp8, which measured rows of fp8 matrices contain.

vLLM's rows time a linear layer on bf16 inputs: a kernel that finds one scale for each token and
converts the tokens, then the product. A server whose model is compiled (vLLM from 0.10, unless
scales are of blocks) has that kernel only behind attention: elsewhere Inductor converts inside of
the norm or activation before the matrix. A checkpoint with fixed scales has none to find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.costs.sources.silicon.memory_bound import BYTES_PER_ELEMENT, Streaming, measured_curve

if TYPE_CHECKING:
    from llmsim.costs.sources.silicon.database import Database, TablePath
    from llmsim.model import Gemm

Floats = NDArray[np.float64]

CONTAINED_IN = ("vllm", "fp8")
"""Framework and type of the rows that contain the kernel."""


class InputScaling(Struct, frozen=True, eq=False):
    """Microseconds of that kernel over elements, as the same engine's tables have them."""

    converting: Streaming
    """With fixed scales."""
    finding: Streaming
    """What finding a scale for each token adds."""

    def absent_us(self, op: Gemm, counts: Floats, *, fused: bool, fixed: bool) -> Floats:
        """What a row's time has and the server has not, for each number of tokens.

        `fused`: a compiler converts inside of the operator before, where that is no attention;
        `fixed`: the checkpoint's scales are fixed.
        """
        moved = counts * op.gemm_k * BYTES_PER_ELEMENT
        converting, finding = (one.moving_us(moved) for one in (self.converting, self.finding))
        if fused and not op.reads_attention:
            return np.asarray(converting + finding)
        return np.asarray(finding) if fixed else np.zeros_like(counts)


def input_scaling(database: Database, table: TablePath, dtype: str) -> InputScaling | None:
    """The card's curves; None where the rows of `table` do not contain the kernel, or nothing
    measured it.
    """
    if (table.framework, dtype) != CONTAINED_IN:
        return None
    own = replace(database, engine=replace(database.engine, framework=table.framework))
    found = []
    for kind in ("scale_matrix", "compute_scale"):
        tables = [each for each in own.tables(kind) if each.framework == table.framework]
        curve = measured_curve(tables[0]) if tables else None
        if curve is None:
            return None
        found.append(curve)
    return InputScaling(*found)
