"""The matrices of LoRA adapters beside the operators of a rank, as vLLM 0.33 cuts them: see
`llmsim.model.memory.lora_slots`.
"""

from typing import Literal

from msgspec import Struct

from llmsim.model.operator import Embedding, Gemm, Moe, Operator
from llmsim.model.types import ModelConfig

_PROJECTIONS = {"qkv_proj": 3, "qkv_a_proj": 2}
"""Layer -> projections that share it; those of an MLP share one where it is gated."""
_ROW_PARALLEL = ("o_proj", "down_proj", "out_proj")
_COLUMN_PARALLEL = ("qkv_proj", "up_proj", "b_proj", "in_proj")
"""Ends of names; other layers are whole on each rank."""
_GATED = ("gate_up_proj", "shared_expert_up_proj")


class Pairs(Struct, frozen=True):
    """Matrices A and B that an adapter of rank 1 has beside one operator on one rank; of experts,
    beside one of them.
    """

    projections: int
    """Pairs; those of a fused layer share its input."""
    a: int
    """Elements of all A."""
    b: int
    """Elements of all B."""
    cut: Literal["", "columns", "rows"] = ""
    """How tensor parallelism cuts the layer."""


def pairs_of(op: Operator, model: ModelConfig, shared_by: int) -> Pairs | None:
    """What an adapter has beside an operator; None: nothing."""
    if isinstance(op, Moe):
        ways = 2 if model.mlp_gated else 1
        width = model.expert_hidden // shared_by
        return Pairs(ways + 1, ways * width + op.moe_inter, ways * op.moe_inter + width)
    if isinstance(op, Embedding):
        return Pairs(1, model.vocab_size, model.hidden_size)
    if not isinstance(op, Gemm):
        return None
    if op.part == "head":
        return Pairs(1, model.hidden_size, model.vocab_size)
    projections = _PROJECTIONS.get(op.name, 1)
    if op.name in _GATED and model.mlp_gated:
        projections = 2
    if op.name.endswith(_ROW_PARALLEL):
        return Pairs(1, op.gemm_k, op.gemm_n // shared_by, "rows")
    inputs = projections * op.gemm_k
    if op.name.endswith(_COLUMN_PARALLEL):
        return Pairs(projections, inputs // shared_by, op.gemm_n, "columns")
    return Pairs(projections, inputs, op.gemm_n)
