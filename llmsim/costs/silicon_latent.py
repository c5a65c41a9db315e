"""Latent attention from the silicon database: whole modules of DeepSeek-V3's shape, projections included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmsim.costs.database import TablePath, read_columns
from llmsim.costs.silicon_attention import KV_DTYPES, AttentionRows
from llmsim.model import LatentAttention, short_dtype

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.model import Operator

COLUMNS = ["num_heads", "batch_size", "isl", "step", "kv_cache_dtype", "gemm_type", "latency", "kernel_source"]
MEASURED_SHAPE = (7168, LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128))
"""Hidden size and attention of DeepSeek-V3 (and Kimi K2), which the tables were measured with."""
INSIDE = ("qkv_a_proj", "kv_a_proj", "q_proj", "q_b_proj", "kv_b_proj", "latent_norm", "o_proj")
"""Operators that the rows contain: the profiler times the whole block, from hidden state to hidden state. So is the
rotation, which has the name of other models' and is matched apart."""
GEMM_TYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8_block"}


def find_modules(tables: list[TablePath], op: Operator, request: CostRequest) -> AttentionRows | None:
    """Rows of the module on one rank; None where the model has another shape, or no table its weights' type.

    A number of heads that was not measured takes the next larger one's rows, scaled by the heads.
    """
    model = request.model
    gemm = GEMM_TYPES.get(short_dtype(request.dtypes.of(model, "attention")))
    if request.layout.decode_context > 1:  # its attention has other heads than its projections
        return None
    if model.latent is None or (model.hidden_size, model.latent) != MEASURED_SHAPE or gemm is None:
        return None
    wanted_kv = KV_DTYPES[short_dtype(request.dtypes.kv)]
    for dtype in dict.fromkeys((wanted_kv, "bfloat16")):
        for table in tables:
            rows = read_columns(table.path, COLUMNS)
            keep = (rows["kv_cache_dtype"] == dtype) & (rows["gemm_type"] == gemm)
            if not bool(keep.any()):
                continue
            known = np.unique(rows["num_heads"][keep].astype(np.int64))
            heads = int(known[min(int(np.searchsorted(known, op.heads)), len(known) - 1)])
            keep &= rows["num_heads"] == heads
            label = f"{table.label} {gemm}, {dtype} cache"
            if heads != op.heads:
                label += f", scaled from heads={heads}"
            scale = op.heads / heads
            columns = {name: column[keep] for name, column in rows.items()}
            return AttentionRows(label, heads == op.heads and dtype == wanted_kv, scale, 1.0, columns)
    return None
