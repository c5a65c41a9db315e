"""What LoRA adapters add to the operators of a rank, in the kernels of vLLM 0.33.

Beside each linear layer (`lora/punica_wrapper/punica_gpu.py`) a buffer of float32 is cleared, the
shrink kernel multiplies the tokens of all adapters by their A, and the expand kernel adds the
product with B to the layer's output. With r the rank, p the projections that share the layer, k its
inputs, n its outputs, a the bytes of an activation; per token with an adapter:

    operator        reads                        writes             flops
    (layer)_lora    k a + 4 p r + n a            8 p r + n a        2 r (p k + n)
    (layer)_lora_matrices: r (p k + n) a of each adapter of the step

Experts (`lora/ops/triton_ops/fused_moe_lora_op.py`) have such kernels for each of their two layers
and one that sorts the tokens, on as many rows as the router sends to the rank, and read the
matrices of each pair of adapter and expert that they need. An embedding looks its A up. The head's
kernels work on rows of logits, behind their gather, over the whole vocabulary. A step without
adapters runs none of these kernels: graphs are captured with and without them
(`cudagraph_specialize_lora`).

With `fully_sharded_loras` ranks exchange the buffers between the two kernels, for all tokens of
every step: the exchange is outside of the kernels, which return at once where nobody has an
adapter.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction

from msgspec import Struct

from llmsim.model.dtypes import dtype_bytes
from llmsim.model.operator import (
    Collective,
    Embedding,
    Feature,
    Gemm,
    LoraKernel,
    Moe,
    Operator,
    Sampler,
    collective,
)
from llmsim.model.operators.lora_pairs import Pairs, pairs_of
from llmsim.model.types import Dtypes, ModelConfig

BUFFER_BYTES = 4
"""Of an element between the two kernels of a linear layer."""
LINEAR_KERNELS = 3
"""A fill with zeros, shrink, expand."""
EXPERT_KERNELS = 7
"""The same for both layers, and a kernel that sorts the tokens by adapter and expert."""
EMBEDDING_KERNELS = 2
"""The look-up in A, and expand."""


def with_lora(
    program: Iterable[Operator],
    model: ModelConfig,
    dtypes: Dtypes,
    rank: int,
    shared_by: int = 1,
) -> tuple[Operator, ...]:
    """The program of a rank with what adapters of a `rank` add to each operator; `shared_by` ranks
    cut what the layers do not.
    """
    size = int(dtype_bytes(dtypes.activation))
    make = _LoraFactory(model, rank, shared_by, size)
    out: list[Operator] = []
    behind_logits: list[Operator] = []
    for op in program:
        out += behind_logits if isinstance(op, Sampler) else []
        out.append(op)
        added = make.added_to(op)
        if isinstance(op, Gemm) and op.part == "head":
            behind_logits = added
        else:
            out += added
    return tuple(out)


def touched_experts(op: Moe) -> list[int]:
    """By tokens of one adapter: experts of the rank that they are expected to need, rounded up, as
    far as further tokens need more.
    """
    missed = 1.0 - op.topk / op.experts_total
    touched, share = [0], 1.0
    while touched[-1] < op.experts_local:
        share *= missed
        exact = op.experts_local * (1.0 - share)
        touched.append(min(op.experts_local, int(exact) + (exact > int(exact))))
    return touched


def copies_of_adapter(program: Iterable[Operator], model: ModelConfig) -> int:
    """Matrices that one adapter has in the layers of a program; those of the experts of a layer are
    stacked.
    """
    pairs = ((op.repeat, pairs_of(op, model, 1)) for op in program)
    return sum(2 * repeat * one.projections for repeat, one in pairs if one is not None)


class _LoraFactory(Struct, frozen=True):
    model: ModelConfig
    rank: int
    shared_by: int
    """Ranks that cut what the layers do not."""
    size: int
    """Bytes of an activation and of a matrix's element."""

    def added_to(self, op: Operator) -> list[Operator]:
        """What runs behind an operator."""
        pairs = pairs_of(op, self.model, self.shared_by)
        if pairs is None:
            return []
        match op:
            case Moe():
                return list(self._experts(op, pairs))
            case Embedding():
                return list(self._embedding(op, pairs))
            case _:
                assert isinstance(op, Gemm), "no other operator has adapters"
                return list(self._linear(op, pairs))

    def _linear(self, op: Gemm, pairs: Pairs) -> Iterator[Operator]:
        buffer, outputs = pairs.projections * self.rank * BUFFER_BYTES, pairs.b * self.size
        yield self._kernels(
            op,
            LINEAR_KERNELS,
            op.gemm_k * self.size + buffer + outputs,
            2 * buffer + outputs,
            2 * self.rank * (pairs.a + pairs.b),
        )
        yield self._matrices(op, pairs.a + pairs.b, "adapters")
        if self.shared_by > 1 and pairs.cut:
            yield self._exchange(op, buffer, gathers=pairs.cut == "columns")

    def _embedding(self, op: Embedding, pairs: Pairs) -> Iterator[Operator]:
        row, outputs = self.rank * self.size, pairs.b * self.size
        yield self._kernels(
            op, EMBEDDING_KERNELS, 2 * row + outputs, row + outputs, 2 * self.rank * pairs.b
        )
        yield self._matrices(op, pairs.b, "adapters")

    def _experts(self, op: Moe, pairs: Pairs) -> Iterator[Operator]:
        rows = Fraction(op.topk * op.experts_local, op.experts_total)
        first = pairs.projections - 1
        hidden, inner = self.model.expert_hidden, op.moe_inter
        buffers = pairs.projections * self.rank
        outputs = first * inner + hidden
        yield self._kernels(
            op,
            EXPERT_KERNELS,
            round(rows * (hidden + inner + buffers + outputs) * self.size),
            round(rows * (2 * buffers + outputs) * self.size),
            round(rows * 2 * self.rank * (pairs.a + pairs.b)),
        )
        yield self._matrices(op, pairs.a + pairs.b, "adapter_experts")
        if self.shared_by > 1:
            row = round(rows * self.rank * self.size)
            yield self._exchange(op, first * row, gathers=True)
            yield self._exchange(op, row, gathers=False)

    def _kernels(self, op: Operator, kernels: int, reads: int, writes: int, flops: int) -> Operator:
        return LoraKernel(
            name=f"{op.name}_lora",
            repeat=op.repeat,
            feature="adapter_rows" if op.feature == "sequences" else "adapter_tokens",
            part=op.part,
            in_layers=op.in_layers,
            block=op.block,
            read_bytes_per_token=reads,
            write_bytes_per_token=writes,
            flops_per_token=flops,
            kernels=kernels,
        )

    def _matrices(self, op: Operator, elements: int, feature: Feature) -> Operator:
        return LoraKernel(
            name=f"{op.name}_lora_matrices",
            repeat=op.repeat,
            feature=feature,
            part=op.part,
            in_layers=op.in_layers,
            block=op.block,
            read_bytes_per_token=self.rank * elements * self.size,
            kernels=0,
        )

    def _exchange(self, op: Operator, size: int, *, gathers: bool) -> Collective:
        return collective(
            f"{op.name}_lora_{'gather' if gathers else 'reduce'}",
            "all_gather" if gathers else "all_reduce",
            "tp",
            size,
            part=op.part,
            repeat=op.repeat,
            in_layers=op.in_layers,
        )
