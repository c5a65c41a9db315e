"""Latent attention of one rank: what its kernels work on, and plain math to compare them with.

A row of attention.csv is the time between the projections: new latents are stored; prompts expand
the latents of their context and attend with whole keys and values, decodes attend on the latents
themselves. What the new tokens need of W_UK and W_UV, keys and values of prompts and the two
products around a decode's kernel, is the operator kv_b_proj.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmsim.profiler.attention.paged import PAGE, Batch, Paged


@dataclass(frozen=True)
class LatentShape:
    """One rank's heads and the widths that they share."""

    heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def width(self) -> int:
        """Elements of a cached token."""
        return self.kv_rank + self.rope_dim

    @property
    def query_dim(self) -> int:
        """Elements of a query of one head."""
        return self.nope_dim + self.rope_dim

    def elements(self, batch: Batch) -> int:
        """That one call reads: latents, queries, and the keys and values of new tokens."""
        own = self.heads * (self.query_dim + self.nope_dim + self.v_dim)
        return sum((new + cached) * self.width + new * own for new, cached in batch)


class LatentBuffers(Paged):
    """A batch with decodes first, as vLLM orders it: its queries, its new latents, a paged cache of
    latents, and the weights that expand them.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        dtype: Any,
        shape: LatentShape,
        batch: Batch,
        page: int = PAGE,
    ) -> None:
        super().__init__(torch, device, sorted(batch, key=lambda sizes: sizes[0]), page)
        self.shape, self.device, self._torch = shape, device, torch
        make = {"device": device, "dtype": dtype}
        self.weight = torch.randn(
            shape.heads * (shape.nope_dim + shape.v_dim), shape.kv_rank, **make
        )
        self.weight /= math.sqrt(shape.kv_rank)
        self.query = torch.randn(self.tokens, shape.heads, shape.query_dim, **make)
        self.new = torch.randn(self.tokens, shape.width, **make)
        self.cache = torch.randn(self.num_pages, page, shape.width, **make)
        self.flat = self.cache.view(-1, shape.width)
        self.product: Callable[[Any], Any] | None = None
        """Of latents and the weights that expand them, where those are quantised."""
        self.write()

    def write(self) -> None:
        """Stores the new latents, as every layer does."""
        self.flat.index_copy_(0, self.write_index, self.new)

    @property
    def scale(self) -> float:
        """Of the scores."""
        return 1.0 / math.sqrt(self.shape.query_dim)

    @property
    def by_head(self) -> tuple[Any, Any]:
        """W_UK and W_UV, (heads, nope_dim or v_dim, kv_rank)."""
        whole = self.weight.view(self.shape.heads, -1, self.shape.kv_rank)
        return whole[:, : self.shape.nope_dim], whole[:, self.shape.nope_dim :]

    @cached_property
    def expanded(self) -> Any:
        """What kv_b_proj makes of the new latents: (tokens, heads, nope_dim + v_dim)."""
        return self.expand(self.new[:, : self.shape.kv_rank])

    def expand(self, latents: Any) -> Any:
        """Keys without their rotated part, and values."""
        linear = self._torch.nn.functional.linear
        made = (
            linear(latents, self.weight)
            if self.product is None
            else self.product(latents.contiguous())
        )
        return made.view(-1, self.shape.heads, self.shape.nope_dim + self.shape.v_dim)

    def keys_values(self, expanded: Any, rotated: Any) -> tuple[Any, Any]:
        """Whole keys, with the rotated part that all heads share, and values, as a view."""
        shape = self.shape
        key = self._torch.empty(
            *expanded.shape[:2], shape.query_dim, dtype=expanded.dtype, device=expanded.device
        )
        key[..., : shape.nope_dim] = expanded[..., : shape.nope_dim]
        key[..., shape.nope_dim :] = rotated.unsqueeze(1)
        return key, expanded[..., shape.nope_dim :]

    @cached_property
    def absorbed(self) -> Any:
        """Queries times W_UK, (tokens, heads, kv_rank), laid out as the batched product leaves
        them: by heads.
        """
        plain = self.query[..., : self.shape.nope_dim].transpose(0, 1)
        return self._torch.bmm(plain, self.by_head[0]).transpose(0, 1)

    @property
    def rotated_query(self) -> Any:
        """(tokens, heads, rope_dim), as a view."""
        return self.query[..., self.shape.nope_dim :]

    def decodes(self, most_new: int, *, uniform: bool) -> int:
        """How many of the first sequences an engine sends to the kernel for decodes: those of at
        most `most_new` new tokens, or (`uniform`) of as many as the first of them has.
        """
        first = self.batch[0][0]
        if first > most_new:
            return 0
        return sum(new == first if uniform else new <= most_new for new, _ in self.batch)


def reference(torch: Any, buffers: LatentBuffers) -> Any:
    """Plain float32 attention with all keys and values expanded, sequence by sequence; (tokens,
    heads, v_dim).
    """
    shape, rows = buffers.shape, []
    to_keys, to_values = (part.float() for part in buffers.by_head)
    for index, (new, cached) in enumerate(buffers.batch):
        latents = buffers.flat[buffers.slots[index]].float()
        plain, rotated = latents[:, : shape.kv_rank], latents[:, shape.kv_rank :]
        keys = torch.einsum("tr,hdr->htd", plain, to_keys)
        keys = torch.cat((keys, rotated.expand(shape.heads, -1, -1)), dim=-1)
        values = torch.einsum("tr,hdr->htd", plain, to_values)
        q = buffers.query[buffers.starts[index] : buffers.starts[index + 1]].float().transpose(0, 1)
        allowed = torch.ones(new, new + cached, dtype=torch.bool, device=q.device).tril(cached)
        weights = (
            (q @ keys.transpose(1, 2) * buffers.scale)
            .masked_fill(~allowed, float("-inf"))
            .softmax(-1)
        )
        rows.append((weights @ values).transpose(0, 1))
    return torch.cat(rows)


def error(torch: Any, buffers: LatentBuffers, found: tuple[Any, Any]) -> float:
    """Of (the decodes' results on latents, the prompts' results), either of which may be None."""
    wanted = reference(torch, buffers)
    latents, whole = found
    parts = (
        []
        if latents is None
        else [torch.einsum("thr,hdr->thd", latents.float(), buffers.by_head[1].float())]
    )
    parts += [] if whole is None else [whole.float()]
    return float((torch.cat(parts) - wanted).norm() / wanted.norm())
