"""The indexer of sparse attention: its keys are stored, its heads score every token before, and the
best are chosen.

Rows of indexer.csv are the time between its projections: the operator `indexer` of one layer over
mixed batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from llmsim.profiler.attention.paged import PAGE, Batch, Kernel, Paged, Part, alike
from llmsim.profiler.kernels.work import Work, needs_cuda

INDEXER_PAGE = 64
SCORED_ELEMENTS = 1 << 27
"""Of scores of single heads that the plain kernel holds at once; vLLM's limit is on the scores of
tokens, 512 MB.
"""
LARGEST_SCORES = 512 << 20
"""Bytes of scores of one call of vLLM's kernel for prompts (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB)."""
GRAPH_TOPKS, COOPERATIVE_ROWS, WORKSPACE_BYTES = (512, 1024, 2048), 32, 1 << 20
"""What vLLM's kernels that choose for decodes can do (`sparse_attn_indexer`)."""
SCALED = 128
"""Elements of a key that share a scale."""


@dataclass(frozen=True)
class IndexerShape:
    """Its heads, whole on every rank, and how many tokens it chooses."""

    heads: int
    dim: int
    topk: int

    def elements(self, batch: Batch) -> int:
        """That one call reads."""
        return sum((new + cached) * self.dim + new * self.heads * self.dim for new, cached in batch)


class IndexerBuffers(Paged):
    """A batch with decodes first: queries and weights of every head, new keys, a paged cache of
    keys.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        dtype: Any,
        shape: IndexerShape,
        batch: Batch,
        page: int = PAGE,
    ) -> None:
        super().__init__(torch, device, sorted(batch, key=lambda sizes: sizes[0]), page)
        self.shape, self.device, self._torch = shape, device, torch
        make = {"device": device, "dtype": dtype}
        self.query = torch.randn(self.tokens, shape.heads, shape.dim, **make)
        self.weights = torch.randn(self.tokens, shape.heads, device=device) / math.sqrt(
            shape.heads * shape.dim
        )
        self.new = torch.randn(self.tokens, shape.dim, **make)
        self.cache = torch.randn(self.num_pages, page, shape.dim, **make)
        self.flat = self.cache.view(-1, shape.dim)
        self.write()

    def write(self) -> None:
        """Stores the new keys."""
        self.flat.index_copy_(0, self.write_index, self.new)

    @cached_property
    def narrow_query(self) -> Any:
        """In fp8, as the layer's norm and rotation leave them."""
        return self.query.to(self._torch.float8_e4m3fn)


def scores(torch: Any, query: Any, keys: Any, weights: Any) -> Any:
    """Sums over heads of weight * relu(query . key), (..., new, tokens), of (..., new, heads, dim)
    queries.
    """
    new, heads = query.shape[-3:-1]
    products = (query.flatten(-3, -2) @ keys.transpose(-1, -2)).unflatten(-2, (new, heads)).relu_()
    return torch.einsum("...nht,...nh->...nt", products, weights.to(products.dtype))


def error(torch: Any, buffers: IndexerBuffers, found: Any) -> float:
    """By how much the chosen tokens' scores fall short of the best ones', where a random choice
    falls short by 1.
    """
    lost = possible = 0.0
    for index, (new, cached) in enumerate(buffers.batch):
        rows = slice(buffers.starts[index], buffers.starts[index + 1])
        keys = buffers.flat[buffers.slots[index]].float()
        whole = scores(torch, buffers.query[rows].float(), keys, buffers.weights[rows])
        for row, chosen in zip(range(new), found[rows], strict=True):
            seen = whole[row, : cached + row + 1]
            count = min(buffers.shape.topk, len(seen))
            picks = chosen[chosen >= 0].long()
            if len(picks.unique()) != count or int(picks.max()) >= len(seen) or len(picks) != count:
                return math.inf
            best = float(seen.topk(count).values.sum())
            lost += best - float(seen[picks].sum())
            possible += best - float(seen.mean()) * count
    return lost / possible if possible > 1e-6 else lost


def checked(shape: IndexerShape) -> Batch:
    """Sequences with more tokens than are chosen, and one with fewer."""
    return ((5, 2 * shape.topk + 9), (1, 2 * shape.topk + 33), (1, 7))


def _plain_call(torch: Any, buffers: IndexerBuffers) -> Work:
    """Products of all heads, as many queries at once as memory allows, sequences of equal sizes
    together.
    """
    topk, device = buffers.shape.topk, buffers.device
    plans = []
    for (new, cached), members in alike(buffers.batch).items():
        rows = torch.cat(
            [torch.arange(buffers.starts[i], buffers.starts[i + 1], device=device) for i in members]
        )
        slots = torch.cat([buffers.slots[i] for i in members])
        hidden = torch.ones(new, new + cached, dtype=torch.bool, device=device).triu(cached + 1)
        step = max(1, SCORED_ELEMENTS // (len(members) * buffers.shape.heads * (new + cached)))
        plans.append((rows.view(len(members), new), slots, hidden, step))
    chosen = torch.empty(buffers.tokens, topk, dtype=torch.int32, device=device)

    def run() -> Any:
        buffers.write()
        chosen.fill_(-1)
        for rows, slots, hidden, step in plans:
            keys = buffers.flat[slots].unflatten(0, (len(rows), -1))
            for first in range(0, rows.shape[1], step):
                part = rows[:, first : first + step]
                found = scores(torch, buffers.query[part], keys, buffers.weights[part])
                found.masked_fill_(hidden[first : first + step], float("-inf"))
                best = found.topk(min(topk, found.shape[-1]), dim=-1)
                picks = best.indices.masked_fill(best.values == float("-inf"), -1).to(torch.int32)
                chosen[part.flatten(), : picks.shape[-1]] = picks.flatten(0, 1)
        return chosen

    return run


def _deepgemm_missing(torch: Any, device: Any, dtype: Any) -> str:
    problem = needs_cuda(torch, device, dtype, "vllm")
    if problem:
        return problem
    from vllm.utils.import_utils import has_deep_gemm

    return "" if has_deep_gemm() else "DeepGEMM is not installed"


def _deepgemm_call(torch: Any, buffers: IndexerBuffers) -> Work:
    """As vLLM does (`sparse_attn_indexer`): keys in fp8 with scales, prompts on gathered keys,
    decodes on pages.
    """
    from vllm import _custom_ops as ops

    shape, device = buffers.shape, buffers.device
    bytes_each = shape.dim + -(-shape.dim // SCALED) * 4
    cache = torch.zeros(
        buffers.num_pages, buffers.page, bytes_each, dtype=torch.uint8, device=device
    )
    ops.indexer_k_quant_and_cache(
        buffers.flat, cache, torch.arange(len(buffers.flat), device=device), SCALED, "ue8m0"
    )
    chosen = torch.empty(buffers.tokens, shape.topk, dtype=torch.int32, device=device)
    count, last = sum(new == 1 for new, _ in buffers.batch), len(buffers.batch)
    works = (
        [_narrow_prompts(torch, buffers, cache, chosen, Part(buffers, slice(count, last)))]
        if count < last
        else []
    )
    works += (
        [_narrow_decodes(torch, buffers, cache, chosen, Part(buffers, slice(0, count)))]
        if count
        else []
    )

    def run() -> Any:
        ops.indexer_k_quant_and_cache(buffers.new, cache, buffers.write_index, SCALED, "ue8m0")
        chosen.fill_(-1)
        for work in works:
            work()
        return chosen

    return run


def _narrow_prompts(
    torch: Any, buffers: IndexerBuffers, cache: Any, chosen: Any, part: Part
) -> Callable[[], None]:
    from vllm import _custom_ops as ops
    from vllm.utils.deep_gemm import fp8_fp4_mqa_logits

    make = {"dtype": torch.int32, "device": buffers.device}
    total = sum(part.lengths)
    cu = torch.cat((torch.zeros(1, **make), part.used_k.cumsum(0).to(torch.int32)))
    new = torch.tensor([new for new, _ in part.batch], device=buffers.device)
    begin = cu[:-1].repeat_interleave(new)
    ends = begin + torch.cat(
        [torch.arange(cached + 1, cached + new + 1, **make) for new, cached in part.batch]
    )
    keys = torch.empty(total, buffers.shape.dim, dtype=torch.float8_e4m3fn, device=buffers.device)
    scales = torch.empty(total, 4, dtype=torch.uint8, device=buffers.device)
    pair, step = (
        (keys, scales.view(torch.float32).squeeze(-1)),
        max(1, LARGEST_SCORES // 4 // total),
    )
    query, weights, picks = (
        whole[part.tokens] for whole in (buffers.narrow_query, buffers.weights, chosen)
    )

    def run() -> None:
        ops.cp_gather_indexer_k_quant_cache(cache, keys, scales, part.table, cu)
        for first in range(0, len(query), step):
            rows = slice(first, first + step)
            found = fp8_fp4_mqa_logits(
                (query[rows], None),
                pair,
                weights[rows],
                begin[rows],
                ends[rows],
                clean_logits=False,
            )
            strides = (found.stride(0), found.stride(1))
            ops.top_k_per_row_prefill(
                found,
                begin[rows],
                ends[rows],
                picks[rows],
                len(found),
                *strides,
                buffers.shape.topk,
            )

    return run


def _narrow_decodes(
    torch: Any, buffers: IndexerBuffers, cache: Any, chosen: Any, part: Part
) -> Callable[[], None]:
    from vllm.utils.deep_gemm import fp8_fp4_paged_mqa_logits, get_paged_mqa_logits_metadata

    lengths = part.used_k.unsqueeze(-1)
    plan = get_paged_mqa_logits_metadata(lengths, buffers.page, _processors(torch, buffers.device))
    longest = -(-part.longest // buffers.page) * buffers.page
    query, weights = buffers.narrow_query[part.tokens].unsqueeze(1), buffers.weights[part.tokens]
    choose = _choose(torch, buffers.device, part, lengths, chosen[part.tokens], buffers.shape.topk)
    pages = cache.unsqueeze(-2)

    def run() -> None:
        choose(
            fp8_fp4_paged_mqa_logits(
                (query, None),
                pages,
                weights,
                lengths,
                part.table,
                plan,
                max_model_len=longest,
                clean_logits=False,
            )
        )

    return run


def _processors(torch: Any, device: Any) -> int:
    return (
        int(torch.cuda.get_device_properties(device).multi_processor_count)
        if device.type == "cuda"
        else 1
    )


def _choose(
    torch: Any, device: Any, part: Part, lengths: Any, picks: Any, topk: int
) -> Callable[[Any], None]:
    """The kernel that vLLM takes for so many decodes."""
    if topk not in GRAPH_TOPKS:
        from vllm import _custom_ops as ops

        return lambda found: ops.top_k_per_row_decode(
            found, 1, lengths, picks, len(found), found.stride(0), found.stride(1), topk
        )
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    name = "cooperative_topk" if hopper and len(part) <= COOPERATIVE_ROWS else "persistent_topk"
    return lambda found: getattr(torch.ops._C, name)(
        found, lengths, picks, space, topk, part.longest
    )


INDEXER_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "deepgemm": Kernel(_deepgemm_missing, _deepgemm_call, page=lambda: INDEXER_PAGE),
        "plain": Kernel(lambda torch, device, dtype: "", _plain_call),
    }
)
"""vLLM's, and PyTorch's operators on keys of the model's type."""
