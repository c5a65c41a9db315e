"""Sparse latent attention: every query attends, on the compressed cache, to the tokens that an
indexer chose for it.

Rows are of batches in which everything that a query may see was chosen, as rows of layers with a
window are of layers that see everything: the bundle reader looks up in them as many tokens as a
batch's queries see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from llmsim.profiler.attention.mla import LatentBuffers, LatentShape
from llmsim.profiler.attention.mla_kernels import FLASHMLA_PAGE, joined_queries
from llmsim.profiler.attention.paged import Kernel, Part
from llmsim.profiler.kernels.work import Work, needs_cuda

CHOICES_PER_BLOCK = 128
"""The kernels want a multiple of so many chosen tokens."""
GATHERED_ELEMENTS = 1 << 26
"""That the plain kernel gathers at once."""
LARGE_HEADS = 10
"""Compute capability from which on FlashMLA's kernel wants multiples of 128 heads instead of 64."""


@dataclass(frozen=True)
class SparseShape(LatentShape):
    """With the number of tokens that a query sees at most."""

    topk: int = 0

    def elements(self, batch: Any) -> int:
        """That one call reads: latents, queries and results."""
        own = self.heads * (self.width + self.kv_rank)
        return sum((new + cached) * self.width + new * own for new, cached in batch)


class SparseBuffers(LatentBuffers):
    """With what the indexer chose: places in the sequence, in no order, and behind them -1."""

    @cached_property
    def chosen(self) -> Any:
        """(tokens, choices), int32."""
        torch, device = self._torch, self.device
        width = max(self.shape.topk, max(self.lengths))  # type: ignore[attr-defined]
        width = -(-width // CHOICES_PER_BLOCK) * CHOICES_PER_BLOCK
        rows = torch.full((self.tokens, width), -1, dtype=torch.int32, device=device)
        for index, (new, cached) in enumerate(self.batch):
            seen = torch.arange(cached + 1, cached + new + 1, device=device).unsqueeze(1)
            hidden = torch.arange(new + cached, device=device) >= seen
            order = (
                torch.rand(new, new + cached, device=device)
                .masked_fill_(hidden, 2.0)
                .argsort(dim=1)
            )
            order = order.masked_fill_(torch.arange(new + cached, device=device) >= seen, -1)
            rows[self.starts[index] : self.starts[index + 1], : new + cached] = order.to(
                torch.int32
            )
        return rows

    @cached_property
    def owners(self) -> Any:
        """Of each new token, its sequence; int32."""
        torch, new = self._torch, [new for new, _ in self.batch]
        owner = torch.repeat_interleave(torch.arange(len(new)), torch.tensor(new))
        return owner.to(device=self.device, dtype=torch.int32)


def _flashmla_missing(torch: Any, device: Any, dtype: Any) -> str:
    problem = needs_cuda(torch, device, dtype, "vllm")
    if problem:
        return problem
    if dtype != torch.bfloat16:
        return "it computes in bf16 only"
    from vllm.v1.attention.ops.flashmla import is_flashmla_sparse_supported

    runs, why = is_flashmla_sparse_supported()
    return "" if runs else str(why)


def _padded_heads(torch: Any, device: Any, heads: int) -> int:
    large = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= LARGE_HEADS
    least = 128 if large else 64
    return -(-heads // least) * least


def _flashmla_call(torch: Any, buffers: SparseBuffers) -> Work:
    """As vLLM does on a 16-bit cache: one call for prompts and decodes, with the choices turned
    into slots.
    """
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.mla.sparse_utils import triton_convert_req_index_to_global_index
    from vllm.v1.attention.ops.flashmla import flash_mla_sparse_fwd

    shape, chosen, owners, absorbed = (
        buffers.shape,
        buffers.chosen,
        buffers.owners,
        buffers.absorbed,
    )
    heads = _padded_heads(torch, buffers.device, shape.heads)
    queries = torch.empty(
        buffers.tokens, shape.heads, shape.width, dtype=absorbed.dtype, device=buffers.device
    )
    cache = buffers.flat.unsqueeze(1)

    def run() -> tuple[Any, None]:
        buffers.write()
        ops.concat_mla_q(absorbed, buffers.rotated_query, queries)
        slots, counts = triton_convert_req_index_to_global_index(
            owners, buffers.table, chosen, BLOCK_SIZE=buffers.page, NUM_TOPK_TOKENS=chosen.shape[1],
            return_valid_counts=True,
        )  # fmt: skip
        q = queries
        if heads != shape.heads:
            q = queries.new_empty(buffers.tokens, heads, shape.width)
            q[:, : shape.heads] = queries
        out = flash_mla_sparse_fwd(q, cache, slots.unsqueeze(1), buffers.scale, topk_length=counts)[
            0
        ]
        return out[:, : shape.heads], None

    return run


def _plain_call(torch: Any, buffers: SparseBuffers) -> Work:
    """PyTorch's attention over the gathered latents, as many queries at once as memory allows."""
    shape, chosen = buffers.shape, buffers.chosen
    first_pages = buffers.table[buffers.owners.long()].long()
    slots = first_pages.gather(1, (chosen.clamp(min=0) // buffers.page).long()) * buffers.page
    slots += chosen.clamp(min=0) % buffers.page
    longest = max(buffers.lengths)
    slots, seen = slots[:, :longest], (chosen >= 0)[:, :longest]
    step = max(1, GATHERED_ELEMENTS // (longest * shape.width))
    whole = Part(buffers, slice(0, len(buffers.batch)))
    queries, sdpa = (
        joined_queries(torch, buffers, whole),
        torch.nn.functional.scaled_dot_product_attention,
    )
    out = torch.empty(
        buffers.tokens, shape.heads, shape.kv_rank, dtype=buffers.query.dtype, device=buffers.device
    )

    def run() -> tuple[Any, None]:
        buffers.write()
        q = queries()
        for first in range(0, buffers.tokens, step):
            rows = slice(first, first + step)
            latents = buffers.flat[slots[rows]].unsqueeze(1)
            mask, values = seen[rows, None, None], latents[..., : shape.kv_rank]
            out[rows] = sdpa(
                q[rows].unsqueeze(1), latents, values, attn_mask=mask, scale=buffers.scale
            ).squeeze(1)
        return out, None

    return run


SPARSE_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "flashmla": Kernel(_flashmla_missing, _flashmla_call, page=lambda: FLASHMLA_PAGE),
        "sdpa": Kernel(lambda torch, device, dtype: "", _plain_call),
    }
)
"""In vLLM's order of preference (Hopper)."""
