"""Attention to chosen blocks from the silicon database: vLLM's and SGLang's whole modules of
MiniMax M3.

A row is the time from hidden state to hidden state of one layer: projections, indexer, choice, and
the attention to the blocks. The indexer's operator takes all of it. Layers that see everything have
operators of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmsim.costs.sources.silicon.attention.mla import GEMM_TYPES
from llmsim.costs.sources.silicon.attention.sparse_mla import WholeModules, module_rows
from llmsim.model import Attention, Indexer, short_dtype

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.costs.sources.silicon.database import Database

MODELS = {"MiniMaxAI/MiniMax-M3": (6144, 128, Indexer(heads=4, dim=128, topk=2048, block=128))}
"""Hidden size, head size and indexer of the models that were measured, by their names there."""
PER_KV_HEAD = 16
"""Query heads of the measured models."""
OWN = "_block_sparse"
"""How names of these layers' operators end where other layers have some, too."""
INSIDE = ("qkv_proj", "qk_norm", "rotary_emb", "o_proj")


def find_blocks(database: Database, request: CostRequest) -> WholeModules | None:
    """Rows of the model's own module; None where it was not measured."""
    model = request.model
    gemm = GEMM_TYPES.get(short_dtype(request.dtypes.of(model, "attention")))
    group = next((one for one in model.softmax_groups if one.has("block_sparse")), None)
    if group is None or gemm is None:
        return None
    name = _measured_model((model.hidden_size, group.shape.key_dim, model.indexer))
    if name is None or group.shape.heads != PER_KV_HEAD * group.shape.kv_heads:
        return None
    op = next(op for op in request.operators if isinstance(op, Attention) and op.sparse)
    rows = module_rows(database, request, op, ("block_context", "block_generation"), gemm, name)
    if rows is None:
        return None
    names = {op.name for op in request.operators}
    own = OWN if f"o_proj{OWN}" in names else ""
    inside = tuple(operator + own for operator in INSIDE)
    return WholeModules({"indexer": rows}, (*inside, "indexer_norm"))


def _measured_model(shape: tuple[int, int, Indexer | None]) -> str | None:
    """The model of that hidden size, head size and indexer that was measured, if one was."""
    return next((name for name, measured in MODELS.items() if measured == shape), None)
