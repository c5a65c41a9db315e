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

from msgspec import Struct

from llmsim.config.errors import InputError
from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.operator import Moe
from llmsim.model.operators.decoder import operators
from llmsim.model.operators.lora_pairs import pairs_of
from llmsim.model.types import Dtypes, ModelConfig

DEFAULT_RANK = 16


class LoraSlots(Struct, frozen=True):
    """Slots of adapters on each device, each for an adapter of up to `rank`."""

    slots: int
    rank: int
    fully_sharded: bool = False

    @property
    def label(self) -> str:
        """What the ledger calls them."""
        return f"slots of {self.slots} LoRA adapters of rank {self.rank}"

    def ranks(self, layout: Layout) -> int:
        """Ranks that cut what the layers do not."""
        return layout.tp if self.fully_sharded else 1

    def device_bytes(self, model: ModelConfig, layout: Layout, dtypes: Dtypes) -> int:
        """Bytes of all slots on one rank."""
        ranks = self.ranks(layout)
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
    elements = 0
    for op in operators(model, layout, dtypes):
        pairs = pairs_of(op, model, shared_by)
        if pairs is not None:
            experts = op.experts_local if isinstance(op, Moe) else 1
            elements += (pairs.a + pairs.b) * experts * op.repeat
    return rank * elements * int(dtype_bytes(dtypes.activation))
