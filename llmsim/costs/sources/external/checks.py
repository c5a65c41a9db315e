"""What the rows of an external table cannot mean: operators that the model lacks, times that beat
the data sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmsim.config.errors import InputError, nearest
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.sources.external.table import ATTENTION, Point
from llmsim.costs.sources.plausibility import LowerBoundWarnings
from llmsim.model import Attention, Gemm, dtype_bytes

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.costs.sources.external.table import ExternalTable
    from llmsim.model import Operator


def once(
    points: Iterable[Point], shapes: Iterable[list[int]]
) -> tuple[list[Point], list[list[int]]]:
    """Each shape once, as a repeated one is no grid any more. Raises InputError where rows of one
    shape state different times or energies.
    """
    kept: dict[tuple[int, ...], Point] = {}
    for point, shape in zip(points, shapes, strict=True):
        first = kept.setdefault(tuple(shape), point)
        if (point.latency_us, point.energy_uj) == (first.latency_us, first.energy_uj):
            continue
        what = f"{point.latency_us:g} us"
        other = f"{first.latency_us:g} us"
        if what == other:
            what, other = f"{point.energy_uj} uJ", f"{first.energy_uj} uJ"
        raise InputError(
            f'{point.place}: "{point.operator}" of this shape has {what}, and {other} at '
            f"{first.place}; keep one of these rows"
        )
    return list(kept.values()), [list(shape) for shape in kept]


def same_matrix(point: Point, op: Operator) -> bool:
    """Whether a row of the operator's name is of its shape, as far as the row says."""
    n, k = matrix_of(op)
    return point.get("n", n) == n and point.get("k", k) == k


def matrix_of(op: Operator) -> tuple[int, int]:
    """Width and depth of an operator's matrix, 0 where it has none."""
    return (op.gemm_n, op.gemm_k) if isinstance(op, Gemm) else (0, 0)


def same_heads(point: Point, op: Attention) -> bool:
    """Whether a row of attention is of the operator's heads, as far as the row says."""
    own = {"heads": op.heads, "kv_heads": op.kv_heads, "head_dim": op.head_dim}
    return all(point.get(name, size) == size for name, size in own.items())


def feature_of(op: Operator) -> str:
    """The column that the operator's time depends on."""
    return "sequences" if op.feature == "sequences" else "tokens"


def unused_rows(table: ExternalTable, points: Iterable[Point], request: CostRequest) -> list[str]:
    """A sentence about the rows of this device and layout that no operator of the model can take,
    or nothing.
    """
    reasons: dict[str, int] = {}
    for point in points:
        reason = _why_unused(point, request)
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
    if not reasons:
        return []
    said = "; ".join(
        f"{reason} ({count} row{'s' * (count > 1)})" for reason, count in reasons.items()
    )
    return [f"{table.path}: rows that are not used: {said}"]


def _why_unused(point: Point, request: CostRequest) -> str:
    """Empty where an operator takes the row; rows that a better source replaces are taken in this
    sense.
    """
    if point.operator == "gemm":
        return ""
    if point.operator in ATTENTION:
        attends = [op for op in request.operators if isinstance(op, Attention)]
        has_heads = any(same_heads(point, op) for op in attends)
        return "" if has_heads else f"{point.operator} of other heads"
    named = [op for op in request.operators if op.name == point.operator]
    is_attention = any(isinstance(op, Attention) for op in named)
    if is_attention:
        return f'"{point.operator}" of this model has rows named {" and ".join(ATTENTION)}'
    if not named:
        known = [*(op.name for op in request.operators), "gemm", *ATTENTION]
        close = nearest(point.operator, known)
        return f'"{point.operator}" is no operator of {request.model.name}{close}'
    return _why_unlike(point, named)


def _why_unlike(point: Point, named: Sequence[Operator]) -> str:
    """Why a row does not fit the operators of its name; empty where one takes it."""
    shaped = [op for op in named if same_matrix(point, op)]
    if not shaped:
        sizes = " or ".join(f"n={n} k={k}" for n, k in map(matrix_of, named))
        return f"{point.operator} of another shape than {sizes}"
    if not any(feature_of(op) in point.shape for op in shaped):
        return f"{point.operator} depends on {feature_of(shaped[0])}, which the row does not state"
    return ""


def faster_than_light(label: str, points: Iterable[Point], request: CostRequest) -> list[str]:
    """A sentence about the rows below what the device's data sheet allows, or nothing; they are
    used all the same.
    """
    warnings = LowerBoundWarnings(request, label)
    peak_rates = peak_rates_of(request)
    if peak_rates is None:
        return []
    for point in points:
        file, time = point.place.rpartition(":")[0], np.array([point.latency_us])
        if point.operator == "gemm":
            m, n, k = (point.get(name) for name in ("tokens", "n", "k"))
            peak = peak_rates.peak(request.dtypes.weight)
            memory = n * k * dtype_bytes(request.dtypes.weight) * peak_rates.weights_stream
            least = (
                max(
                    memory / peak_rates.memory_bandwidth_bytes_per_s,
                    2.0 * m * n * k / peak if peak else 0.0,
                )
                * 1e6
            )
            warnings.add(
                f"gemm n={n} k={k}", file, np.array([float(m)]), time, np.array([least]), "tokens"
            )
            continue
        for op in request.operators:
            if point.operator == "decode" and isinstance(op, Attention) and same_heads(point, op):
                tokens = np.array([float(point.get("sequences") * point.get("cached_tokens"))])
                warnings.decodes(op, file, tokens, time)
            elif (
                point.operator == op.name
                and same_matrix(point, op)
                and feature_of(op) in point.shape
            ):
                warnings.dense(
                    op, file, feature_of(op), np.array([float(point.get(feature_of(op)))]), time
                )
                break
    return warnings.sentences()
