"""Reads the silicon database's attention tables for one head shape, or for the nearest
one, scaled.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.costs.sources.silicon.database import (
    TableFile,
    TablePath,
    distinct_rows,
    read_columns,
    table_file,
)
from llmsim.model import short_dtype

if TYPE_CHECKING:
    from llmsim.model import Attention

    pass

Floats = NDArray[np.float64]
Columns = dict[str, NDArray[np.generic]]

COLUMNS = [
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "batch_size",
    "isl",
    "step",
    "window_size",
    "attn_dtype",
    "kv_cache_dtype",
    "latency",
    "kernel_source",
]
KV_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "int8": "fp8",
    "fp32": "bfloat16",
}


class HeadShape(Struct, frozen=True):
    """Query heads, KV heads and head size on one rank."""

    heads: int
    kv_heads: int
    head_dim: int


class AttentionRows(Struct, frozen=True, eq=False):
    """Measured rows of one head shape; `scale_compute` and `scale_kv` turn them into the shape that
    was asked for.
    """

    label: str
    exact: bool
    scale_compute: float
    scale_kv: float
    columns: Columns

    def numbers(self, name: str) -> Floats:
        """One column as floats; latency in milliseconds, as stored."""
        return np.asarray(self.columns[name].astype(np.float64))


def find_rows(tables: list[TablePath], op: Attention, kv_dtype: str) -> AttentionRows:
    """Rows of the operator's head shape and KV dtype, else of the nearest shape of the first table
    that has any.

    Nearest: same head size first, then the same query heads per KV head, then fewest doublings
    between the KV heads. InputError when no table has rows of that KV dtype (or, for an 8-bit
    cache, of any).
    """
    wanted = HeadShape(op.heads, op.kv_heads, op.head_dim)
    for dtype in dict.fromkeys((KV_DTYPES[short_dtype(kv_dtype)], "bfloat16")):
        for table in tables:
            found = _rows_like(table_file(table.path), dtype, wanted)
            if found is None:
                continue
            shape, kernel, columns = found
            label = f"{table.label} {dtype}{kernel}"
            if shape != wanted:
                label += (
                    f", scaled from heads={shape.heads} kv_heads={shape.kv_heads} "
                    f"head_dim={shape.head_dim}"
                )
            if dtype != KV_DTYPES[short_dtype(kv_dtype)]:
                label += f", measured with a {dtype} cache"
            return AttentionRows(
                label,
                shape == wanted and dtype == KV_DTYPES[short_dtype(kv_dtype)],
                wanted.heads * wanted.head_dim / (shape.heads * shape.head_dim),
                wanted.kv_heads * wanted.head_dim / (shape.kv_heads * shape.head_dim),
                columns,
            )
    raise InputError(
        f"the silicon database has no attention rows for head_dim {op.head_dim} and KV dtype "
        f"{kv_dtype}"
    )


@lru_cache(maxsize=64)
def _rows_like(
    file: TableFile, dtype: str, wanted: HeadShape
) -> tuple[HeadShape, str, Columns] | None:
    """The shape nearest to the wanted one, a label of its kernels, and its rows of a KV dtype; None
    where the table has no row of that.
    """
    rows = _usable(read_columns(file.path, COLUMNS), dtype)
    if rows is None:
        return None
    shape = _nearest(rows, wanted)
    keep = _is_shape(rows, shape)
    return shape, _kernel(rows, keep), {name: column[keep] for name, column in rows.items()}


def _usable(rows: Columns, kv_dtype: str) -> Columns | None:
    """Rows of full (not windowed) 16-bit attention over a cache of `kv_dtype`."""
    keep = (rows["attn_dtype"] == "bfloat16") & (rows["kv_cache_dtype"] == kv_dtype)
    if "window_size" in rows:
        keep = keep & (rows["window_size"] == 0)
    if not bool(keep.any()):
        return None
    return {name: column[keep] for name, column in rows.items()}


def _is_shape(rows: Columns, shape: HeadShape) -> NDArray[np.bool_]:
    same = (rows["num_heads"] == shape.heads) & (rows["num_key_value_heads"] == shape.kv_heads)
    return np.asarray(same & (rows["head_dim"] == shape.head_dim))


def _nearest(rows: Columns, wanted: HeadShape) -> HeadShape:
    table = np.stack(
        [rows[name].astype(np.int64) for name in ("num_heads", "num_key_value_heads", "head_dim")],
        axis=1,
    )
    shapes = [HeadShape(int(h), int(kv), int(hd)) for h, kv, hd in distinct_rows(table)[0]]

    def distance(shape: HeadShape) -> tuple[float, float, float, int]:
        group = abs(np.log2(shape.heads / shape.kv_heads) - np.log2(wanted.heads / wanted.kv_heads))
        size = abs(np.log2(shape.head_dim / wanted.head_dim))
        return (
            float(size),
            float(group),
            float(abs(np.log2(shape.kv_heads / wanted.kv_heads))),
            shape.heads,
        )

    return min(shapes, key=distance)


def _kernel(rows: Columns, keep: NDArray[np.bool_]) -> str:
    names = sorted({str(name) for name in rows["kernel_source"][keep]})
    return f" ({', '.join(names)})"
