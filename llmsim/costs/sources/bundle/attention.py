"""Attention of a profile bundle: the measured grid made complete, and the cost of unequal decode
lengths.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import Int64, Provenance, UInt8
from llmsim.costs.source import SKEW_FRACTION_BITS, MixedGrid, to_ps
from llmsim.costs.sources.bundle.grid_completion import fill_line_axis
from llmsim.costs.sources.csv_tables import Table, read_table, refuse_duplicates
from llmsim.plurals import counted

Floats = NDArray[np.float64]

AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
SKEW_COLUMNS = ("n", "kv_big", "kv_mean", "t_mean_us", "t_skew_us")
SKEW_ITERATIONS = 3
"""skew.csv stores the sum of its three timed iterations (median ratio to attention.csv 2.98)."""
SPLIT_SHARE = 0.8
SPLIT_WAVES = 2
"""FlashAttention-2 splits a decode over KV only while sequences * kv_heads < 0.8 * 2 * SMs (its
heuristic).
"""


def read_attention(path: Path) -> Table:
    """attention.csv: one row per (prefill_chunk, kv_prefill, n_decode, kv_decode), microseconds of
    one layer.
    """
    table = read_table(path, text=(), numbers=(*AXES, "time_us"))
    for name in AXES:
        column = table.number[name]
        broken = np.flatnonzero(column != np.floor(column))
        if len(broken):
            row = int(broken[0])
            raise InputError(
                f"{path}:{int(table.line[row])}: {name} is {column[row]}; it must be a whole "
                "number",
                file=str(path),
            )
    refuse_duplicates(table, [table.number[name].astype(np.int64).tolist() for name in AXES])
    planes = (
        ("pure decode", "prefill_chunk", "n_decode"),
        ("pure prefill", "n_decode", "prefill_chunk"),
    )
    for what, axis, other in planes:
        if not bool(np.any((table.number[axis] == 0) & (table.number[other] > 0))):
            raise InputError(
                f"{path}:2:1: there is no {what} row ({axis} 0, {other} above 0); profile that "
                "plane too",
                file=str(path),
            )
    return table


def complete_grid(table: Table) -> MixedGrid:
    """The four-dimensional grid without holes.

    Rules, in order: a step without prefill does not depend on kv_prefill, one without decodes not
    on kv_decode; holes between measured points are interpolated linearly, first along the KV axes,
    then along the chunk; chunks that still have no mixed row, as in a profile that was stopped
    early, take the sums of prefill and decodes; what lies outside is constant below and linear
    above, along decode KV, prefill KV, decodes and chunk in that order. A plane chunk = 1 repeats
    the smallest measured chunk: a mixed step runs the mixed kernel, however short its prefill.
    """
    axes = [np.unique(table.number[name]).astype(np.int64) for name in AXES]
    axes[0] = _with_zero(axes[0])
    axes[2] = _with_zero(axes[2])
    values, marks = _scatter(table, axes)
    _independent_planes(values, marks)
    for axis in (3, 1):
        fill_line_axis(values, marks, axis, axes[axis], outside=False)
    fill_line_axis(values, marks, 0, axes[0], outside=False, from_index=1)
    _sums_where_nothing_is_mixed(values, marks, axes)
    for axis in (3, 1, 2):
        fill_line_axis(values, marks, axis, axes[axis], outside=True)
    fill_line_axis(values, marks, 0, axes[0], outside=True, from_index=1)
    if axes[0][1] > 1:
        axes[0] = np.insert(axes[0], 1, 1)
        values = np.insert(values, 1, values[1], axis=0)
        marks = np.insert(marks, 1, np.uint8(Provenance.EXTRAPOLATED), axis=0)
    return MixedGrid(axes[0], axes[1], axes[2], axes[3], to_ps(values), marks)


def _with_zero(axis: Int64) -> Int64:
    return axis if axis[0] == 0 else np.insert(axis, 0, 0)


def _scatter(table: Table, axes: list[Int64]) -> tuple[Floats, UInt8]:
    values = np.full([len(axis) for axis in axes], np.nan)
    marks = np.full(values.shape, Provenance.EXTRAPOLATED, dtype=np.uint8)
    cells = tuple(
        np.searchsorted(axis, table.number[name]) for axis, name in zip(axes, AXES, strict=True)
    )
    values[cells] = table.number["time_us"]
    marks[cells] = Provenance.MEASURED
    return values, marks


def _independent_planes(values: Floats, marks: UInt8) -> None:
    """Repeats pure decode over kv_prefill and pure prefill over kv_decode, from each line's first
    measured cell.
    """
    for plane, line_axis in ((0, 0), (2, 2)):
        block = values[0] if plane == 0 else values[:, :, 0, :]
        stamp = marks[0] if plane == 0 else marks[:, :, 0, :]
        axis = 0 if line_axis == 0 else 2
        known = ~np.isnan(block)
        first = np.expand_dims(np.argmax(known, axis=axis), axis)
        source = np.take_along_axis(block, first, axis=axis)
        measured = np.take_along_axis(stamp, first, axis=axis)
        block[...] = np.where(known, block, source)
        stamp[...] = np.where(known, stamp, measured)
    values[0, :, 0, :] = 0.0


def _sums_where_nothing_is_mixed(values: Floats, marks: UInt8, axes: list[Int64]) -> None:
    """Else the line from a pure prefill on would give decodes beside it for nothing."""
    bare = 1 + np.flatnonzero(np.isnan(values[1:, :, 1:, :]).all(axis=(1, 2, 3)))
    if not len(bare) or values.shape[2] == 1:
        return
    decodes, prefills = values[:1].copy(), values[:, :, :1, :].copy()
    for axis in (3, 2):
        fill_line_axis(
            decodes, np.zeros_like(decodes, dtype=np.uint8), axis, axes[axis], outside=True
        )
    for axis in (1, 0):
        fill_line_axis(
            prefills,
            np.zeros_like(prefills, dtype=np.uint8),
            axis,
            axes[axis],
            outside=True,
            from_index=int(axis == 0),
        )
    values[bare, :, 1:, :] = prefills[bare] + decodes[:, :, 1:, :]
    marks[bare, :, 1:, :] = Provenance.EXTRAPOLATED


def skew_ps_per_token_q20(path: Path, kv_heads: int, num_sms: int) -> tuple[int, str]:
    """Extra decode time per layer and token of (longest - mean), in 2^-20 ps, and how it was found.

    kappa = median over the rows above the split threshold of (t_skew - t_mean) / (kv_big - kv_mean)
    / 3: the longest sequence of an unsplit batch is streamed by one thread block per KV head and
    sticks out.
    """
    table = read_table(path, text=(), numbers=SKEW_COLUMNS)
    column = table.number
    spread = column["kv_big"] - column["kv_mean"]
    usable = (spread > 0) & (column["n"] > 1)
    slope_us = (
        (column["t_skew_us"] - column["t_mean_us"])[usable] / spread[usable] / SKEW_ITERATIONS
    )
    if num_sms > 0:
        unsplit = column["n"][usable] * kv_heads >= SPLIT_SHARE * SPLIT_WAVES * num_sms
        why = f"above the split threshold of {num_sms} SMs"
    else:
        unsplit = slope_us > 0
        why = "with a positive effect, because the number of SMs is not known"
    rule = f"{counted(int(unsplit.sum()), 'row')} {why}"
    if not bool(unsplit.any()):
        return 0, "none, no usable row"
    kappa_us = max(0.0, float(np.median(slope_us[unsplit])))
    return round(kappa_us * 1e6 * (1 << SKEW_FRACTION_BITS)), f"median of {rule}"
