"""Attention of one layer over a mixed batch, in each kernel that the machine has, checked before it
is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmsim.model import Attention as AttentionOperator
from llmsim.model import IndexerScores, ModelConfig, Operator
from llmsim.profiler.attention.indexer import INDEXER_KERNELS, IndexerBuffers, IndexerShape
from llmsim.profiler.attention.indexer import checked as indexer_batch
from llmsim.profiler.attention.indexer import error as indexer_error
from llmsim.profiler.attention.kernels import KERNELS, Buffers
from llmsim.profiler.attention.mla import LatentBuffers, LatentShape
from llmsim.profiler.attention.mla import error as latent_error
from llmsim.profiler.attention.mla_kernels import LATENT_KERNELS
from llmsim.profiler.attention.paged import Batch, Family
from llmsim.profiler.attention.sparse_kernels import SPARSE_KERNELS, SparseBuffers, SparseShape
from llmsim.profiler.kernels.work import rotating

Work = Callable[[], object]
TOLERANCE = 3e-2
"""Largest relative error of a kernel against float32 math; half-precision results lie between 1e-3
and 1e-2.
"""
CHECKED = ((5, 9), (1, 33), (1, 17))
"""The batch that every kernel must get right: (new tokens, cached tokens) of each sequence."""


@dataclass(frozen=True)
class HeadShape:
    """One rank's heads."""

    heads: int
    kv_heads: int
    head_dim: int
    sinks: bool = False
    """Each query head has a learned logit of its own beside the scores (gpt-oss)."""

    def elements(self, batch: Batch) -> int:
        """K and V of a batch."""
        return sum(new + cached for new, cached in batch) * 2 * self.kv_heads * self.head_dim


Shape = HeadShape | LatentShape | IndexerShape


def shapes_of(model: ModelConfig, ops: Sequence[Operator]) -> dict[str, Shape]:
    """Table of a bundle -> the shape of the attention whose rows it holds; windows have the same
    heads as the rest.
    """
    found: dict[str, Shape] = {}
    for op in ops:
        if isinstance(op, IndexerScores):
            assert model.indexer is not None, "the model has the operator"
            found["indexer"] = IndexerShape(op.heads, op.head_dim, model.indexer.topk)
        elif isinstance(op, AttentionOperator) and model.latent is not None:
            latent = model.latent
            widths = (op.heads, latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.v_dim)
            found["attention"] = (
                SparseShape(*widths, model.indexer.topk) if model.indexer else LatentShape(*widths)
            )
        elif isinstance(op, AttentionOperator):
            found.setdefault(
                "attention", HeadShape(op.heads, op.kv_heads, op.head_dim, model.attention_sinks)
            )
    return found


def family_of(shape: Shape) -> Family:
    """The kernels for a shape."""
    if isinstance(shape, IndexerShape):
        return Family(INDEXER_KERNELS, IndexerBuffers, indexer_error, indexer_batch)
    if isinstance(shape, SparseShape):
        return Family(SPARSE_KERNELS, SparseBuffers, latent_error, lambda _: CHECKED)
    if isinstance(shape, LatentShape):
        return Family(LATENT_KERNELS, LatentBuffers, latent_error, lambda _: CHECKED)
    return Family(KERNELS, Buffers, _error, lambda _: CHECKED)


class Attention:
    """Makes the work of one attention call for a batch of (new, cached) tokens per sequence."""

    def __init__(
        self, torch: Any, device: Any, dtype: Any, shape: Shape, kernel: str, *,
        layers: int, cache_bytes: int, layer_share: int, product: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        """`layers` caches are rotated as a step does, as far as they exceed the last-level cache of
        `cache_bytes`.

        `layer_share`: work that the kernel's engine does once a step (the packed kernel's mask)
        counts 1/layer_share. `product` makes the quantised layer that expands the latents of a
        context, where it is one.
        """
        self._torch = torch
        self._device = device
        self._dtype = dtype
        self._family = family_of(shape)
        self.shape = shape
        self.kernel = kernel
        self._layers = layers
        self._cache_bytes = cache_bytes
        self._share = layer_share
        self._product = product

    def bytes_of(self, batch: Sequence[tuple[int, int]]) -> int:
        """What a layer reads of a batch, bytes."""
        size = self._torch.empty(0, dtype=self._dtype).element_size()
        return self.shape.elements(batch) * int(size)

    def work(self, batch: Sequence[tuple[int, int]]) -> tuple[Work, Work | None]:
        """(one layer's call, what happens once a step or None)."""
        copies = max(
            1, min(self._layers, 16, 1 + 2 * self._cache_bytes // max(self.bytes_of(batch), 1))
        )
        if self._device.type == "cpu":
            copies = min(copies, 4)
        kernel = self._family.kernels[self.kernel]
        make = (self._torch, self._device, self._dtype, self.shape, batch, kernel.page())
        buffers = [self._family.buffers(*make) for _ in range(copies)]
        if self._product is not None:
            for each in buffers:
                each.product = self._product()
        calls = [kernel.call(self._torch, each) for each in buffers]
        run = rotating(lambda call: call(), calls)
        return run, kernel.once(self._torch, buffers[0]) if kernel.once is not None else None

    def layer_us(self, call_us: float, once_us: float) -> float:
        """Microseconds of one layer, with its share of what happens once a step."""
        return call_us + once_us / self._share


def usable_kernels(
    torch: Any, device: Any, dtype: Any, shape: Shape
) -> tuple[list[str], dict[str, str]]:
    """Kernels that run here and are right, best first, and why each other one is not used."""
    good, reasons = [], {}
    for name, kernel in family_of(shape).kernels.items():
        problem = _problem(torch, device, dtype, shape, name, kernel.missing)
        if problem:
            reasons[name] = problem
        else:
            good.append(name)
    return good, reasons


def _problem(
    torch: Any, device: Any, dtype: Any, shape: Shape, name: str, missing: Callable[..., str]
) -> str:
    """Why a kernel cannot be had or trusted, or ""; whatever it raises is its reason."""
    family = family_of(shape)
    kernel = family.kernels[name]
    try:
        problem = missing(torch, device, dtype)
        if problem:
            return problem
        buffers = family.buffers(torch, device, dtype, shape, family.checked(shape), kernel.page())
        if kernel.once is not None:
            kernel.once(torch, buffers)()
        call = kernel.call(torch, buffers)
        call()  # the second one finds what the first may have left behind, as every later one does
        error = family.error(torch, buffers, call())
    except (
        Exception
    ) as raised:  # a kernel of another package may fail in any way: it is then not used
        return (
            f"it failed on a small batch: {type(raised).__name__}: "
            f"{(str(raised).splitlines() or [''])[0][:120]}"
        )
    if not error < TOLERANCE:
        return f"its result is wrong by {error:.2g} on a small batch"
    return ""


def _error(torch: Any, buffers: Buffers, found: Any) -> float:
    wanted = reference(torch, buffers)
    return float((found.float() - wanted).norm() / wanted.norm())


def reference(torch: Any, buffers: Buffers) -> Any:
    """Plain float32 attention, sequence by sequence; shape (tokens, heads, head_dim)."""
    group = buffers.shape.heads // buffers.shape.kv_heads
    rows = []
    for index, (new, cached) in enumerate(buffers.batch):
        q = buffers.query_of(index).float().transpose(0, 1)
        k, v = (
            part.float().transpose(0, 1).repeat_interleave(group, 0)
            for part in buffers.keys_values_of(index)
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(buffers.shape.head_dim)
        allowed = torch.ones(new, new + cached, dtype=torch.bool, device=q.device).tril(cached)
        scores = scores.masked_fill(~allowed, float("-inf"))
        if buffers.sinks is not None:
            scores = torch.cat(
                (scores, buffers.sinks.float()[:, None, None].expand(-1, new, 1)), dim=-1
            )
        weights = scores.softmax(-1)[..., : new + cached]
        rows.append((weights @ v).transpose(0, 1))
    return torch.cat(rows)
