"""Attention to a compressed context from the silicon database: vLLM's and SGLang's whole modules of
DeepSeek-V4.

A row is the time from hidden state to hidden state of one layer, with projections, pooling, and of
sparse layers the indexer. The indexer's operator takes that of a sparse layer, the attention of the
other layers theirs. Layers that see the last tokens alone were not measured: they take the rows of
heavily compressed layers, which do more, at as few tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmsim.costs.sources.silicon.attention.mla import GEMM_TYPES
from llmsim.costs.sources.silicon.attention.sparse_mla import WholeModules, module_rows
from llmsim.model import Attention, CompressedAttention, Indexer, short_dtype

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.costs.sources.silicon.database import Database

MODELS = {
    "sgl-project/DeepSeek-V4-Flash-FP8": (
        4096,
        CompressedAttention(q_rank=1024, dim=512, rope_dim=64, out_groups=8, out_rank=1024),
        Indexer(heads=64, dim=128, topk=512),
    ),
    "sgl-project/DeepSeek-V4-Pro-FP8": (
        7168,
        CompressedAttention(q_rank=1536, dim=512, rope_dim=64, out_groups=16, out_rank=1024),
        Indexer(heads=64, dim=128, topk=1024),
    ),
}
"""Hidden size and attention of the models that were measured, by their names in the tables."""
TABLES = {
    "indexer": ("compressed_sparse_context", "compressed_sparse_generation"),
    "attention_compressed": ("compressed_context", "compressed_generation"),
    "attention_sliding": ("compressed_context", "compressed_generation"),
}
"""Tables of prompts and decodes, by the operator that takes their time."""
INSIDE = (
    "qkv_a_proj", "latent_norm", "q_b_proj", "rotary_emb", "o_a_proj", "o_proj", "pool_compressed",
    "pool_compressed_rows", "pool_compressed_sparse", "pool_compressed_sparse_rows",
    "indexer_q_proj", "indexer_weights_proj", "indexer_k_proj", "indexer_k_proj_rows",
    "indexer_norm",
)  # fmt: skip
"""Operators that the rows contain, besides attention and indexer."""


def find_compressed(database: Database, request: CostRequest) -> WholeModules | None:
    """Rows of the model's own modules; None where one of them was not measured."""
    model = request.model
    gemm = GEMM_TYPES.get(short_dtype(request.dtypes.of(model, "attention")))
    shape = (model.hidden_size, model.compressed, model.indexer)
    name = next((name for name, measured in MODELS.items() if measured == shape), None)
    if name is None or gemm is None:
        return None
    attention = [op for op in request.operators if isinstance(op, Attention)]
    sparse = next((op for op in attention if op.sparse), None)
    rows = {}
    for op in attention:
        if op.name not in TABLES:
            continue
        of_heads = sparse if op.name == "indexer" else op
        if of_heads is None:
            return None
        found = module_rows(database, request, of_heads, TABLES[op.name], gemm, name)
        if found is None:
            return None
        if op.name == "attention_sliding":
            found = (replace(found[0], exact=False), replace(found[1], exact=False))
        rows[op.name] = found
    return WholeModules(rows, INSIDE)
