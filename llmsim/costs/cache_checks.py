"""Checks that what was read from the cache has the types and shapes of compiled costs, whoever
wrote the file.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from llmsim.columns import Int64, element_type
from llmsim.costs.experts.load_sampling import SampledTable
from llmsim.costs.source import (
    AttentionCost,
    CompiledCosts,
    MixedAttention,
    OpCost,
    SplitAttention,
)


def check(costs: object) -> CompiledCosts:
    """The same, with its type; ValueError for a wrong type, or arrays whose lengths do not belong
    together.
    """
    if not isinstance(costs, CompiledCosts):
        raise ValueError("not a compiled cost table")
    _check_fields(costs)
    for op in costs.ops:
        _check_op(op)
    for attention in costs.attentions:
        _check_attention(attention)
    return costs


def _check_op(op: OpCost) -> None:
    curves: list[np.ndarray] = [
        op.ps,
        op.provenance,
        *([] if op.power_uw is None else [op.power_uw]),
    ]
    _need(len(op.ps) > 0 and all(one.shape == (len(op.ps),) for one in curves), op.name)
    if op.sampled is not None:
        table = op.sampled
        _need(table.ps.ndim == 3 and table.ps.shape[2] == len(table.tokens) > 0, op.name)


def _check_attention(attention: AttentionCost) -> None:
    match attention:
        case MixedAttention(grid=mixed):
            axes = [mixed.chunk_axis, mixed.kv_prefill_axis, mixed.n_axis, mixed.kv_axis]
            _check_grid(attention.name, axes, [mixed.ps, mixed.provenance])
        case SplitAttention(grid=split):
            prefill: list[np.ndarray] = [split.prefill_ps, split.prefill_provenance]
            prefill += [] if split.shared_ppm is None else [split.shared_ppm]
            if (latents := split.on_latents) is not None:
                prefill += [latents.ps, latents.provenance]
                prefill += [] if latents.shared_ppm is None else [latents.shared_ppm]
            _check_grid(attention.name, [split.q_axis, split.k_axis], prefill)
            decode: list[np.ndarray] = [split.decode_ps, split.decode_provenance]
            _check_grid(attention.name, [split.n_axis, split.kv_axis], decode)
        case _:
            _need(False, attention.name)


def _check_grid(name: str, axes: list[np.ndarray], cells: list[np.ndarray]) -> None:
    for axis in axes:
        _need(axis.ndim == 1 and len(axis) > 0 and bool((np.diff(axis) > 0).all()), name)
    shape = tuple(len(axis) for axis in axes)
    _need(all(one.shape == shape for one in cells), name)


def _need(good: bool, name: str) -> None:
    if not good:
        raise ValueError(f"{name}: arrays of a compiled cost table do not belong together")


def _check_fields(value: Struct) -> None:
    hints = _hints(value.__class__)
    for name, one in asdict(value).items():
        if not _fits(one, hints[name]):
            raise ValueError(
                f"{type(value).__name__}.{name} of a compiled cost table has another type"
            )


ARRAY = get_origin(Int64)
"""Origin of the annotations of arrays: np.ndarray, or from numpy 2.5 on an alias of its own."""


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, localns={"DrawnTable": SampledTable})


def _fits(value: Any, hint: Any) -> bool:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is Literal:
        return value in inside
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, inside[0]) for one in value)
    if origin is ARRAY:
        return isinstance(value, np.ndarray) and value.dtype == element_type(hint)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, Struct) and isinstance(value, hint):
        _check_fields(value)
        return True
    return hint is not None and isinstance(value, hint)
