"""Names the rows of a bundle or cost table that beat the data sheet: the user's numbers are used,
but not silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.source import CostRequest
from llmsim.costs.sources.csv_tables import Table

if TYPE_CHECKING:
    from llmsim.model import Attention, Moe, Operator

Floats = NDArray[np.float64]


class LowerBoundWarnings:
    """Collects the rows of `whose` below the speed of light; without any limit known it collects
    nothing.
    """

    def __init__(self, request: CostRequest, whose: str = "the profile bundle") -> None:
        self._request, self._whose = request, whose
        self._peak_rates = peak_rates_of(request)
        self._rows: dict[tuple[str, str, str], list[float]] = {}
        self._worst = 1.0

    def dense(
        self, op: Operator, path: Path | str, feature: str, points: Floats, times_us: Floats
    ) -> None:
        """Checks the rows of one layer of dense.csv or per_sequence.csv."""
        if self._peak_rates is not None:
            least = self._peak_rates.operator_us(op, points, self._request.dtypes.activation)
            self.add(op.name, path, points, times_us, least, feature)

    def moe(self, op: Moe, path: Path | str, table: Table, divisor: int) -> None:
        """Checks the expert rows: each active expert's weights are streamed."""
        if self._peak_rates is None or not op.experts_local:
            return
        expert_bytes = op.weight_bytes / op.held * table.number["activated_experts"]
        least = (
            expert_bytes
            * self._peak_rates.weights_stream
            / self._peak_rates.memory_bandwidth_bytes_per_s
            * 1e6
        )
        self.add(
            op.name,
            path,
            table.number["tokens"],
            table.number["time_us"] / divisor,
            least,
            "tokens",
        )

    def attention(self, op: Attention, path: Path | str, table: Table) -> None:
        """Checks the KV that each row of attention.csv must read, where it exceeds the last-level
        cache.
        """
        if self._peak_rates is None:
            return
        column = table.number
        context = (
            column["kv_prefill"] * (column["prefill_chunk"] > 0)
            + column["n_decode"] * column["kv_decode"]
        )
        least = self._peak_rates.kv_us(context * op.kv_bytes_per_context_token)
        self.add(op.name, path, context, column["time_us"], least, "cached tokens")

    def decodes(self, op: Attention, path: Path | str, context: Floats, times_us: Floats) -> None:
        """Checks rows of decode batches by the cached tokens that each must read, as `attention`
        does.
        """
        if self._peak_rates is not None:
            least = self._peak_rates.kv_us(context * op.kv_bytes_per_context_token)
            self.add("decode attention", path, context, times_us, least, "cached tokens")

    def sentences(self) -> list[str]:
        """One warning that names every group of rows, or nothing."""
        if not self._rows:
            return []
        found = [_rows(*key, points) for key, points in self._rows.items()]
        return [
            f"{self._whose} is faster than the data sheet allows in {'; '.join(found)} (at worst "
            f"{self._worst:.3g} times as fast as that); the rows are used as they are"
        ]

    def add(
        self,
        name: str,
        path: Path | str,
        points: Floats,
        times_us: Floats,
        least_us: Floats,
        unit: str,
    ) -> None:
        """Checks rows at `points` (in `unit`) of one operator against the least times, us."""
        fast = np.flatnonzero(times_us < least_us)
        if not len(fast):
            return
        self._worst = max(
            self._worst, float(np.max(least_us[fast] / np.maximum(times_us[fast], 1e-9)))
        )
        self._rows.setdefault((name, str(path), unit), []).extend(points[fast].tolist())


def _rows(name: str, path: str, unit: str, points: list[float]) -> str:
    low, high = min(points), max(points)
    span = f"{low:g}" if low == high else f"{low:g}..{high:g}"
    rows = "1 row" if len(points) == 1 else f"{len(points)} rows"
    return f"{name} at {span} {unit} ({rows} of {path})"
