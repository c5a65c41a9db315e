"""Memory of LoRA adapters: vLLM keeps slots for `max_loras` of them on each device from the start,
whether they are used or not.

Each linear layer has, for every slot, a matrix A of `rank` x inputs and a matrix B of outputs x
`rank` in the model's dtype, the larger side cut as the layer is (vLLM 0.33,
`lora/layers/base_linear.py`). With `fully_sharded_loras` the other matrix is cut, too: A of column-
parallel layers by its rank, and B of row-parallel ones by its outputs. Layers that several
projections share have an A for each (`column_parallel_linear.py`); experts have theirs
(`fused_moe.py`). Embeddings and the head keep the whole vocabulary on each device
(`vocab_parallel_embedding.py`, `logits_processor.py`).
"""

from dataclasses import dataclass

from llmsim.config.errors import InputError
from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.operator import Embedding, Gemm, Moe, Operator
from llmsim.model.operators.decoder import operators
from llmsim.model.types import Dtypes, ModelConfig

DEFAULT_RANK = 16

_PROJECTIONS = {"qkv_proj": 3, "qkv_a_proj": 2}
"""Layer -> projections that share it; those of an MLP share one where it is gated."""
_ROW_PARALLEL = ("o_proj", "down_proj", "out_proj")
_COLUMN_PARALLEL = ("qkv_proj", "up_proj", "b_proj", "in_proj")
"""Ends of names; other layers are whole on each rank."""
_GATED = ("gate_up_proj", "shared_expert_up_proj")


@dataclass(frozen=True)
class LoraSlots:
    """Slots of adapters on each device, each for an adapter of up to `rank`."""

    slots: int
    rank: int
    fully_sharded: bool = False

    @property
    def label(self) -> str:
        """What the ledger calls them."""
        return f"slots of {self.slots} LoRA adapters of rank {self.rank}"

    def device_bytes(self, model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
        """Bytes of all slots on one rank."""
        ranks = layout.tp if self.fully_sharded else 1
        if ranks > 1 and self.rank % ranks:
            raise InputError(
                f"fully_sharded_loras cuts adapters of rank {self.rank} over {ranks} "
                "tensor-parallel ranks; give a max_lora_rank that they divide"
            )
        if ranks > 1 and any(model.moe_layers) and layout.ep > 1:
            raise InputError(
                "fully_sharded_loras does not go with expert parallelism in vLLM; remove one of "
                "them"
            )
        return self.slots * adapter_bytes(model, layout, dtypes, self.rank, ranks)


def adapter_bytes(
    model: ModelConfig, layout: Layout, dtypes: Dtypes, rank: int, shared_by: int = 1
) -> int:
    """Bytes of one adapter's slot on one rank; `shared_by` ranks cut what the layers do not.

    Projections of linear attention that share a layer are counted as one.
    """
    elements = sum(
        _elements(op, model, shared_by) * op.repeat for op in operators(model, layout, dtypes)
    )
    return rank * elements * int(dtype_bytes(dtypes.activation))


def _elements(op: Operator, model: ModelConfig, shared_by: int) -> int:
    """Of an operator's A and B for rank 1."""
    if isinstance(op, Moe):
        ways = 2 if model.mlp_gated else 1
        width = model.expert_hidden // shared_by + op.moe_inter
        return op.experts_local * (ways + 1) * width
    if isinstance(op, Embedding):
        return model.vocab_size + model.hidden_size
    if not isinstance(op, Gemm):
        return 0
    if op.part == "head":
        return model.hidden_size + model.vocab_size
    projections = _PROJECTIONS.get(op.name, 1)
    if op.name in _GATED and model.mlp_gated:
        projections = 2
    if op.name.endswith(_ROW_PARALLEL):
        return op.gemm_k + op.gemm_n // shared_by
    inputs = projections * op.gemm_k
    return (inputs // shared_by if op.name.endswith(_COLUMN_PARALLEL) else inputs) + op.gemm_n
